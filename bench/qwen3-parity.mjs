// The language graph of Qwen3 and Qwen3-VL against transformers and PEFT, on models with random weights: hidden states and
// embeddings, with and without a LoRA adapter, and the gradient of every LoRA matrix; then tokens a second, forward and with the
// backward pass, beside PyTorch's and beside what matrix products of the model's own sizes reach here.
//
//   npm run build
//   node bench/qwen3-parity.mjs --python <python of bench/peers/requirements.txt> [--shapes small,0.6b,vl-2b] [--rounds 3]
//     [--repeat 3] [--batch 4] [--length 256] [--threads n] [--work folder] [--json]
//
// The models have few layers and small vocabularies, all else as the models they are named after. Sequences are equally long, so
// that neither side computes padding, and have nothing in common. Both sides take turns, a round each; of a round the shortest time
// counts. Ratios and shares are of processor time, which other work on the machine disturbs less (with --threads 1 the least).
// `--rounds 0` leaves the times out; a folder given as --work is kept, and models that are there are used again.
import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { availableParallelism, tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { addGradients } from '../dist/autodiff/index.js'
import {
  encoderGraph,
  loraShapes,
  openWeights,
  packedEncoder,
  readAdapter,
  readEncoder,
} from '../dist/encoder/index.js'
import { markdownTable } from '../dist/eval/index.js'
import { GraphBuilder, openSafetensors, openSession, prune } from '../dist/onnx/index.js'
import { createRandom } from '../dist/support/random.js'
import { median, medianRatio } from './support/alternate.mjs'
import { describeMachine, machineText } from './support/machine.mjs'

const HEADS = { num_attention_heads: 16, num_key_value_heads: 8, head_dim: 128 }
const SHAPES = {
  small: {
    ...{ vocab_size: 16000, hidden_size: 512, intermediate_size: 1536, num_hidden_layers: 8 },
    ...{ num_attention_heads: 8, num_key_value_heads: 4, head_dim: 64 },
  },
  // Qwen3-Embedding-0.6B, 6 of 28 layers
  '0.6b': {
    ...{ vocab_size: 16000, hidden_size: 1024, intermediate_size: 3072, num_hidden_layers: 6 },
    ...HEADS,
  },
  // Qwen3-VL-Embedding-2B, 4 of 28 layers
  'vl-2b': {
    ...{ vocab_size: 8000, hidden_size: 2048, intermediate_size: 6144, num_hidden_layers: 4 },
    ...HEADS,
    mrope_section: [24, 20, 20],
  },
}
const LENGTHS = [40, 200, 120, 90, 150]
const BOUNDS = { hidden: 1e-4, embedding: 1e-5, adapted: 1e-5, gradient: 1e-3 }

const { values: flags } = parseArgs({
  options: {
    python: { type: 'string', default: 'python3' },
    shapes: { type: 'string', default: Object.keys(SHAPES).join() },
    rounds: { type: 'string', default: '3' },
    repeat: { type: 'string', default: '3' },
    batch: { type: 'string', default: '4' },
    length: { type: 'string', default: '256' },
    threads: { type: 'string', default: String(availableParallelism()) },
    work: { type: 'string' },
    json: { type: 'boolean', default: false },
  },
})
const [rounds, repeat, batch, length, threads] = ['rounds', 'repeat', 'batch', 'length', 'threads'].map((name) =>
  Number(flags[name]),
)
const machine = describeMachine({ gigabytes: 12 })
const work = flags.work ?? mkdtempSync(join(tmpdir(), 'canopy-qwen3-'))

function python(request) {
  mkdirSync(request.output, { recursive: true })
  const file = join(request.output, 'request.json')
  writeFileSync(file, JSON.stringify(request))
  execFileSync(flags.python, [resolve(import.meta.dirname, 'peers/qwen3_reference.py'), file], {
    stdio: ['ignore', 'ignore', 'pipe'],
    env: { ...process.env, HF_HUB_OFFLINE: '1', TRANSFORMERS_VERBOSITY: 'error' },
  })
  return JSON.parse(readFileSync(join(request.output, 'result.json'), 'utf8'))
}

/** max |a − b| / max |b| */
function relativeError(a, b) {
  if (a.length !== b.length) return Number.POSITIVE_INFINITY
  let [difference, largest] = [0, 0]
  for (let i = 0; i < b.length; i++) {
    difference = Math.max(difference, Math.abs(a[i] - b[i]))
    largest = Math.max(largest, Math.abs(b[i]))
  }
  return difference / largest
}

/** 1 − cosine, in double precision */
function cosineDistance(a, b) {
  let [product, squaresA, squaresB] = [0, 0, 0]
  for (let i = 0; i < b.length; i++) {
    product += a[i] * b[i]
    squaresA += a[i] * a[i]
    squaresB += b[i] * b[i]
  }
  return 1 - product / Math.sqrt(squaresA * squaresB)
}

const float = (shape, data) => ({ dtype: 'float32', shape, data })

/** The sequences of a fixture and the store of their pictures' features. */
async function knownSequences(stored, hasPictures) {
  const blocks = new Map()
  const sequences = []
  for (let n = 0; n < LENGTHS.length; n++) {
    const ids = (await stored.read(`ids.${n}`)).data
    const sequence = { ids, ...(hasPictures && { positions: (await stored.read(`positions.${n}`)).data }) }
    if (stored.tensors.has(`features.${n}`)) {
      blocks.set(`picture ${n}`, await stored.readTensor(`features.${n}`))
      const [at] = (await stored.read(`at.${n}`)).data
      const rows = stored.tensors.get(`features.${n}`).shape[1]
      sequence.visuals = [{ at, length: rows, key: `picture ${n}` }]
    }
    sequences.push(sequence)
  }
  const features = { has: (key) => blocks.has(key), get: (key) => blocks.get(key) }
  return { sequences, visuals: { features } }
}

/** The graph with the gradients of the sum of `seed` ∘ embeddings. */
function differentiated(forward, names, width) {
  const g = GraphBuilder.from(forward)
  const seed = g.input('seed', 'float32', ['nodes', width])
  const { graph, gradients } = addGradients(g.build(), { embeddings: seed }, names)
  return { graph: prune({ ...graph, outputs: ['embeddings', ...gradients.values()] }), gradients }
}

async function parity(folder) {
  const profile = await readEncoder(join(folder, 'encoder'), { pooling: 'last', normalize: true })
  const { targets, tensors } = await readAdapter(join(folder, 'adapter'), profile)
  const stored = await openSafetensors(join(folder, 'expected.safetensors'))
  const { sequences, visuals } = await knownSequences(stored, profile.architecture === 'qwen3_vl')
  const width = profile.dimension
  const worst = {}
  const compare = (what, measure, ours, theirs) => {
    worst[what] = Math.max(worst[what] ?? 0, measure(ours, theirs))
  }

  const { weights, folder: externalFolder } = await openWeights(profile)
  const layout = await encoderGraph(profile, [], 0, { visuals })
  const states = await openSession(packedEncoder({ ...profile, normalize: false }, weights), {
    externalFolder,
    threads,
  })
  for (const [n, sequence] of sequences.entries()) {
    const last = Int32Array.from(sequence.ids, (_, i) => i)
    const feeds = { ...layout.feeds([sequence]), last: { dtype: 'int32', shape: [last.length], data: last } }
    const hidden = (await states.run(feeds)).embeddings.data
    compare('hidden', relativeError, hidden, await stored.readTensor(`hidden.${n}`))
    compare('embedding', cosineDistance, hidden.subarray(-width), await stored.readTensor(`embedding.${n}`))
  }
  await states.release()

  for (const update of ['merged', 'beside']) {
    const encoder = await encoderGraph(profile, targets, 0, { visuals, update })
    const { graph, gradients } = differentiated(encoder.graph, [...tensors.keys()], width)
    const session = await openSession(graph, { externalFolder, threads })
    const directions = new Float32Array(sequences.length * width)
    for (const n of sequences.keys()) directions.set(await stored.readTensor(`direction.${n}`), n * width)
    const found = await session.run({
      ...encoder.feeds(sequences),
      ...Object.fromEntries(loraShapes(targets).map(({ name, shape }) => [name, float(shape, tensors.get(name))])),
      seed: float([sequences.length, width], directions),
    })
    await session.release()
    for (const n of sequences.keys()) {
      const ours = found.embeddings.data.subarray(n * width, (n + 1) * width)
      compare('adapted', cosineDistance, ours, await stored.readTensor(`adapted.${n}`))
    }
    for (const name of tensors.keys()) {
      const theirs = await stored.readTensor(`gradient.${name}`)
      if (!theirs.some((x) => x !== 0)) throw new Error(`PyTorch's gradient of ${name} is 0`)
      compare('gradient', relativeError, found[gradients.get(name)].data, theirs)
    }
  }
  return { ...worst, matrices: tensors.size }
}

/** GFLOP/s of products of `tokens` rows with the model's matrices, one of each size after another, as sgemm is at its best. */
async function productPeak(tokens, maps) {
  const g = new GraphBuilder()
  const random = createRandom('peak')
  const feeds = {}
  const sums = maps.map(({ inputs, outputs }, i) => {
    const value = (name, shape) => {
      const data = Float32Array.from({ length: shape[0] * shape[1] }, () => random.next() - 0.5)
      feeds[`${name}${i}`] = float(shape, data)
      return g.input(`${name}${i}`, 'float32', shape)
    }
    const y = g.gemm(value('x', [tokens, inputs]), value('w', [outputs, inputs]), null, { transB: true })
    return g.reduceSum(y, [0, 1])
  })
  g.output(
    sums.reduce((a, b) => g.add(a, b)),
    'sum',
  )
  const session = await openSession(g.build(), { threads })
  const gflop = maps.reduce((sum, { inputs, outputs }) => sum + (2 * tokens * inputs * outputs) / 1e9, 0)
  return { run: () => session.run(feeds), gflop, close: () => session.release() }
}

/**
 * Floating-point operations of the linear maps and of attention: all of the tokens in all layers but the last, where only keys and
 * values are of all tokens. Backward the same products again for the gradients of activations, none in front of the first layer's
 * attention, and twice those of attention; products with LoRA's matrices are left out.
 */
function gflopOf(shape, sequences, tokens) {
  const { hidden_size: hidden, intermediate_size: wide, head_dim: size, num_hidden_layers: layers } = shape
  const [q, kv] = [shape.num_attention_heads * size, shape.num_key_value_heads * size]
  const keys = 2 * 2 * tokens * hidden * kv
  const rest = (count) => 2 * count * (2 * hidden * q + 3 * hidden * wide)
  const products = (count) => 4 * q * count * (tokens / sequences)
  const lastProducts = 4 * q * sequences * tokens
  const forward = (layers - 1) * (keys + rest(tokens) + products(tokens)) + keys + rest(sequences) + lastProducts
  const firstMaps = keys + 2 * tokens * hidden * q
  const backward = forward - firstMaps + (layers - 1) * products(tokens) + lastProducts
  return { forward: forward / 1e9, step: (forward + backward) / 1e9 }
}

/** Shortest time and shortest processor time of several runs, in seconds. */
async function shortest(run) {
  const [wall, processor] = [[], []]
  for (let i = 0; i < repeat; i++) {
    const [began, before] = [performance.now(), process.cpuUsage()]
    await run()
    const { user, system } = process.cpuUsage(before)
    wall.push((performance.now() - began) / 1000)
    processor.push((user + system) / 1e6)
  }
  return { wall: Math.min(...wall), processor: Math.min(...processor) }
}

async function speed(name, folder) {
  const profile = await readEncoder(join(folder, 'encoder'), { pooling: 'last', normalize: true })
  const { targets, tensors } = await readAdapter(join(folder, 'adapter'), profile)
  const random = createRandom('speed')
  const vocabulary = SHAPES[name].vocab_size
  const sequences = Array.from({ length: batch }, () => ({
    ids: Int32Array.from({ length }, () => Math.floor(random.next() * vocabulary)),
  }))
  const visuals = { features: undefined }
  const frozen = await encoderGraph(profile, [], 0, { visuals })
  const encoder = await encoderGraph(profile, targets, 0, { visuals })
  const { graph } = differentiated(encoder.graph, [...tensors.keys()], profile.dimension)
  const options = { externalFolder: encoder.externalFolder, threads }
  const [forward, step] = [await openSession(frozen.graph, options), await openSession(graph, options)]
  const feeds = frozen.feeds(sequences)
  const stepFeeds = {
    ...encoder.feeds(sequences),
    ...Object.fromEntries(loraShapes(targets).map(({ name, shape }) => [name, float(shape, tensors.get(name))])),
    seed: float([batch, profile.dimension], new Float32Array(batch * profile.dimension).fill(1)),
  }
  const maps = targets.slice(0, 6)
  const peak = await productPeak(batch * length, maps)
  const ours = { forward: () => forward.run(feeds), step: () => step.run(stepFeeds), peak: () => peak.run() }
  for (const run of Object.values(ours)) await run()
  const times = { forward: [], step: [], peak: [] }
  const theirs = { forward: [], step: [] }
  for (let round = 0; round < rounds; round++) {
    for (const what of Object.keys(ours)) times[what].push(await shortest(ours[what]))
    const request = { task: 'time', output: join(folder, `round-${round}`), encoder: join(folder, 'encoder') }
    const result = python({ ...request, threads, batch, length, repeat })
    for (const what of ['forward', 'step']) theirs[what].push(result[what])
  }
  for (const session of [forward, step]) await session.release()
  await peak.close()
  const gflop = gflopOf(SHAPES[name], batch, batch * length)
  const rate = (runs) => (batch * length) / median(runs.map(({ wall }) => wall))
  const processor = (runs) => runs.map((run) => run.processor)
  return ['forward', 'step'].map((what) => ({
    what,
    ours: rate(times[what]),
    theirs: rate(theirs[what]),
    ratio: medianRatio(processor(theirs[what]), processor(times[what])),
    gflopPerSecond: gflop[what] / median(processor(times[what])),
    share: medianRatio(
      processor(times.peak).map((seconds) => gflop[what] * seconds),
      processor(times[what]).map((seconds) => peak.gflop * seconds),
    ),
  }))
}

const results = []
for (const name of flags.shapes.split(',')) {
  if (SHAPES[name] === undefined) throw new Error(`No shape "${name}"; there are ${Object.keys(SHAPES).join(', ')}.`)
  const folder = join(work, name)
  if (!existsSync(join(folder, 'result.json')))
    python({ task: 'make', output: folder, shape: SHAPES[name], lengths: LENGTHS })
  const found = await parity(folder)
  for (const [what, bound] of Object.entries(BOUNDS))
    if (!(found[what] < bound)) {
      console.error(`${name}: ${what} is off by ${found[what]}`)
      process.exitCode = 1
    }
  results.push({ name, parity: found, speed: rounds > 0 ? await speed(name, folder) : [] })
}
if (flags.work === undefined) rmSync(work, { recursive: true })

if (flags.json) console.log(JSON.stringify({ machine, threads, batch, length, results }))
else {
  console.log(machineText(machine), '\n')
  const exponential = (x) => x.toExponential(1)
  console.log(
    markdownTable(
      [
        'model',
        'hidden states, relative error',
        'embeddings, 1 - cosine',
        'with LoRA',
        'LoRA gradients, relative error',
        'matrices',
      ],
      results.map(({ name, parity: p }) => [
        name,
        ...[p.hidden, p.embedding, p.adapted, p.gradient].map(exponential),
        String(p.matrices),
      ]),
    ),
  )
  if (rounds > 0) {
    console.log(`\n${batch} sequences of ${length} tokens, ${threads} threads, median of ${rounds} rounds\n`)
    console.log(
      markdownTable(
        ['model', 'run', 'tokens/s', 'PyTorch tokens/s', 'this ÷ PyTorch', 'share of the product peak'],
        results.flatMap(({ name, speed }) =>
          speed.map(({ what, ours, theirs, ratio, share }) => [
            name,
            what === 'step' ? 'forward and backward' : what,
            ours.toFixed(0),
            theirs.toFixed(0),
            ratio.toFixed(2),
            `${(100 * share).toFixed(0)} %`,
          ]),
        ),
      ),
    )
  }
}
