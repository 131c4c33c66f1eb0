// Where a training step's time goes, and how far from the machine's matrix-multiply peak it is.
//
//   npm run build
//   node bench/profile.mjs --encoder <checkpoint or ONNX folder> [--tokens 1024] [--threads n] [--rounds 9] [--rank 16] [--top 0] [--json]
//
// A step is one run of forward and backward over the nodes of binary trees (generated token ids) with LoRA on every linear map.
// ONNX Runtime's own profiler times each operator, and the times are summed by part. The peak is measured in the same process, in
// turn with the step: products of square matrices, and the step's own linear maps by themselves. Of all rounds the shortest time
// counts, which other work on the machine disturbs least.
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { availableParallelism, tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import * as ort from 'onnxruntime-node'
import { chosenModules, encoderModules, initialLora, loadTokenizer, loraB, readEncoder } from '../dist/encoder/index.js'
import { markdownTable } from '../dist/eval/index.js'
import { encodeModel, GraphBuilder, openSession } from '../dist/onnx/index.js'
import { createRandom } from '../dist/support/random.js'
import { loraEncoder } from '../dist/train/engine/encoder.js'
import { EMBEDDING_GRADIENT, trainingGraphs } from '../dist/train/engine/graph.js'
import { accumulate, adamWStep, globalNorm, initialAdamW, zerosLike } from '../dist/train/step/optimizer.js'
import { describeMachine, machineText } from './support/machine.mjs'
import { treeNodes } from './support/trees.mjs'

const number = { type: 'string' }
const { values: flags } = parseArgs({
  options: {
    encoder: { type: 'string' },
    tokens: { ...number, default: '1024' },
    threads: { ...number, default: String(availableParallelism()) },
    rounds: { ...number, default: '9' },
    rank: { ...number, default: '16' },
    top: { ...number, default: '0' },
    json: { type: 'boolean', default: false },
  },
})
if (flags.encoder === undefined) throw new Error('Give --encoder.')
const [threads, rounds, rank] = [flags.threads, flags.rounds, flags.rank].map(Number)

const profile = await readEncoder(flags.encoder)
const { padId } = await loadTokenizer(profile)
const targets = chosenModules(await encoderModules(profile), ['all-linear']).map((module) => ({
  ...module,
  rank,
  alpha: 2 * rank,
}))
const encoder = await loraEncoder(profile, targets, padId)
const sequences = treeNodes(Number(flags.tokens), { vocabulary: 1000 + Number(profile.config.vocab_size ?? 30000) / 2 })
const tensors = initialLora(targets, 'profile')
const random = createRandom('profile')
const normal = (size, scale = 1) => Float32Array.from({ length: size }, () => scale * random.normal())
for (const { module, outputs } of targets) tensors.set(loraB(module), normal(outputs * rank, 0.02))

const unknownLoss = undefined
const { embed, pullBack } = trainingGraphs(encoder.graph, [...tensors.keys()], unknownLoss, encoder.unitLength)
const { graph } = pullBack
const makeFeeds = () => ({
  ...encoder.feeds(sequences),
  ...Object.fromEntries(
    [...encoder.trainable].map(([name, shape]) => [name, { dtype: 'float32', shape, data: tensors.get(name) }]),
  ),
})
const all = {
  ...makeFeeds(),
  [EMBEDDING_GRADIENT]: {
    dtype: 'float32',
    shape: [sequences.length, profile.dimension],
    data: normal(sequences.length * profile.dimension, 1e-2),
  },
}
const feeds = Object.fromEntries(graph.inputs.map((name) => [name, all[name]]))
const options = { threads, ...(encoder.externalFolder === undefined ? {} : { externalFolder: encoder.externalFolder }) }

/** The training graph with ONNX Runtime's profiler on, otherwise as `openSession` opens it. */
async function profiledSession() {
  const folder = mkdtempSync(join(tmpdir(), 'canopy-profile-'))
  const session = await ort.InferenceSession.create(encodeModel(graph), {
    executionProviders: ['cpu'],
    graphOptimizationLevel: 'all',
    executionMode: 'sequential',
    interOpNumThreads: 1,
    intraOpNumThreads: threads,
    enableMemPattern: false,
    logSeverityLevel: 4,
    enableProfiling: true,
    profileFilePrefix: join(folder, 'profile'),
    extra: {
      session: {
        intra_op: { allow_spinning: '0' },
        disable_quant_qdq: '1',
        disable_prepacking: '1',
        ...(encoder.externalFolder === undefined
          ? {}
          : { model_external_initializers_file_folder_path: encoder.externalFolder }),
      },
    },
  })
  const native = Object.fromEntries(
    Object.entries(feeds).map(([name, { dtype, data, shape }]) => [name, new ort.Tensor(dtype, data, shape)]),
  )
  return {
    run: () => session.run(native),
    async close() {
      session.endProfiling()
      await session.release()
      const events = JSON.parse(readFileSync(join(folder, readdirSync(folder)[0]), 'utf8'))
      rmSync(folder, { recursive: true })
      return events
    },
  }
}

/** A chain of products of `[rows, k]` with `[k, n]` (and back to k columns where n differs), as sgemm is at its best here. */
async function productSession(rows, k, n) {
  const g = new GraphBuilder()
  const x = g.input('x', 'float32', [rows, k])
  const there = g.input('there', 'float32', [k, n])
  const back = g.input('back', 'float32', [n, k])
  const chain = 3
  let y = x
  for (let i = 0; i < chain; i++) y = g.gemm(g.gemm(y, there), back)
  g.output(g.reduceSum(y, [0, 1]), 'sum')
  const session = await openSession(g.build(), { threads })
  const matrix = (...shape) => ({ dtype: 'float32', shape, data: normal(shape[0] * shape[1], 1 / Math.sqrt(shape[0])) })
  const input = { x: matrix(rows, k), there: matrix(k, n), back: matrix(n, k) }
  return { run: () => session.run(input), gflop: (chain * 4 * rows * k * n) / 1e9, close: () => session.release() }
}

const sizes = Object.values(all.input_ids.shape)
const computed = sizes[0] * sizes[1]
const shapes = [...new Set(targets.map(({ inputs, outputs }) => [inputs, outputs].sort((a, b) => a - b).join('x')))]
const step = await openSession(graph, options)
const forward = await openSession(embed, options)
const forwardFeeds = Object.fromEntries(embed.inputs.map((name) => [name, all[name]]))
const profiled = await profiledSession()
const square = await productSession(1536, 1536, 1536)
const products = await Promise.all(shapes.map((shape) => productSession(computed, ...shape.split('x').map(Number))))
const contestants = { step, forward, profiled, square }
const times = Object.fromEntries([...Object.keys(contestants), ...shapes].map((name) => [name, []]))
const processorTimes = Object.fromEntries(Object.keys(times).map((name) => [name, []]))
for (let round = -1; round < rounds; round++) {
  const runs = { ...contestants, ...Object.fromEntries(shapes.map((shape, i) => [shape, products[i]])) }
  for (const [name, { run }] of Object.entries(runs)) {
    const [began, before] = [performance.now(), process.cpuUsage()]
    await run(name === 'step' ? feeds : forwardFeeds)
    const { user, system } = process.cpuUsage(before)
    if (round < 0) continue
    times[name].push(performance.now() - began)
    processorTimes[name].push((user + system) / 1000)
  }
}
const events = (await profiled.close()).filter(({ cat, name }) => cat === 'Node' && name.endsWith('_kernel_time'))
for (const { close } of [square, ...products]) await close()
for (const session of [step, forward]) await session.release()

// Operators of the profiled runs, the first of which warmed up: their shortest time, sizes and floating-point operations.
const forwardNames = new Set(embed.nodes.map(({ name }) => name))
const operators = new Map()
for (const { name, dur, args } of events) {
  const node = name.slice(0, -'_kernel_time'.length)
  const known = operators.get(node) ?? { node, op: args.op_name, durations: [], ...measures(args) }
  known.durations.push(dur / 1000)
  operators.set(node, known)
}

/** Shapes of an operator's inputs, and 2·M·N·K operations of a product. */
function measures({ op_name: op, input_type_shape: types, output_type_shape: outputs }) {
  const shapeOf = (type) => Object.values(type)[0]
  const [a, b] = types.map(shapeOf)
  if (!['Gemm', 'MatMul', 'FusedMatMul'].includes(op)) return { shapes: types.map(shapeOf), gflop: 0 }
  const out = shapeOf(outputs[0])
  const size = (shape) => shape.reduce((product, d) => product * d, 1)
  const inner = size(b) / size(b.slice(0, -2)) / out.at(-1)
  return { shapes: [a, b], inner, out, gflop: (2 * size(out) * inner) / 1e9 }
}

/** What an operator is there for; products by what they multiply, everything else by its kind. */
function partOf({ op, out, inner, shapes: [a, b] }) {
  if (out !== undefined) {
    if ([...out, inner].includes(rank)) return 'LoRA products'
    return b.length > 2 ? 'attention products' : 'linear maps'
  }
  if (op === 'Softmax' || (a?.length === 4 && op !== 'Transpose' && op !== 'Reshape')) return 'attention, elementwise'
  if (['Transpose', 'Reshape', 'Concat', 'Split', 'Slice', 'Gather', 'Expand'].includes(op)) return 'layout'
  return op.endsWith('Normalization') ? 'normalisation' : 'elementwise and reductions'
}

const rows = new Map()
const kinds = new Map()
let kernels = 0
let gflop = 0
for (const operator of operators.values()) {
  const milliseconds = Math.min(...operator.durations.slice(1))
  const direction = forwardNames.has(operator.node) ? 'forward' : 'backward'
  for (const [map, key] of [
    [rows, partOf(operator)],
    [kinds, operator.op],
  ]) {
    const row = map.get(key) ?? { part: key, forward: 0, backward: 0, gflop: 0, operators: 0 }
    row[direction] += milliseconds
    row.gflop += operator.gflop
    row.operators++
    map.set(key, row)
  }
  operator.milliseconds = milliseconds
  kernels += milliseconds
  gflop += operator.gflop
}

// What a step costs outside of the graph.
const gradients = new Map([...tensors].map(([name, data]) => [name, normal(data.length, 1e-3)]))
const optimizer = { state: initialAdamW(tensors), settings: { weightDecay: 0.01, betas: [0.9, 0.999], epsilon: 1e-8 } }
const outside = {
  'packing and feeds, a run': makeFeeds,
  'sum of gradients, a run': () => accumulate(zerosLike(tensors), gradients),
  'norm and AdamW, a step': () => {
    globalNorm(gradients)
    adamWStep(tensors, gradients, optimizer.state, 1e-6, optimizer.settings)
  },
}
const outsideTimes = Object.entries(outside).map(([name, act]) => {
  const taken = Array.from({ length: rounds + 3 }, () => {
    const began = performance.now()
    act()
    return performance.now() - began
  })
  return { name, milliseconds: Math.min(...taken.slice(3)) }
})

const best = (name) => Math.min(...times[name])
const stepTime = best('step')
const rate = gflop / (stepTime / 1000)
const peak = square.gflop / (best('square') / 1000)
const result = {
  machine: describeMachine(),
  encoder: profile.id,
  threads,
  tokens: sequences.reduce((sum, { ids }) => sum + ids.length, 0),
  computed,
  rows: sizes,
  step: {
    milliseconds: stepTime,
    forwardMilliseconds: best('forward'),
    tokensPerSecond: computed / (stepTime / 1000),
    gflop,
    gflopPerSecond: rate,
    shareOfPeak: rate / peak,
    shareByProcessorTime:
      gflop / Math.min(...processorTimes.step) / (square.gflop / Math.min(...processorTimes.square)),
  },
  peak,
  shapes: shapes.map((shape, i) => ({
    shape,
    gflopPerSecond: products[i].gflop / (best(shape) / 1000),
  })),
  parts: [...rows.values()].sort((a, b) => b.forward + b.backward - a.forward - a.backward),
  kinds: [...kinds.values()].sort((a, b) => b.forward + b.backward - a.forward - a.backward),
  kernels,
  outside: outsideTimes,
}

if (flags.json) console.log(JSON.stringify(result, null, 2))
else {
  const ms = (value) => value.toFixed(1)
  const share = (value) => `${((100 * value) / kernels).toFixed(1)} %`
  const table = (title, list) =>
    markdownTable(
      [title, 'operators', 'forward ms', 'backward ms', 'share', 'GFLOP/s'],
      list.map(({ part, forward: f, backward: b, gflop: work, operators: count }) => [
        part,
        String(count),
        ms(f),
        ms(b),
        share(f + b),
        work === 0 ? '' : (work / ((f + b) / 1000)).toFixed(0),
      ]),
    )
  console.log(`${machineText(result.machine)}, ${threads} threads\n`)
  console.log(
    `${profile.id}, LoRA rank ${rank} on ${targets.length} maps; ${sequences.length} nodes, ${result.tokens} tokens, ${computed} computed in rows of ${sizes.join(' x ')}\n`,
  )
  console.log(
    `A step (forward and backward) takes ${ms(stepTime)} ms, the forward pass alone ${ms(result.step.forwardMilliseconds)} ms: ` +
      `${Math.round(result.step.tokensPerSecond)} tokens/s. Its products are ${gflop.toFixed(1)} GFLOP, ${rate.toFixed(0)} GFLOP/s.\n` +
      `Matrix-multiply peak (1536 x 1536): ${peak.toFixed(0)} GFLOP/s; ${result.shapes.map(({ shape, gflopPerSecond }) => `${computed} x ${shape}: ${gflopPerSecond.toFixed(0)}`).join('; ')}.\n` +
      `The step runs at ${(100 * result.step.shareOfPeak).toFixed(0)} % of the peak; by processor time, which neither other work nor ` +
      `waiting for a thread counts into, at ${(100 * result.step.shareByProcessorTime).toFixed(0)} %.\n`,
  )
  console.log(`${table('part', result.parts)}\n\n${table('operator', result.kinds.slice(0, 16))}\n`)
  console.log(
    markdownTable(
      ['outside of the graph', 'ms', 'of a run'],
      outsideTimes.map(({ name, milliseconds }) => [
        name,
        ms(milliseconds),
        `${((100 * milliseconds) / stepTime).toFixed(1)} %`,
      ]),
    ),
  )
  const slowest = [...operators.values()].sort((a, b) => b.milliseconds - a.milliseconds).slice(0, Number(flags.top))
  for (const { node, op, shapes: list, milliseconds } of slowest)
    console.log(`${ms(milliseconds).padStart(8)} ms  ${op} ${list.map((shape) => shape.join('x')).join(', ')}  ${node}`)
}
