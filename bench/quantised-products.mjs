// The forms in which a linear map y = x Wᵀ can hold quantised weights: time, error and size of each, on the CPU.
//
//   npm run build
//   node bench/quantised-products.mjs [--inputs 2048] [--outputs 6144] [--tokens 16,512] [--threads 2] [--rounds 7]
//
// Weights and activations are normal random numbers; every 64th column of x is 20 times as large, as language models have them.
// Prints a table in Markdown.
import { parseArgs } from 'node:util'
import { encodeModel, GraphBuilder, openSession } from '../dist/onnx/index.js'
import { createRandom } from '../dist/support/random.js'

const { values: flags } = parseArgs({
  options: {
    inputs: { type: 'string', default: '2048' },
    outputs: { type: 'string', default: '6144' },
    tokens: { type: 'string', default: '16,512' },
    threads: { type: 'string', default: '2' },
    rounds: { type: 'string', default: '7' },
  },
})
const [inputs, outputs, threads, rounds] = [flags.inputs, flags.outputs, flags.threads, flags.rounds].map(Number)
const tokens = flags.tokens.split(',').map(Number)
const random = createRandom('quantised-products')
const normal = () => Math.sqrt(-2 * Math.log(1 - random.next())) * Math.cos(2 * Math.PI * random.next())
const weight = Float32Array.from({ length: outputs * inputs }, () => normal() / Math.sqrt(inputs))

/** Whole numbers in ±most and their scales, one scale for every run of `block` numbers. */
function quantise(values, block, most) {
  const q = new Int8Array(values.length)
  const scales = new Float32Array(Math.ceil(values.length / block))
  for (let b = 0; b < scales.length; b++) {
    let largest = 0
    const end = Math.min(values.length, (b + 1) * block)
    for (let i = b * block; i < end; i++) largest = Math.max(largest, Math.abs(values[i]))
    scales[b] = largest / most || 1
    for (let i = b * block; i < end; i++) q[i] = Math.round(values[i] / scales[b])
  }
  return { q, scales }
}

/** Bytes of MatMulNBits' B: unsigned numbers around 2^(bits - 1), two of 4 bits to a byte, the first in its lower half. */
function packed({ q }, bits) {
  if (bits === 8) return Uint8Array.from(q, (v) => v + 128)
  return Uint8Array.from({ length: q.length / 2 }, (_, i) => (q[2 * i] + 8) | ((q[2 * i + 1] + 8) << 4))
}

const nBits = (bits, block, accuracy) => (g, x) => {
  const made = quantise(weight, block, bits === 4 ? 7 : 127)
  const blocks = inputs / block
  const b = g.initializer('b', {
    dtype: 'uint8',
    shape: [outputs, blocks, (block * bits) / 8],
    data: packed(made, bits),
  })
  const scales = g.initializer('scales', { dtype: 'float32', shape: [outputs, blocks], data: made.scales })
  const attributes = { K: inputs, N: outputs, bits, block_size: block, accuracy_level: accuracy }
  return g.one('MatMulNBits', [x, b, scales], {
    domain: 'com.microsoft',
    attributes: Object.fromEntries(Object.entries(attributes).map(([name, i]) => [name, { i }])),
    types: [{ dtype: 'float32', shape: ['tokens', outputs] }],
  })
}

const perChannel = (g) => {
  const { q, scales } = quantise(weight, inputs, 127)
  return {
    q: g.initializer('q', { dtype: 'int8', shape: [outputs, inputs], data: q }),
    scales: g.initializer('scales', { dtype: 'float32', shape: [outputs], data: scales }),
  }
}

const forms = {
  'Gemm, float32': (g, x) =>
    g.gemm(x, g.initializer('w', { dtype: 'float32', shape: [outputs, inputs], data: weight }), null, { transB: true }),
  'DequantizeLinear by row + Gemm, int8': (g, x) => {
    const { q, scales } = perChannel(g)
    return g.gemm(x, g.one('DequantizeLinear', [q, scales], { attributes: { axis: { i: 0 } } }), null, { transB: true })
  },
  'Cast + Gemm + Mul by row, int8': (g, x) => {
    const { q, scales } = perChannel(g)
    return g.mul(g.gemm(x, g.cast(q, 'float32'), null, { transB: true }), scales)
  },
  'DynamicQuantizeLinear + MatMulInteger, int8': (g, x) => {
    const { q, scales } = quantise(weight, inputs, 127)
    const turned = new Int8Array(q.length)
    for (let o = 0; o < outputs; o++) for (let i = 0; i < inputs; i++) turned[i * outputs + o] = q[o * inputs + i]
    const b = g.initializer('b', { dtype: 'int8', shape: [inputs, outputs], data: turned })
    const [xq, xs, xz] = g.node('DynamicQuantizeLinear', [x], {
      outputs: 3,
      types: [
        { dtype: 'uint8', shape: ['tokens', inputs] },
        { dtype: 'float32', shape: [] },
        { dtype: 'uint8', shape: [] },
      ],
    })
    const y = g.one('MatMulInteger', [xq, b, xz], { types: [{ dtype: 'int32', shape: ['tokens', outputs] }] })
    const factor = g.mul(xs, g.initializer('scales', { dtype: 'float32', shape: [outputs], data: scales }))
    return g.mul(g.cast(y, 'float32'), factor)
  },
  'MatMulNBits 8 bits, blocks of 32, float32': nBits(8, 32, 1),
  'MatMulNBits 8 bits, blocks of 32, int8': nBits(8, 32, 4),
  'MatMulNBits 8 bits, blocks of 128, int8': nBits(8, 128, 4),
  'MatMulNBits 4 bits, blocks of 32, float32': nBits(4, 32, 1),
  'MatMulNBits 4 bits, blocks of 32, int8': nBits(4, 32, 4),
}

const xs = tokens.map((n) =>
  Float32Array.from({ length: n * inputs }, (_, i) => normal() * ((i % inputs) % 64 === 0 ? 20 : 1)),
)
const median = (values) => values.sort((a, b) => a - b)[values.length >> 1]
console.log(`| form | MB | ${tokens.map((n) => `${n} tokens, ms`).join(' | ')} | error |`)
console.log(`|---|---:|${tokens.map(() => '---:|').join('')}---:|`)
let exact
for (const [name, build] of Object.entries(forms)) {
  const g = new GraphBuilder(17)
  g.output(build(g, g.input('x', 'float32', ['tokens', inputs])), 'y')
  const graph = g.build()
  let bytes = 0
  for (const { data } of graph.initializers.values()) bytes += data.byteLength
  const session = await openSession(encodeModel(graph), { threads })
  const times = []
  let y
  for (const [i, n] of tokens.entries()) {
    const feeds = { x: { dtype: 'float32', shape: [n, inputs], data: xs[i] } }
    await session.run(feeds)
    const took = []
    for (let round = 0; round < rounds; round++) {
      const begin = performance.now()
      y = (await session.run(feeds)).y.data
      took.push(performance.now() - begin)
    }
    times.push(median(took))
  }
  await session.release()
  exact ??= y
  let [wrong, all] = [0, 0]
  for (let i = 0; i < y.length; i++) {
    wrong += (y[i] - exact[i]) ** 2
    all += exact[i] ** 2
  }
  const figures = times.map((t) => t.toFixed(1)).join(' | ')
  console.log(
    `| ${name} | ${(bytes / 1e6).toFixed(1)} | ${figures} | ${((100 * wrong ** 0.5) / all ** 0.5).toFixed(2)} % |`,
  )
}
