// What `canopy plan` foretells against what is measured: peak memory of encoding, of one training step, of training with its
// optimizer, validation and checkpoint, and of training in one pass and in two, each in a process of its own. Linux only (/proc).
//
//   npm run build
//   node bench/qwen3-random.mjs --output models/2b --shape 2b          (and 0.05b, 0.2b, 0.6b)
//   node bench/memory-plan.mjs <checkpoint folder…> [--tokens 1024] [--node-tokens 256] [--rank 16] [--threads n]
//     [--phases encoding,step,training,mixedTraining] [--limit <GiB>] [--json]
//
// Memory is a process's anonymous pages, looked at every 50 ms, and the pages of the files that it maps, at their most. Ids are
// random. A phase that passes the limit, or leaves the machine less than 1 GiB, is ended and reported so.
import { spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { markdownTable } from '../dist/eval/index.js'
import { memoryPlan } from '../dist/train/index.js'
import { describeMachine, machineText } from './support/machine.mjs'

const number = { type: 'string' }
const { values: flags, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    tokens: { ...number, default: '1024' },
    'node-tokens': { ...number, default: '256' },
    rank: { ...number, default: '16' },
    threads: { ...number, default: String(availableParallelism()) },
    phases: { type: 'string', default: 'encoding,step,training,mixedTraining' },
    limit: { ...number, default: '20' },
    json: { type: 'boolean', default: false },
  },
})
if (positionals.length === 0) throw new Error('Give a checkpoint folder or several.')
const [tokens, nodeTokens, rank, threads] = [flags.tokens, flags['node-tokens'], flags.rank, flags.threads].map(Number)
const limit = Number(flags.limit) * 2 ** 30
const machine = describeMachine()

const kilobytes = (text, name) => 1024 * Number(new RegExp(`^${name}:\\s+(\\d+)`, 'm').exec(text)?.[1] ?? 0)

/** Anonymous memory of a process now; undefined once it is gone. */
function anonymousOf(process) {
  const text = contents(`/proc/${process}/status`)
  return text && kilobytes(text, 'RssAnon')
}

/** Pages of mapped files that a process has in memory; a file that sessions map more than once counts once. */
function mappedOf(process) {
  const pages = new Map()
  for (const part of (contents(`/proc/${process}/smaps`) ?? '').split(/^(?=[0-9a-f]+-[0-9a-f]+ )/m)) {
    const [, begin, end, offset, file] = /^([0-9a-f]+)-([0-9a-f]+) \S+ (\S+) \S+ \d+ +(\/.*)$/m.exec(part) ?? []
    if (file === undefined) continue
    const place = `${file} ${offset} ${Number.parseInt(end, 16) - Number.parseInt(begin, 16)}`
    const resident = kilobytes(part, 'Rss') - kilobytes(part, 'Anonymous')
    pages.set(place, Math.max(pages.get(place) ?? 0, resident))
  }
  return [...pages.values()].reduce((sum, bytes) => sum + bytes, 0)
}

function contents(file) {
  try {
    return readFileSync(file, 'utf8')
  } catch {
    return undefined
  }
}

/** Runs a phase in a process of its own; its most memory, and what it says of itself. */
async function measure(encoder, phase) {
  const request = { encoder, phase, tokens, nodeTokens, rank, threads }
  const child = spawn(process.execPath, [join(import.meta.dirname, 'memory/phase.mjs'), JSON.stringify(request)], {
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  const texts = { stdout: '', stderr: '' }
  for (const name of ['stdout', 'stderr'])
    child[name].on('data', (data) => {
      texts[name] += data
    })
  const peak = { anonymous: 0, mapped: 0 }
  let ended
  let looks = 0
  const watch = setInterval(() => {
    peak.anonymous = Math.max(peak.anonymous, anonymousOf(child.pid) ?? 0)
    // every look at the mapped files takes some milliseconds
    if (looks++ % 5 === 0) peak.mapped = Math.max(peak.mapped, mappedOf(child.pid))
    if (peak.anonymous + peak.mapped > limit) ended = `it passed ${flags.limit} GiB`
    else if (kilobytes(contents('/proc/meminfo'), 'MemAvailable') < 2 ** 30)
      ended = 'the machine had less than 1 GiB left'
    if (ended !== undefined) child.kill('SIGKILL')
  }, 50)
  const code = await new Promise((done, failed) => {
    child.on('error', failed)
    child.on('close', done)
  })
  clearInterval(watch)
  if (ended !== undefined) return { peak, ended }
  if (code !== 0) throw new Error(`${phase} of ${encoder} failed: ${texts.stderr.trim()}`)
  return { peak, ...JSON.parse(texts.stdout) }
}

const results = []
for (const encoder of positionals.map((folder) => resolve(folder))) {
  const file = join(encoder, 'config.json')
  const config = JSON.parse(readFileSync(file, 'utf8'))
  const dtype = config.dtype ?? config.torch_dtype ?? 'float32'
  const plan = memoryPlan({ config, file, dtype, rank, device: 'cpu', precision: 'fp32' })
  for (const phase of flags.phases.split(',')) {
    const { peak, ended, rows, seconds } = await measure(encoder, phase)
    const measured = peak.anonymous + peak.mapped
    const planned = rows && plan[phase]({ tokens: rows[0] * rows[1], rowTokens: rows[1] })
    results.push({
      encoder,
      parameters: plan.parameters.checkpoint,
      phase,
      rows,
      planned,
      measured,
      ...peak,
      seconds,
      ended,
    })
    if (!flags.json) console.error(`${encoder}, ${phase}: ${ended ?? `${(measured / 2 ** 30).toFixed(2)} GiB`}`)
  }
}

if (flags.json) console.log(JSON.stringify({ machine, threads, rank, results }, null, 2))
else {
  const gibibytes = (bytes) => (bytes / 2 ** 30).toFixed(2)
  console.log(`${machineText(machine)}, ${threads} threads, LoRA of rank ${rank}\n`)
  console.log(
    markdownTable(
      [
        'parameters',
        'phase',
        'rows',
        'planned GiB',
        'measured GiB',
        'of it mapped files',
        'measured / planned',
        'seconds',
      ],
      results.map(({ parameters, phase, rows, planned, measured, mapped, seconds, ended }) => [
        `${(parameters / 1e6).toFixed(1)} M`,
        phase,
        rows?.join(' x ') ?? '',
        planned === undefined ? '' : gibibytes(planned.total),
        ended === undefined ? gibibytes(measured) : `${gibibytes(measured)}, then ended: ${ended}`,
        gibibytes(mapped),
        planned === undefined ? '' : (measured / planned.total).toFixed(2),
        seconds?.toFixed(1) ?? '',
      ]),
    ),
  )
}
