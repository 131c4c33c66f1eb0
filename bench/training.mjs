// Training speed and memory, this engine beside three Python peers: the same preference pairs (HotpotQA, 2Wiki, NQ), the same machine,
// in turn, each in a process of its own.
//
//   npm run build
//   node bench/training.mjs --encoder <MiniLM folder> --data ../shared/data --python <python of bench/peers/requirements.txt> \
//     [--onnx <folder of an ONNX export>,…] [--contestants packed,nodes,…] [--rounds 3] [--steps n] [--threads n] [--until 0.55] [--json result.json]
//
// packed          canopy train on the checkpoint: each distinct node once a step, packed rows
// <export>        canopy train on the ONNX graph in each folder of --onnx
// nodes           torch + PEFT, each distinct node once a step, padded sub-batches of like length (bench/peers/train_nodes.py)
// nodes-bf16      the same under bfloat16 autocast
// length, random  the sentence-transformers trainer with PEFT on triplets, in batches of like length and in its own random order
//                 (bench/peers/train_triplets.py)
//
// Same LoRA targets, rank, start values, loss, optimizer, learning rate (constant) and clipping; float32 but for nodes-bf16. packed,
// the exports and nodes take the same instances in the same steps, so their losses agree step by step. The triplet trainers draw
// from the same pairs and take about as many in an optimizer step. Query embeddings are computed beforehand; nobody is charged for them.
// Without --until: 6 steps after --warm ones that don't count. A peer stops after --limit seconds of training (25), but not before
// one step counts.
//
// --until x: instead, each trains until it decides a held-out part of the instances with accuracy x: seconds of training (validation
// apart) at the first of the adapters written every --every steps that does, within --steps steps (48; for the peers half as many
// again as this engine needed) and, for the peers, --limit seconds (150). The adapters, in PEFT's format, are judged by this project.
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { availableParallelism, tmpdir } from 'node:os'
import { basename, join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import {
  defaultTargets,
  initialLora,
  linearModules,
  openEmbedder,
  readAdapter,
  readEncoder,
  selectTargets,
  writeAdapter,
} from '../dist/encoder/index.js'
import { markdownTable } from '../dist/eval/index.js'
import { resolveSettings } from '../dist/train/index.js'
import { validate } from '../dist/train/validate.js'
import { alternate, median, medianRatio } from './support/alternate.mjs'
import { describeMachine, machineText } from './support/machine.mjs'
import { openTraining, prepareData } from './training/data.mjs'

const number = { type: 'string' }
const { values: flags } = parseArgs({
  options: {
    encoder: { type: 'string' },
    onnx: { type: 'string', default: '' },
    data: { type: 'string' },
    python: { type: 'string', default: 'python3' },
    contestants: { type: 'string' },
    rounds: { ...number, default: '3' },
    steps: number,
    warm: { ...number, default: '1' },
    limit: number,
    threads: number,
    seed: { ...number, default: '1' },
    'batch-size': { ...number, default: '16' },
    'token-budget': number,
    'sub-batch': { ...number, default: '512' },
    'triplet-batch': { ...number, default: '32' },
    until: number,
    every: { ...number, default: '4' },
    work: { type: 'string' },
    json: { type: 'string' },
  },
})
if (flags.encoder === undefined || flags.data === undefined) throw new Error('Give --encoder and --data.')
const until = flags.until === undefined ? undefined : Number(flags.until)
const steps = Number(flags.steps ?? (until === undefined ? 6 : 48))
const [rounds, warm] = [flags.rounds, flags.warm].map(Number)
const every = Number(flags.every)
const threads = Number(flags.threads ?? availableParallelism())
const here = import.meta.dirname
const list = (names) => names.split(',').filter((name) => name !== '')
const work = flags.work === undefined ? mkdtempSync(join(tmpdir(), 'canopy-training-')) : resolve(flags.work)
mkdirSync(work, { recursive: true })
const log = (line) => console.error(line)

const machine = describeMachine()
log(machineText(machine))

// What everybody trains on, and from.
const profile = await readEncoder(flags.encoder)
const total = warm + steps
const settings = await resolveSettings(undefined, {
  steps: until === undefined ? total : steps,
  validationShare: until === undefined ? 0 : 0.1,
  evaluateEvery: until === undefined ? total : every,
  checkpointEvery: 1000,
  schedule: 'constant',
  warmup: 0,
  batchSize: Number(flags['batch-size']),
  threads,
  seed: Number(flags.seed),
  ...(flags['token-budget'] === undefined ? {} : { tokenBudget: Number(flags['token-budget']) }),
})
const files = await prepareData(resolve(flags.data), work)
const training = await openTraining({ files, profile, settings, threads, work })
const texts = []
for (let step = 1; step <= settings.steps; step++) texts.push(await training.texts(step))
const pairs = texts.reduce((sum, step) => sum + step.pairs.length, 0)
const targets = selectTargets(linearModules(profile), defaultTargets(profile)).map((module) => ({
  ...module,
  rank: settings.rank,
  alpha: settings.alpha,
}))
const start = { targets, tensors: initialLora(targets, `${settings.seed}/lora`), baseFingerprint: profile.fingerprint }
const startFolder = join(work, 'start')
rmSync(startFolder, { recursive: true, force: true })
await writeAdapter(startFolder, start, profile)

/** Steps that the peers take at most: where a level is to be reached, half as many again as this engine needed. */
let most = settings.steps
function onResult({ name }, { steps: done, validations }) {
  if (until === undefined || name !== 'packed' || !(validations.at(-1).decision_accuracy >= until)) return
  most = Math.min(most, every * Math.ceil((1.5 * done.length) / every))
}

const ours = (name, label, encoder, padded) => ({
  name,
  label,
  encoder,
  command: process.execPath,
  script: join(here, 'training/ours.mjs'),
  request: () => ({
    encoder,
    queryEncoder: resolve(flags.encoder),
    datasets: files.map(({ folder }) => folder),
    preferences: files.map(({ preferences }) => preferences),
    settings,
    padded,
    until,
  }),
})
const peer = (name, label, script, request) => ({
  name,
  label,
  command: flags.python,
  script: join(here, 'peers', script),
  request: () => ({
    model: resolve(flags.encoder),
    adapter: startFolder,
    queries: training.queryFile,
    steps: texts.slice(0, most),
    tau: settings.tau,
    learningRate: settings.learningRate,
    weightDecay: settings.weightDecay,
    betas: settings.betas,
    epsilon: settings.epsilon,
    clipNorm: settings.clipNorm,
    threads,
    seed: settings.seed,
    warm,
    limitSeconds: Number(flags.limit ?? (until === undefined ? 25 : 150)),
    checkpointEvery: until === undefined ? 0 : every,
    subBatchTokens: Number(flags['sub-batch']),
    tripletBatch: Number(flags['triplet-batch']),
    accumulate: Math.max(1, Math.round(pairs / settings.steps / Number(flags['triplet-batch']))),
    ...request,
  }),
})
/** An export that cannot be read is a contestant that fails. */
const imported = async (folder) => {
  const padded = await readEncoder(folder)
    .then(training.computed)
    .catch(() => undefined)
  return ours(basename(folder), `this engine, ONNX ${basename(folder)}`, resolve(folder), padded)
}
const everyone = [
  ours('packed', 'this engine, checkpoint', resolve(flags.encoder), await training.computed(profile)),
  ...(await Promise.all(list(flags.onnx).map(imported))),
  peer('nodes', 'torch + PEFT, nodes once', 'train_nodes.py', { autocast: false }),
  peer('length', 'sentence-transformers, by length', 'train_triplets.py', { order: 'length', merge: false }),
  peer('random', 'sentence-transformers, as it comes', 'train_triplets.py', { order: 'random', merge: true }),
  peer('nodes-bf16', 'torch + PEFT, nodes once, bf16', 'train_nodes.py', { autocast: true }),
]
const chosen = flags.contestants === undefined ? everyone.map(({ name }) => name) : list(flags.contestants)
const runs = join(work, until === undefined ? 'speed' : 'until')
rmSync(runs, { recursive: true, force: true })
log(
  `${settings.steps} steps, ${(pairs / settings.steps).toFixed(0)} pairs a step, ${threads} threads, ${rounds} rounds`,
)
const finished = await alternate(
  everyone.filter(({ name }) => chosen.includes(name)),
  { rounds, folder: runs, log, onResult },
)

/** How an adapter does on some instances, judged by this project's own validation. */
async function judge(encoder, adapterFolder, instances) {
  const judged = await readEncoder(encoder)
  const embedder = await openEmbedder(judged, {
    threads,
    ...(adapterFolder === undefined ? {} : { adapter: await readAdapter(adapterFolder, judged) }),
  })
  try {
    return await validate({
      set: training.set,
      instances,
      engine: { embed: (sequences) => embedder.embedSequences(sequences) },
      tensors: new Map(),
      queries: training.queries,
      dimension: training.dimension,
      encode: training.encode,
      rendering: settings,
      loss: settings,
      weighting: settings,
    })
  } finally {
    await embedder.close()
  }
}

const fixed = (value, digits) => (Number.isFinite(value) ? value.toFixed(digits) : '–')
const gibibytes = (bytes) => fixed(bytes / 2 ** 30, 2)
const report = until === undefined ? await speedReport() : await untilReport()
console.log(`${machineText(machine)}\n\n${report.text}`)
if (flags.json !== undefined)
  writeFileSync(flags.json, `${JSON.stringify({ machine, settings, flags, ...report.data }, null, 2)}\n`)
await training.close()
if (flags.work === undefined) rmSync(work, { recursive: true })
process.exitCode = finished.every(({ error }) => error === undefined) ? 0 : 1

async function speedReport() {
  const probe = training.instances(settings.steps + 1, settings.steps + 4)
  const frozen = await judge(flags.encoder, undefined, probe)
  const rows = []
  for (const { name, label, encoder, results, error } of finished) {
    const row = { name, label, error, rounds: results.map(speedOf) }
    const last = results.at(-1)
    if (last !== undefined) {
      row.losses = last.steps.map(({ loss }) => loss)
      row.versions = last.versions
      const complete = last.steps.length === settings.steps
      if (complete)
        row.after = await judge(encoder ?? flags.encoder, last.adapter ?? join(last.output, 'adapter'), probe)
    }
    rows.push(row)
  }
  const [first] = rows
  const column = (row, key) => row.rounds.map((round) => round[key])
  const middle = (row, key) => median(column(row, key))
  for (const row of rows) {
    row.ratio = medianRatio(column(first, 'pairsPerSecond'), column(row, 'pairsPerSecond'))
    row.median = Object.fromEntries(Object.keys(row.rounds[0] ?? {}).map((key) => [key, middle(row, key)]))
    if (row.losses && first.losses && !['length', 'random'].includes(row.name))
      row.lossDifference = Math.max(...row.losses.map((loss, i) => Math.abs(loss - first.losses[i])))
  }
  const table = markdownTable(
    [
      'contestant',
      'pairs/s',
      `${first.name} ÷ it`,
      'tokens/s',
      'with padding',
      'tokens/pair',
      'with padding',
      'peak memory GiB',
      'largest loss difference',
      'loss after',
    ],
    rows.map(({ label, error, rounds: measured, ratio, median: m, lossDifference, after }) => [
      label,
      error === undefined
        ? `${fixed(m.pairsPerSecond, 1)} (${fixed(Math.min(...measured.map((r) => r.pairsPerSecond)), 1)}–${fixed(Math.max(...measured.map((r) => r.pairsPerSecond)), 1)})`
        : 'failed',
      fixed(ratio, 2),
      fixed(m.tokensPerSecond, 0),
      fixed(m.paddedPerSecond, 0),
      fixed(m.tokensPerPair, 1),
      fixed(m.paddedPerPair, 1),
      gibibytes(m.memory),
      lossDifference === undefined ? '–' : lossDifference.toExponential(1),
      fixed(after?.loss, 4),
    ]),
  )
  const notes = [
    `Medians of ${rounds} rounds (smallest–largest), ratios round by round; ${steps} steps after ${warm} that don't count, fewer where a peer's time was over (--limit).`,
    `Loss difference: from ${first.name}, over the same steps. Loss after: on the ${probe.length} instances of the next four batches; frozen ${frozen.loss.toFixed(4)}.`,
  ]
  return { text: `${table}\n\n${notes.join('\n')}`, data: { frozen, contestants: rows } }
}

/** Rates over the steps that count. */
function speedOf({ steps: all, memory }) {
  const counted = all.slice(warm)
  const sum = (key) => counted.reduce((n, step) => n + (step[key] ?? Number.NaN), 0)
  const seconds = all.at(-1).seconds - all[warm - 1].seconds
  return {
    steps: counted.length,
    seconds,
    pairsPerSecond: sum('pairs') / seconds,
    tokensPerSecond: sum('tokens') / seconds,
    paddedPerSecond: sum('padded') / seconds,
    tokensPerPair: sum('tokens') / sum('pairs'),
    paddedPerPair: sum('padded') / sum('pairs'),
    memory,
  }
}

async function untilReport() {
  const frozen = await judge(flags.encoder, undefined, training.split.validation)
  const rows = []
  for (const { name, label, results, error } of finished) {
    const row = { name, label, error, rounds: [] }
    for (const result of results) row.rounds.push(await reached(result))
    rows.push(row)
  }
  const [first] = rows
  for (const row of rows)
    row.ratio = medianRatio(
      row.rounds.map((round) => round.seconds),
      first.rounds.map((round) => round.seconds),
    )
  const table = markdownTable(
    ['contestant', 'seconds', `÷ ${first.name}`, 'steps', 'pairs', 'accuracy there', 'accuracies by step'],
    rows.map(({ label, error, rounds: measured, ratio }) => {
      const { history = [] } = measured.at(-1) ?? {}
      const last = history.at(-1)
      const got = last?.decision_accuracy >= until
      return [
        label,
        error !== undefined
          ? 'failed'
          : got
            ? fixed(median(measured.map((r) => r.seconds)), 1)
            : `not in ${fixed(last?.seconds, 0)}`,
        fixed(ratio, 2),
        String(last?.step ?? '–'),
        String(last?.pairs ?? '–'),
        fixed(100 * last?.decision_accuracy, 1),
        history.map((at) => fixed(100 * at.decision_accuracy, 1)).join(' '),
      ]
    }),
  )
  const decisions = `${frozen.decisions} decision nodes of ${training.split.validation.length} held-out instances`
  const note = `Until ${100 * until} % of ${decisions}, looked at every ${every} steps; frozen ${(100 * frozen.decision_accuracy).toFixed(1)} %.`
  return { text: `${table}\n\n${note}`, data: { until, frozen, contestants: rows } }
}

/** The adapters of a run one after the other, up to the first that is good enough. */
async function reached({ steps: all, validations, output }) {
  const history = []
  const at = (step) => ({
    step,
    pairs: all.slice(0, step).reduce((n, s) => n + s.pairs, 0),
    seconds: all[step - 1].seconds,
  })
  for (let step = every; step <= all.length; step += every) {
    const own = validations?.find((v) => v.step === step)
    const metrics = own ?? (await judge(flags.encoder, join(output, `step-${step}`), training.split.validation))
    history.push({ ...at(step), decision_accuracy: metrics.decision_accuracy, loss: metrics.loss })
    if (metrics.decision_accuracy >= until) return { ...history.at(-1), history }
  }
  return { seconds: Number.NaN, history }
}
