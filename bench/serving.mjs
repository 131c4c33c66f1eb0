// What an encoder in a server costs: its event loop, latencies without and with what it remembers, throughput, memory.
//
//   npm run build
//   node bench/serving.mjs [--encoders models/canopy-mini,<folder>] [--dataset <folder>] [--split dev] [--cases 40]
//     [--only serve,grid,rule,cycles] [--largest 100000] [--cycles 100] [--json]
//
// serve   questions with ten items each: delay of the main thread's event loop while they are refined, and how much of its own speed
//         the main thread keeps; latency with nothing known, with the items in memory, with them on disk; calls that overlap;
//         a second encoder beside the first; time to open, resident memory
// grid    latency and main thread's time of refinements that are remembered, by number of items and of leaves each, up to --largest
//         leaves in all; the embeddings are made up, as their values cost nothing
// rule    buildTree and refine on given scores, by number of leaves
// cycles  resident memory over --cycles times open, refine, close
//
// Every measurement has a process of its own. CANOPY_DIST names another build than dist/.
import { spawn } from 'node:child_process'
import { mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { availableParallelism, tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { monitorEventLoopDelay, performance } from 'node:perf_hooks'
import { setImmediate, setTimeout } from 'node:timers/promises'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { parseArgs } from 'node:util'
import { median } from './support/alternate.mjs'
import { describeMachine, machineText } from './support/machine.mjs'
import { wholeNumber } from './support/numbers.mjs'

const ITEMS = 10
const { values: flags } = parseArgs({
  options: {
    encoders: {
      type: 'string',
      default: ['models/canopy-mini', process.env.CANOPY_MINILM].filter(Boolean).join(','),
    },
    dataset: { type: 'string', default: 'datasets/sample' },
    split: { type: 'string', default: 'dev' },
    cases: { type: 'string', default: '40' },
    only: { type: 'string', default: 'serve,grid,rule,cycles' },
    largest: { type: 'string', default: '100000' },
    cycles: { type: 'string', default: '100' },
    json: { type: 'boolean', default: false },
    /** Of a process of its own: what it measures. */
    measure: { type: 'string' },
  },
})
const cases = wholeNumber(flags, 'cases')
const largest = wholeNumber(flags, 'largest')
const cycles = wholeNumber(flags, 'cycles')

const root = fileURLToPath(new URL('..', import.meta.url))
const dist = resolve(root, process.env.CANOPY_DIST ?? 'dist')
const load = (file) => import(pathToFileURL(join(dist, file)).href)
const { buildTree, openEncoder, refine } = await load('index.js')
const { createRandom } = await load('support/random.js')

const quantile = (values, part) => [...values].sort((a, b) => a - b)[Math.floor(part * (values.length - 1))]
const spread = (values) => ({ p50: median(values), p95: quantile(values, 0.95) })
const rss = () => process.memoryUsage.rss() / 1e6

const WORDS = 'tower river clock wound morning bell cast mill ground rye town flood wheel spring bridge stone'.split(
  ' ',
)
const passage = (leaves, random) =>
  Array.from(
    { length: leaves },
    () => `The ${Array.from({ length: 7 }, () => WORDS[Math.floor(random.next() * WORDS.length)]).join(' ')}. `,
  ).join('')

if (flags.measure !== undefined) {
  const [what, ...rest] = flags.measure.split(':')
  const result = await { serve, grid, rule, cycle }[what](...rest)
  process.send(result)
  process.disconnect()
} else await report()

// Measurements.

async function serve(encoder, threads) {
  const { refinementCases } = await import('./support/texts.mjs')
  const asked = await refinementCases(flags.dataset, flags.split, {
    questions: cases,
    count: ITEMS,
    random: createRandom('serving'),
  })
  const given = asked.map(({ question, items }) => ({ question, items: items.map(asInput) }))
  const open = (options) => openEncoder(encoder, { threads: Number(threads), ...options })
  const latencies = async (client, calls) => {
    const times = []
    for (const { question, items } of calls) {
      const began = performance.now()
      await client.refine(question, items)
      times.push(performance.now() - began)
    }
    return times
  }
  /** Where a rate is measured, which fewer calls give. */
  const few = given.slice(0, 20)
  const result = { encoder, threads: Number(threads), cases: given.length }

  const before = rss()
  let began = performance.now()
  const forgetful = await open({ memory: 0 })
  result.openMs = performance.now() - began
  result.openMegabytes = rss() - before
  await latencies(forgetful, given.slice(0, 3))

  await setTimeout(500)
  result.idle = await loopDelay(() => setTimeout(1000))
  const unknown = []
  result.loop = await loopDelay(async () => {
    unknown.push(...(await latencies(forgetful, given)))
  })
  result.unknown = spread(unknown)
  const idleSpeed = await ownSpeed(() => setTimeout(1000))
  result.speedKept = (await ownSpeed(() => latencies(forgetful, few))) / idleSpeed
  began = performance.now()
  await Promise.all(few.map(({ question, items }) => forgetful.refine(question, items)))
  result.callsPerSecond = (1000 * few.length) / (performance.now() - began)
  result.refineMegabytes = rss()
  await forgetful.close()

  const encoderOf = await open({})
  for (const { items } of given) await encoderOf.prepare(items)
  result.newQuestion = spread(await latencies(encoderOf, given))
  const again = Array.from({ length: 20 }, () => given).flat()
  await latencies(encoderOf, again)
  const ownBefore = performance.eventLoopUtilization()
  const known = await latencies(encoderOf, again)
  result.known = spread(known)
  result.knownMainMs = performance.eventLoopUtilization(ownBefore).active / again.length
  began = performance.now()
  await Promise.all(again.slice(0, 200).map(({ question, items }) => encoderOf.refine(question, items)))
  result.knownCallsPerSecond = (1000 * 200) / (performance.now() - began)
  const counted = await Promise.all(given.map(({ question, items }) => encoderOf.refine(question, items)))
  result.nodesPerCall = median(counted.map((items) => items.reduce((sum, { nodes }) => sum + nodes.length, 0)))
  await encoderOf.close()

  const cache = mkdtempSync(join(tmpdir(), 'canopy-serving-'))
  try {
    const filling = await open({ cache, memory: 0 })
    await latencies(filling, given)
    await filling.close()
    began = performance.now()
    const onDisk = await open({ cache, memory: 0 })
    result.openOnDiskMs = performance.now() - began
    result.onDisk = spread(await latencies(onDisk, given))
    await onDisk.close()
  } finally {
    rmSync(cache, { recursive: true })
  }

  // as many threads in two encoders as in one
  if (Number(threads) > 1) {
    const options = { memory: 0, threads: Math.max(1, Math.floor(Number(threads) / 2)) }
    const first = await open(options)
    await latencies(first, given.slice(0, 2))
    const alone = rss()
    const second = await open(options)
    await latencies(second, given.slice(0, 2))
    result.secondMegabytes = rss() - alone
    began = performance.now()
    await Promise.all(few.map(({ question, items }, i) => [first, second][i % 2].refine(question, items)))
    result.twoCallsPerSecond = (1000 * few.length) / (performance.now() - began)
    await first.close()
    await second.close()
  }
  return result
}

function asInput({ id, title, text, header, rows, caption }) {
  const named = { id, ...(title === undefined ? {} : { title }) }
  if (rows !== undefined) return { ...named, header, rows, ...(caption === undefined ? {} : { caption }) }
  return { ...named, text }
}

/** Delay of the event loop in ms while something is done; its timer's own 1 ms is in it. */
async function loopDelay(action) {
  const histogram = monitorEventLoopDelay({ resolution: 1 })
  histogram.enable()
  await action()
  histogram.disable()
  return { p50: histogram.percentile(50) / 1e6, p99: histogram.percentile(99) / 1e6, max: histogram.max / 1e6 }
}

/** Pieces of work a millisecond that the main thread gets done beside something. */
async function ownSpeed(action) {
  let done = false
  let pieces = 0
  const began = performance.now()
  const working = (async () => {
    let x = 1
    while (!done) {
      for (let i = 0; i < 20_000; i++) x = (x * 48_271) % 2_147_483_647
      pieces++
      await setImmediate()
    }
    return x
  })()
  await action()
  done = true
  await working
  return pieces / (performance.now() - began)
}

/** Embeddings that are made up of their keys. */
function madeUpStore() {
  return {
    async getMany({ dimension }, keys) {
      return keys.map((key) => {
        let state = new DataView(key.buffer, key.byteOffset).getUint32(0, true) % 2_147_483_647 || 1
        return Float32Array.from({ length: dimension }, () => {
          state = (state * 48_271) % 2_147_483_647
          return state / 2_147_483_647 - 0.5
        })
      })
    },
    async putMany() {},
  }
}

async function grid(encoder, count, leaves) {
  const client = await openEncoder(encoder, { store: madeUpStore(), memory: 2 ** 31 })
  const random = createRandom('grid')
  const items = Array.from({ length: Number(count) }, (_, i) => ({
    title: `Page ${i}`,
    text: passage(Number(leaves), random),
  }))
  let began = performance.now()
  await client.prepare(items)
  const prepareMs = performance.now() - began
  const question = 'Who wound the clock of the tower?'
  for (let i = 0; i < 200 && performance.now() - began - prepareMs < 1500; i++) await client.refine(question, items)
  const times = []
  const own = performance.eventLoopUtilization()
  began = performance.now()
  let nodes = 0
  const loop = await loopDelay(async () => {
    while (times.length < 5 || (times.length < 500 && performance.now() - began < 2000)) {
      const start = performance.now()
      const refined = await client.refine(question, items)
      times.push(performance.now() - start)
      nodes = refined.reduce((sum, item) => sum + item.nodes.length, 0)
    }
  })
  const mainMs = performance.eventLoopUtilization(own).active / times.length
  await client.close()
  return { items: Number(count), leaves: Number(leaves), nodes, prepareMs, ...spread(times), mainMs, loopMax: loop.max }
}

async function rule() {
  const random = createRandom('rule')
  const scores = Array.from({ length: 20_001 }, () => random.next())
  const mean = (times, action) => {
    for (let time = 0; time < times; time++) action()
    const began = performance.now()
    for (let time = 0; time < times; time++) action()
    return (1000 * (performance.now() - began)) / times
  }
  return [1, 10, 100, 1_000, 10_000].map((leaves) => {
    const tree = buildTree(leaves)
    const times = Math.ceil(200_000 / leaves)
    return {
      leaves,
      buildTreeUs: mean(times, () => buildTree(leaves)),
      // a new question each time: other scores
      randomUs: mean(times, () => {
        const turn = Math.floor(random.next() * 10_000)
        return refine(tree, ({ from, to }) => scores[(turn + 7 * from + to) % scores.length])
      }),
      // equal scores descend everywhere: as much as the rule can have to do
      everyLeafUs: mean(times, () => refine(tree, () => 1)),
    }
  })
}

async function cycle(encoder) {
  const text = passage(12, createRandom('cycle'))
  const megabytes = []
  const times = []
  for (let i = 0; i < cycles; i++) {
    const began = performance.now()
    const client = await openEncoder(encoder)
    await client.refine('Who wound the clock?', [text, `${text}The ${i}th.`])
    await client.close()
    times.push(performance.now() - began)
    megabytes.push(rss())
  }
  const threads = process.platform === 'linux' ? readdirSync('/proc/self/task').length : undefined
  return {
    ...{ encoder, cycles, ms: median(times), threads },
    first: megabytes[0],
    tenth: megabytes[Math.min(9, cycles - 1)],
    median: median(megabytes),
    last: megabytes.at(-1),
    most: Math.max(...megabytes),
  }
}

// The report.

async function report() {
  const only = new Set(flags.only.split(','))
  const encoders = flags.encoders.split(',')
  const cores = availableParallelism()
  const result = { machine: describeMachine(), dataset: flags.dataset }
  const log = (line = '') => {
    if (!flags.json) console.log(line)
  }
  log(`${machineText(result.machine)}\n`)
  if (only.has('serve')) {
    result.serve = []
    for (const encoder of encoders)
      for (const threads of new Set([1, cores])) result.serve.push(await measured(`serve:${encoder}:${threads}`))
    serveTables(result.serve, log)
  }
  if (only.has('grid')) {
    result.grid = []
    for (const items of [1, 10, 100, 1_000])
      for (const leaves of [1, 10, 100, 1_000, 10_000])
        if (items * leaves <= largest) result.grid.push(await measured(`grid:${encoders[0]}:${items}:${leaves}`))
    log(`Refinements that are remembered, ${encoders[0]}: ms\n`)
    table(
      log,
      ['items', 'leaves each', 'nodes', 'p50', 'p95', 'main thread', 'longest delay', 'first time'],
      result.grid,
      (row) => [
        ...[row.items, row.leaves, row.nodes],
        ...[row.p50, row.p95, row.mainMs, row.loopMax, row.prepareMs].map(number),
      ],
    )
  }
  if (only.has('rule')) {
    result.rule = await measured('rule')
    log('The rule alone: µs\n')
    table(log, ['leaves', 'buildTree', 'refine, random scores', 'refine, every leaf visited'], result.rule, (row) => [
      row.leaves,
      number(row.buildTreeUs),
      number(row.randomUs),
      number(row.everyLeafUs),
    ])
  }
  if (only.has('cycles')) {
    result.cycles = []
    for (const encoder of encoders) result.cycles.push(await measured(`cycle:${encoder}`))
    log(`Open, refine, close, ${cycles} times: resident MB\n`)
    table(log, ['encoder', 'ms each', 'first', 'tenth', 'median', 'last', 'most'], result.cycles, (row) => [
      row.encoder,
      ...[row.ms, row.first, row.tenth, row.median, row.last, row.most].map((value) => Math.round(value)),
    ])
  }
  if (flags.json) console.log(JSON.stringify(result, null, 2))
}

function serveTables(rows, log) {
  const name = ({ encoder, threads }) => [encoder, threads]
  log(`Delay of the event loop while ${ITEMS} items a question are refined: ms (1 ms of it is the timer's own)\n`)
  table(log, ['encoder', 'threads', 'idle p99', 'p50', 'p99', 'max', 'speed the main thread keeps'], rows, (row) => [
    ...name(row),
    ...[row.idle.p99, row.loop.p50, row.loop.p99, row.loop.max].map(number),
    `${Math.round(100 * row.speedKept)} %`,
  ])
  log(`Latency of ${ITEMS} items (median ${rows[0].nodesPerCall} nodes): ms, p50 / p95\n`)
  const both = ({ p50, p95 }) => `${number(p50)} / ${number(p95)}`
  const known = ['nothing known', 'items on disk', 'items in memory', 'items and question in memory']
  table(log, ['encoder', 'threads', ...known, 'of the last in the main thread'], rows, (row) => [
    ...name(row),
    ...[row.unknown, row.onDisk, row.newQuestion, row.known].map(both),
    number(row.knownMainMs),
  ])
  log('Overlapping calls a second, and what an encoder takes\n')
  const columns = ['nothing known', 'the same, two encoders', 'all in memory', 'open ms', 'open on disk ms']
  const taken = ['MB when open', 'process MB', 'MB of the second']
  table(log, ['encoder', 'threads', ...columns, ...taken], rows, (row) => [
    ...name(row),
    ...[row.callsPerSecond, row.twoCallsPerSecond, row.knownCallsPerSecond, row.openMs, row.openOnDiskMs].map(number),
    ...[row.openMegabytes, row.refineMegabytes, row.secondMegabytes].map(number),
  ])
}

function table(log, header, rows, cells) {
  log(`| ${header.join(' | ')} |`)
  log(`| ${header.map((_, i) => (i === 0 ? '---' : '---:')).join(' | ')} |`)
  for (const row of rows) log(`| ${cells(row).join(' | ')} |`)
  log()
}

/** Three digits that count. */
function number(value) {
  if (value === undefined) return '–'
  if (value >= 100) return Math.round(value).toLocaleString('en').replaceAll(',', ' ')
  return String(Number(value.toPrecision(value < 0.1 ? 2 : 3)))
}

/** The result of a measurement, in a process of its own. */
async function measured(what) {
  const args = ['encoders', 'dataset', 'split', 'cases', 'largest', 'cycles'].flatMap((name) => [
    `--${name}`,
    flags[name],
  ])
  const child = spawn(process.execPath, [fileURLToPath(import.meta.url), ...args, '--measure', what], {
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
  })
  let result
  child.on('message', (message) => {
    result = message
  })
  const code = await new Promise((done, failed) => {
    child.on('error', failed)
    child.on('close', done)
  })
  if (code !== 0 || result === undefined) throw new Error(`Measuring ${what} failed with status ${code}.`)
  return result
}
