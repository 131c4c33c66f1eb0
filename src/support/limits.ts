import { readFile } from 'node:fs/promises'
import { availableParallelism, freemem, totalmem } from 'node:os'
import { dirname, join } from 'node:path'

/** What this process may use of the machine: the machine's own numbers, or those of the container around it where they are lower. */
export interface Limits {
  /** Bytes. */
  memory: { total: number; available: number; container: boolean }
  /** Processors, a fraction where a container shares one out. */
  processors: { count: number; container: boolean }
}

/**
 * Reads memory and processors. Containers limit both through Linux control groups, of which Node.js and the usual tools show
 * nothing or only a part: version 2 (`memory.max`, `cpu.max`) and version 1 are read, from the process's own group up to the root.
 *
 * @param root where the kernel's files are; another folder for tests
 */
export async function readLimits(root = '/'): Promise<Limits> {
  const machine = { total: totalmem(), available: (await memAvailable(root)) ?? freemem() }
  const count = availableParallelism()
  const groups = await controlGroups(root)
  let memory = { ...machine, container: false }
  let processors = { count, container: false }
  for (const { memory: memoryFolder, cpu: cpuFolder } of groups) {
    const group = await groupMemory(memoryFolder)
    if (group !== undefined)
      memory = {
        total: Math.min(memory.total, group.total),
        available: Math.min(memory.available, group.available),
        container: memory.container || group.total < machine.total,
      }
    const quota = await groupProcessors(cpuFolder)
    if (quota !== undefined && quota < processors.count) processors = { count: quota, container: true }
  }
  return { memory, processors }
}

/** What the kernel could hand out without swapping; os.freemem leaves out what caches would give back. */
async function memAvailable(root: string): Promise<number | undefined> {
  const text = await contents(join(root, 'proc/meminfo'))
  const kilobytes = /^MemAvailable:\s+(\d+) kB$/m.exec(text ?? '')?.[1]
  return kilobytes === undefined ? undefined : Number(kilobytes) * 1024
}

/** The folders of this process's control groups, its own first. */
async function controlGroups(root: string): Promise<{ memory: string; cpu: string }[]> {
  // number:controllers:path, where the path may have colons of its own
  const lines = [...((await contents(join(root, 'proc/self/cgroup'))) ?? '').matchAll(/^\d+:([^:]*):(.*)$/gm)]
  const path = (controller: string) => lines.find(([, names]) => names?.split(',').includes(controller))?.[2]
  const mount = join(root, 'sys/fs/cgroup')
  const unified = path('') ?? '/'
  const [memory, cpu] = [path('memory'), path('cpu')]
  const folders = (base: string, from: string): string[] => {
    const all: string[] = []
    // Inside a container the path is the host's, and the container's own group is the mount's root.
    for (let at = from; ; at = dirname(at)) {
      all.push(join(base, at))
      if (at === '/' || at === '.') return all
    }
  }
  const memoryFolders = memory === undefined ? folders(mount, unified) : folders(join(mount, 'memory'), memory)
  const cpuFolders = cpu === undefined ? folders(mount, unified) : folders(join(mount, 'cpu'), cpu)
  return Array.from({ length: Math.max(memoryFolders.length, cpuFolders.length) }, (_, i) => ({
    memory: memoryFolders[i] ?? '',
    cpu: cpuFolders[i] ?? '',
  }))
}

async function groupMemory(folder: string): Promise<{ total: number; available: number } | undefined> {
  const v2 = await number(join(folder, 'memory.max'))
  const total = v2 ?? (await number(join(folder, 'memory.limit_in_bytes')))
  if (total === undefined) return undefined
  const used = await number(join(folder, v2 === undefined ? 'memory.usage_in_bytes' : 'memory.current'))
  // Pages of files that nothing has touched lately are given up before memory is refused.
  const stat = await contents(join(folder, 'memory.stat'))
  const reclaimable = Number(/^(?:total_)?inactive_file (\d+)$/m.exec(stat ?? '')?.[1] ?? 0)
  return { total, available: Math.max(0, total - Math.max(0, (used ?? 0) - reclaimable)) }
}

async function groupProcessors(folder: string): Promise<number | undefined> {
  const v2 = /^(\d+) (\d+)/.exec((await contents(join(folder, 'cpu.max'))) ?? '')
  if (v2 !== null) return Number(v2[1]) / Number(v2[2])
  const [quota, period] = [
    await number(join(folder, 'cpu.cfs_quota_us')),
    await number(join(folder, 'cpu.cfs_period_us')),
  ]
  return quota === undefined || period === undefined ? undefined : quota / period
}

/** The whole number in a file; undefined where there is none, and for "max" and -1, which mean no limit. */
async function number(file: string): Promise<number | undefined> {
  const text = (await contents(file))?.trim() ?? ''
  return /^\d+$/.test(text) ? Number(text) : undefined
}

async function contents(file: string): Promise<string | undefined> {
  return readFile(file, 'utf8').catch(() => undefined)
}
