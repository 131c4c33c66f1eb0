// One training step of an encoder with LoRA on all its linear maps, in every precision on every device: loss and gradients against
// float32 on the CPU, the nodes that ran on the device, seconds. Precisions that a device has no kernels of are emulated on the CPU
// by rounding, and so say what they do to the numbers, not how fast they are.
//
//   node bench/devices.mjs --encoder models/all-MiniLM-L6-v2 [--device webgpu] [--nodes 16] [--length 32]
//
// On Linux without a graphics card, WebGPU runs on a software Vulkan driver such as SwiftShader's, named in VK_ICD_FILENAMES.
import { parseArgs } from 'node:util'
import { chosenModules, encoderModules, initialLora, readEncoder, textSequence } from '../dist/encoder/index.js'
import { placementText } from '../dist/onnx/index.js'
import { createRandom } from '../dist/support/random.js'
import { loraEncoder } from '../dist/train/engine/encoder.js'
import { openEngine } from '../dist/train/engine/engine.js'

const { values } = parseArgs({
  options: {
    encoder: { type: 'string' },
    device: { type: 'string', multiple: true, default: [] },
    nodes: { type: 'string', default: '16' },
    length: { type: 'string', default: '32' },
  },
})
if (values.encoder === undefined) throw new Error('Give --encoder.')
const [nodes, length] = [Number(values.nodes), Number(values.length)]

const profile = await readEncoder(values.encoder)
const targets = chosenModules(await encoderModules(profile), null).map(({ module, inputs, outputs }) => ({
  ...{ module, inputs, outputs },
  ...{ rank: 8, alpha: 16 },
}))
const random = createRandom('devices')
const tensors = initialLora(targets, 'devices')
// B starts at zero, which would leave A without a gradient.
for (const [name, data] of tensors)
  if (name.includes('lora_B')) for (let i = 0; i < data.length; i++) data[i] = 0.02 * random.normal()
const sequences = Array.from({ length: nodes }, () =>
  textSequence(
    Int32Array.from({ length: Math.ceil(length / 2) + random.int(Math.ceil(length / 2)) }, () => 1 + random.int(60)),
  ),
)
const pairs = sequences.map((_, i) => ({ preferred: i, other: (i + 1) % nodes, question: 0, weight: 1 / nodes }))
const queries = Float32Array.from({ length: profile.dimension }, () => random.normal())
const size = Math.hypot(...queries)
for (let i = 0; i < queries.length; i++) queries[i] /= size

async function measure(device, precision) {
  const encoder = await loraEncoder(profile, targets, 0, { update: precision === 'fp32' ? 'merged' : 'beside' })
  let placement
  const engine = await openEngine({
    ...{ encoder, queries: () => queries, tokenBudget: nodes * length, threads: undefined, device, precision },
    loss: { loss: 'logistic', tau: 0.05, margin: 0.1 },
    onPlacement: (found) => {
      placement ??= found
    },
  })
  if (precision === 'fp16') engine.lossScale = 2 ** 12
  try {
    await engine.onePass({ sequences, pairs }, tensors)
    const started = performance.now()
    const result = await engine.onePass({ sequences, pairs }, tensors)
    return { ...result, placement, seconds: (performance.now() - started) / 1000 }
  } finally {
    await engine.close()
  }
}

/** ‖a − b‖ / ‖b‖ over all tensors together. */
function difference(a, b) {
  let [above, below] = [0, 0]
  for (const [name, data] of b)
    data.forEach((x, i) => {
      above += (a.get(name)[i] - x) ** 2
      below += x ** 2
    })
  return Math.sqrt(above / below)
}

const exact = await measure('cpu', 'fp32')
console.log(`${nodes} nodes of ${length / 2} to ${length} tokens, ${profile.id}\n`)
console.log(
  '| device | precision | loss | gradients differ by | s a step | nodes on the CPU |\n|---|---|---|---|---|---|',
)
const row = (...cells) => console.log(`| ${cells.join(' | ')} |`)
row('cpu', 'fp32', exact.loss.toFixed(6), '–', exact.seconds.toFixed(2), 'all')
for (const [device, precision] of [
  ['cpu', 'bf16'],
  ['cpu', 'fp16'],
  ...values.device.flatMap((device) => [
    [device, 'fp32'],
    [device, 'fp16'],
    ...(device === 'cuda' ? [[device, 'bf16']] : []),
  ]),
]) {
  const name = device === 'cpu' ? `${precision} (emulated)` : precision
  const found = await measure(device, precision).catch((error) => error)
  if (found instanceof Error) {
    row(device, name, '–', '–', '–', found.message.split('\n')[0])
    continue
  }
  const error = difference(found.gradients, exact.gradients).toExponential(1)
  const seconds = device === 'cpu' ? '–' : found.seconds.toFixed(2)
  const onCpu = found.placement === undefined ? 'all' : (placementText(found.placement) ?? 'none')
  row(device, name, found.loss.toFixed(6), error, seconds, onCpu)
}
