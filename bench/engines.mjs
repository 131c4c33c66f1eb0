// Training speed of the two engines on one encoder: forward and backward over the same tokens, the engines taking turns in one
// process, each on one thread (TensorFlow.js's wasm and cpu backends have no more), and how far their gradients are apart. Ratios
// are of processor time, which other work on the machine disturbs less.
//
//   npm run build
//   node bench/engines.mjs --encoder <MiniLM folder> [--tokens 512] [--rounds 3] [--backends wasm,cpu]
import { parseArgs } from 'node:util'
import {
  chosenModules,
  encoderModules,
  initialLora,
  loadTokenizer,
  readEncoder,
  textSequence,
} from '../dist/encoder/index.js'
import { createRandom } from '../dist/support/random.js'
import { loraEncoder } from '../dist/train/engine/encoder.js'
import { openEngine } from '../dist/train/engine/engine.js'
import { openTfjsEngine } from '../dist/train/engine/tfjs-engine.js'

const { values: flags } = parseArgs({
  options: {
    encoder: { type: 'string' },
    tokens: { type: 'string', default: '512' },
    rounds: { type: 'string', default: '3' },
    backends: { type: 'string', default: 'wasm,cpu' },
    json: { type: 'boolean', default: false },
  },
})
if (flags.encoder === undefined) throw new Error('Give --encoder.')

const profile = await readEncoder(flags.encoder)
const modules = chosenModules(await encoderModules(profile), null)
const targets = modules.map(({ module, inputs, outputs }) => ({ module, inputs, outputs, rank: 16, alpha: 32 }))
const { padId } = await loadTokenizer(profile)
const encoder = await loraEncoder(profile, targets, padId)
const random = createRandom('engines')
const tensors = initialLora(targets, 'engines')
for (const [name, data] of tensors) if (name.includes('lora_B')) data.set(Array.from(data, () => random.normal() / 50))

const LENGTH = 64
const sequences = Array.from({ length: Math.ceil(Number(flags.tokens) / LENGTH) }, () =>
  textSequence(Int32Array.from({ length: LENGTH }, () => 1000 + random.int(20000))),
)
const queries = Float32Array.from({ length: profile.dimension }, () => random.normal())
const length = Math.hypot(...queries)
queries.forEach((q, i) => {
  queries[i] = q / length
})
const pairs = sequences.slice(1).map((_, i) => ({
  preferred: i + 1,
  other: 0,
  question: 0,
  weight: 1 / (sequences.length - 1),
}))
const options = {
  encoder,
  queries: () => queries,
  loss: { loss: 'logistic', tau: 0.05, margin: 0.1 },
  tokenBudget: 1 << 20,
}
const engines = [['onnxruntime', await openEngine({ ...options, threads: 1 })]]
for (const backend of flags.backends.split(','))
  engines.push([`tfjs ${backend}`, await openTfjsEngine({ ...options, backend })])

const processorSeconds = () => {
  const { user, system } = process.cpuUsage()
  return (user + system) / 1e6
}
const rows = engines.map(([name]) => ({ engine: name, seconds: [], processor: [] }))
const results = []
for (let round = 0; round <= Number(flags.rounds); round++)
  for (const [i, [, engine]] of engines.entries()) {
    const [started, before] = [performance.now(), processorSeconds()]
    const result = await engine.onePass({ sequences, pairs }, tensors)
    // the first round warms up
    if (round === 0) results.push(result)
    else {
      rows[i].seconds.push((performance.now() - started) / 1000)
      rows[i].processor.push(processorSeconds() - before)
    }
  }
for (const [, engine] of engines) await engine.close()

const median = (values) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)]
const tokens = encoder.tokens(sequences)
const reference = results[0].gradients
for (const [i, row] of rows.entries()) {
  row.tokensPerSecond = tokens / median(row.seconds)
  row.tokensPerProcessorSecond = tokens / median(row.processor)
  row.ratio = row.tokensPerProcessorSecond / rows[0].tokensPerProcessorSecond
  row.gradientError = Math.max(
    ...[...reference].map(([name, theirs]) => {
      const ours = results[i].gradients.get(name)
      return Math.hypot(...theirs.map((x, k) => ours[k] - x)) / Math.hypot(...theirs)
    }),
  )
}
if (flags.json) console.log(JSON.stringify({ tokens, rows }, null, 2))
else {
  console.log(`${tokens} tokens a step, median of ${flags.rounds} rounds`)
  for (const { engine, tokensPerSecond, tokensPerProcessorSecond, ratio, gradientError } of rows)
    console.log(
      `${engine.padEnd(12)} ${tokensPerSecond.toFixed(1).padStart(8)} tokens/s` +
        `${tokensPerProcessorSecond.toFixed(1).padStart(8)} per processor second  ${ratio.toFixed(4)}x` +
        `  gradients differ by ${gradientError.toExponential(1)}`,
    )
}
