// What a figure depends on besides the code: the machine, and whether it was free.
import { availableParallelism, cpus, freemem, loadavg, totalmem } from 'node:os'

/** The machine in words, and what about it spoils a measurement. */
export function describeMachine({ cores = 2, gigabytes = 8 } = {}) {
  const available = availableParallelism()
  const gibibytes = (bytes) => Math.round(bytes / 2 ** 30)
  const [load] = loadavg()
  const warnings = []
  if (available < cores) warnings.push(`only ${available} core, ${cores} are asked for`)
  if (freemem() < gigabytes * 2 ** 30)
    warnings.push(`only ${gibibytes(freemem())} GiB of memory are free, ${gigabytes} GiB are asked for`)
  if (load > 0.5 * available)
    warnings.push(`the machine was busy when this began (load ${load.toFixed(1)} on ${available} cores)`)
  return {
    processor: cpus()[0]?.model.trim() ?? 'unknown',
    cores: available,
    memoryGiB: gibibytes(totalmem()),
    node: process.versions.node,
    load,
    warnings,
  }
}

export function machineText({ processor, cores, memoryGiB, node, warnings }) {
  const line = `${processor}, ${cores} cores, ${memoryGiB} GiB, Node ${node}`
  return [line, ...warnings.map((warning) => `WARNING: ${warning}`)].join('\n')
}
