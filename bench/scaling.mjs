// Cost against work: time of a training step against its tokens, memory against the number of steps and against the size of the
// data set. Everything is generated: random token ids, and preferences over made-up passages.
//
//   npm run build
//   node bench/scaling.mjs --encoder <checkpoint folder> [--only time,steps,data] [--largest 65536] [--steps 200] [--threads n]
//     [--instances 1000,10000,100000] [--rounds 3] [--json]
//
// time   forward and backward over 1 Ki tokens, 2 Ki, … up to --largest, cut into runs as training does it, in turn; a straight line
//        with the smallest relative errors through the shortest times, by the clock and by processor time (which other
//        work on the machine disturbs less)
// steps  optimizer steps of 4 Ki tokens in one process, other sequences each; its resident memory
// data   two steps of `canopy train` on data sets of these sizes, each in a process of its own; its peak memory
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { availableParallelism, tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { importJsonl, openDataset } from '../dist/data/index.js'
import { initialLora, linearModules, loadTokenizer, readEncoder, selectTargets } from '../dist/encoder/index.js'
import { markdownTable } from '../dist/eval/index.js'
import { buildPreferences } from '../dist/preferences/index.js'
import { createRandom } from '../dist/support/random.js'
import { loraEncoder } from '../dist/train/engine/encoder.js'
import { openEngine } from '../dist/train/engine/engine.js'
import { resolveSettings } from '../dist/train/index.js'
import { adamWStep, initialAdamW } from '../dist/train/step/optimizer.js'
import { alternate } from './support/alternate.mjs'
import { describeMachine, machineText } from './support/machine.mjs'
import { treeNodes } from './support/trees.mjs'

const STEP_TOKENS = 4096
const number = { type: 'string' }
const { values: flags } = parseArgs({
  options: {
    encoder: { type: 'string' },
    only: { type: 'string', default: 'time,steps,data' },
    largest: { ...number, default: '65536' },
    steps: { ...number, default: '200' },
    instances: { type: 'string', default: '1000,10000,100000' },
    threads: { ...number, default: String(availableParallelism()) },
    rounds: { ...number, default: '3' },
    json: { type: 'boolean', default: false },
  },
})
if (flags.encoder === undefined) throw new Error('Give --encoder.')
const only = new Set(flags.only.split(','))
const threads = Number(flags.threads)
const log = (line) => {
  if (!flags.json) console.log(line)
}
const megabytes = (bytes) => Math.round(bytes / 1e6)

const profile = await readEncoder(flags.encoder)
const targets = selectTargets(linearModules(profile), ['all-linear']).map((module) => ({
  ...module,
  rank: 16,
  alpha: 32,
}))
const result = { machine: describeMachine(), encoder: profile.id, threads }
log(`${machineText(result.machine)}, ${threads} threads; ${profile.id}, LoRA rank 16 on ${targets.length} maps\n`)

/** An engine, and forward and backward over sequences for a made-up gradient at their embeddings. */
async function openSteps() {
  const encoder = await loraEncoder(profile, targets, (await loadTokenizer(profile)).padId)
  const tensors = initialLora(targets, 'scaling')
  const tokenBudget = STEP_TOKENS
  const engine = await openEngine({
    encoder,
    queries: () => new Float32Array(profile.dimension),
    loss: undefined,
    tokenBudget,
    threads,
  })
  const step = (sequences) =>
    engine.pullBack(sequences, new Float32Array(sequences.length * profile.dimension).fill(1e-3), tensors)
  return { step, tensors, close: () => engine.close() }
}

if (only.has('time')) {
  const { step, close } = await openSteps()
  const sizes = []
  for (let tokens = 1024; tokens <= Number(flags.largest); tokens *= 2) sizes.push(tokens)
  const batches = sizes.map((tokens) => treeNodes(tokens, { seed: `time/${tokens}` }))
  const tokens = batches.map((sequences) => sequences.reduce((sum, { ids }) => sum + ids.length, 0))
  const clocks = { seconds: sizes.map(() => Infinity), processorSeconds: sizes.map(() => Infinity) }
  const keep = (clock, i, value) => {
    clocks[clock][i] = Math.min(clocks[clock][i], value)
  }
  await step(batches[0])
  for (let round = 0; round < Number(flags.rounds); round++)
    for (const [i, sequences] of batches.entries()) {
      const [began, before] = [performance.now(), process.cpuUsage()]
      await step(sequences)
      const { user, system } = process.cpuUsage(before)
      keep('seconds', i, (performance.now() - began) / 1000)
      keep('processorSeconds', i, (user + system) / 1e6)
    }
  await close()
  result.time = {}
  for (const [clock, ys] of Object.entries(clocks)) {
    const { intercept, slope } = fitLine(tokens, ys)
    const points = tokens.map((x, i) => ({ tokens: x, [clock]: ys[i], deviation: ys[i] / (intercept + slope * x) - 1 }))
    const largestDeviation = Math.max(...points.map(({ deviation }) => Math.abs(deviation)))
    result.time[clock] = { points, intercept, slope, largestDeviation }
    const name = clock === 'seconds' ? 'seconds' : 'seconds of processor'
    log(
      markdownTable(
        ['tokens a step', name, 'tokens/s', 'off the line'],
        points.map(({ tokens: x, [clock]: y, deviation }) => [
          String(x),
          y.toFixed(3),
          String(Math.round(x / y)),
          `${(100 * deviation).toFixed(1)} %`,
        ]),
      ),
    )
    log(
      `\n${name} = ${intercept.toFixed(3)} + ${(1e6 * slope).toFixed(1)} * 10^-6 * tokens; largest deviation ${(100 * largestDeviation).toFixed(1)} %\n`,
    )
  }
}

if (only.has('steps')) {
  const { step, tensors, close } = await openSteps()
  const optimizer = {
    state: initialAdamW(tensors),
    settings: { weightDecay: 0.01, betas: [0.9, 0.999], epsilon: 1e-8 },
  }
  const count = Number(flags.steps)
  const every = Math.max(1, Math.round(count / 10))
  const points = []
  for (let n = 1; n <= count; n++) {
    const gradients = await step(treeNodes(STEP_TOKENS, { seed: `steps/${n}` }))
    adamWStep(tensors, gradients, optimizer.state, 1e-5, optimizer.settings)
    if (n % every === 0) points.push({ step: n, resident: process.memoryUsage.rss() })
  }
  await close()
  result.steps = points
  log(
    markdownTable(
      ['step', 'resident MB'],
      points.map(({ step: n, resident }) => [String(n), String(megabytes(resident))]),
    ),
  )
  log('')
}

if (only.has('data')) {
  const work = mkdtempSync(join(tmpdir(), 'canopy-scaling-'))
  const contestants = []
  for (const size of flags.instances.split(',').map(Number)) {
    const { dataset, preferences } = await generateData(join(work, String(size)), size)
    const request = {
      ...{ encoder: flags.encoder, queryEncoder: flags.encoder, datasets: [dataset], preferences: [preferences] },
      settings: await resolveSettings(undefined, { steps: 2, validationShare: 0, threads }),
    }
    contestants.push({
      ...{ name: String(size), label: `${size} instances`, command: process.execPath },
      ...{ script: resolve(import.meta.dirname, 'training/ours.mjs'), request: () => request },
    })
  }
  const standing = await alternate(contestants, { rounds: 1, folder: work, log })
  const failed = standing.find(({ error }) => error !== undefined)
  if (failed !== undefined) throw new Error(`${failed.label}: ${failed.error}`)
  result.data = standing.map(({ name, results: [{ memory }] }) => ({ instances: Number(name), peak: memory }))
  log(
    `\n${markdownTable(
      ['instances', 'peak MB'],
      result.data.map(({ instances, peak }) => [String(instances), String(megabytes(peak))]),
    )}`,
  )
  rmSync(work, { recursive: true })
}

if (flags.json) console.log(JSON.stringify(result, null, 2))

/** The straight line whose relative errors have the smallest sum of squares. */
function fitLine(xs, ys) {
  let [w, wx, wxx, wy, wxy] = [0, 0, 0, 0, 0]
  for (const [i, x] of xs.entries()) {
    const weight = 1 / ys[i] ** 2
    w += weight
    wx += weight * x
    wxx += weight * x * x
    wy += weight * ys[i]
    wxy += weight * x * ys[i]
  }
  const slope = (w * wxy - wx * wy) / (w * wxx - wx * wx)
  return { slope, intercept: (wy - slope * wx) / w }
}

/**
 * A data set of `size` questions, each with one gold passage of four to nine sentences, and its preferences. The questions share a
 * hundred wordings, so that embedding them does not take longer than training.
 */
async function generateData(folder, size) {
  mkdirSync(folder, { recursive: true })
  const random = createRandom(`data/${size}`)
  const words =
    'river stone bridge city old north water station people built small year after large second first'.split(' ')
  const phrase = (count) =>
    Array.from({ length: count }, () => words[Math.floor(random.next() * words.length)]).join(' ')
  const items = []
  const questions = []
  for (let n = 0; n < size; n++) {
    const sentences = Array.from(
      { length: 4 + Math.floor(random.next() * 6) },
      (_, i) => `Part ${i} of ${n}: ${phrase(8)}.`,
    )
    const starts = sentences.map((_, i) => sentences.slice(0, i).reduce((sum, { length }) => sum + length + 1, 0))
    const gold = Math.floor(random.next() * sentences.length)
    items.push({ id: `i${n}`, modality: 'text', title: `Place ${n}`, text: sentences.join(' ') })
    questions.push({
      ...{ id: `q${n}`, question: `Which ${words[n % 10]} is the ${words[Math.floor(n / 10) % 10]} one?`, answers: [] },
      gold: [{ item: `i${n}`, spans: [[starts[gold], starts[gold] + sentences[gold].length]] }],
    })
  }
  const lines = (records) => records.map((record) => `${JSON.stringify(record)}\n`).join('')
  writeFileSync(join(folder, 'items.jsonl'), lines(items))
  writeFileSync(join(folder, 'questions.jsonl'), lines(questions))
  const dataset = join(folder, 'dataset')
  const inputs = [join(folder, 'items.jsonl'), join(folder, 'questions.jsonl')]
  await importJsonl({ inputs, split: 'train', output: dataset })
  const preferences = join(folder, 'preferences.jsonl')
  const opened = await openDataset(dataset)
  await buildPreferences({ dataset: opened, split: 'train', output: preferences, branching: 2 })
  await opened.close()
  return { dataset, preferences }
}
