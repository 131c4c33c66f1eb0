// Parity with Python on a real checkpoint: embeddings and token ids against sentence-transformers; the gradient of every LoRA
// matrix against PyTorch + PEFT, for random A and B and again after 20 optimizer steps; the adapter in PEFT; the export in
// onnxruntime and in transformers.js.
//
//   npm run build
//   node bench/parity.mjs --encoder <MiniLM folder> --python <python of bench/peers/requirements.txt> --hotpotqa <official json>
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { importHotpotqa, openDataset } from '../dist/data/index.js'
import {
  canopySettings,
  initialLora,
  linearModules,
  loadTokenizer,
  loraB,
  openEmbedder,
  readAdapter,
  readEncoder,
  selectTargets,
  textSequence,
  writeAdapter,
} from '../dist/encoder/index.js'
import { exportEncoder } from '../dist/export/index.js'
import { openSafetensors } from '../dist/onnx/index.js'
import { buildPreferences } from '../dist/preferences/index.js'
import { createRandom } from '../dist/support/random.js'
import { assembleBatch, readInstance } from '../dist/train/data/instances.js'
import { openTrainingSet } from '../dist/train/data/training-set.js'
import { loraEncoder } from '../dist/train/engine/encoder.js'
import { openEngine } from '../dist/train/engine/engine.js'
import { resolveSettings, train } from '../dist/train/index.js'

const { values: flags } = parseArgs({
  options: {
    encoder: { type: 'string' },
    python: { type: 'string', default: 'python3' },
    hotpotqa: { type: 'string' },
    instances: { type: 'string', default: '24' },
    json: { type: 'boolean', default: false },
  },
})
if (flags.encoder === undefined || flags.hotpotqa === undefined) throw new Error('Give --encoder and --hotpotqa.')

const work = mkdtempSync(join(tmpdir(), 'canopy-parity-'))
const rows = []
const report = (check, value, bound, holds) => {
  rows.push({ check, value, bound, holds })
  if (!flags.json) console.log(`${holds ? 'ok  ' : 'FAIL'} ${check}: ${value} (${bound})`)
}

let calls = 0
async function python(what, request) {
  const file = join(work, `${what}-${calls++}`)
  writeFileSync(`${file}.in.json`, JSON.stringify(request))
  execFileSync(
    flags.python,
    [
      resolve(import.meta.dirname, 'peers/reference.py'),
      what,
      '--request',
      `${file}.in.json`,
      '--output',
      `${file}.safetensors`,
    ],
    { stdio: ['ignore', 'ignore', 'pipe'], env: { ...process.env, HF_HUB_OFFLINE: '1' } },
  )
  return file
}

const norm = (v) => Math.sqrt(v.reduce((sum, x) => sum + x * x, 0))
function worst(a, b, dimension) {
  let [cosine, difference] = [1, 0]
  for (let i = 0; i < a.length; i += dimension) {
    const [x, y] = [a.subarray(i, i + dimension), b.subarray(i, i + dimension)]
    cosine = Math.min(cosine, x.reduce((sum, v, k) => sum + v * y[k], 0) / (norm(x) * norm(y)))
    x.forEach((v, k) => {
      difference = Math.max(difference, Math.abs(v - y[k]))
    })
  }
  return { cosine, difference }
}
const reportRows = (check, ours, theirs, dimension) => {
  const { cosine, difference } = worst(ours, theirs, dimension)
  const text = `smallest cosine ${cosine.toFixed(9)}, largest difference ${difference.toExponential(1)}`
  report(check, text, 'cosine >= 0.99999', cosine >= 0.99999 && ours.length === theirs.length)
}

const profile = await readEncoder(flags.encoder)
const { dimension } = profile

// The data: 200 sentences, passages and over-long texts of the staged file.
await importHotpotqa({ inputs: [flags.hotpotqa], split: 'train', output: join(work, 'hotpotqa') })
const dataset = await openDataset(join(work, 'hotpotqa'))
const passages = []
for await (const { question } of dataset.questions('train')) {
  for (const { item } of question.gold) passages.push(await dataset.item(item))
  if (passages.length >= 300) break
}
const texts = [
  ...passages.slice(0, 80).map(({ text, sentences }) => text.slice(...sentences[0])),
  ...passages.slice(80, 160).map(({ title, text }) => `${title}\n${text}`),
  ...Array.from({ length: 40 }, (_, i) =>
    passages
      .slice(160 + i, 166 + i)
      .map(({ text }) => text)
      .join(' '),
  ),
]
const tokenizer = await loadTokenizer(profile)
const encoded = texts.map((text) => tokenizer.encode(profile.prompts.node + text))

const embedder = await openEmbedder(profile)
const frozen = await embedder.embedTexts(texts, 'node')
const file = await python('embed', { model: resolve(flags.encoder), texts })
const theirIds = JSON.parse(readFileSync(`${file}.json`, 'utf8')).ids
const equal = encoded.filter(
  ({ ids }, i) => ids.length === theirIds[i].length && ids.every((id, k) => id === theirIds[i][k]),
).length
report(
  `token ids, ${texts.length} texts, ${encoded.filter((e) => e.truncated).length} of them over-long`,
  `${equal} identical`,
  'all',
  equal === texts.length,
)
const read = async (path, name) => (await openSafetensors(`${path}.safetensors`)).readTensor(name)
reportRows('embeddings against sentence-transformers', frozen.embeddings, await read(file, 'embeddings'), dimension)

// Gradients over a batch of whole instances, in packed rows.
const preferences = join(work, 'preferences.jsonl')
await buildPreferences({ dataset, split: 'train', output: preferences, branching: 2 })
const set = await openTrainingSet([preferences], [dataset])
const asked = []
for await (const { number, text } of set.questions()) asked[number] = text
const { embeddings: queries } = await embedder.embedTexts(asked, 'query')
const querySequences = asked.map((text) => [...tokenizer.encode(profile.prompts.query + text).ids])

async function compareGradients(label, adapter, folder) {
  for (const loss of ['logistic', 'hinge']) {
    const settings = await resolveSettings(undefined, { loss })
    const trainable = await loraEncoder(profile, adapter.targets, tokenizer.padId)
    const engine = await openEngine({
      ...{ encoder: trainable, loss: settings, tokenBudget: 1 << 20, threads: 2 },
      queries: (question) => queries.subarray(question * dimension, (question + 1) * dimension),
    })
    // a limit of 64 tokens on every other instance, so that truncated nodes are among them
    const encode = (limit) => async (inputs) =>
      inputs.map(({ text }) => {
        const { ids, truncated } = tokenizer.encode(profile.prompts.node + text)
        return ids.length <= limit
          ? { sequence: textSequence(ids), truncated }
          : { sequence: textSequence(Int32Array.from([...ids.subarray(0, limit - 1), ids.at(-1)])), truncated: true }
      })
    const instances = []
    for (let n = 0; n < Number(flags.instances); n++)
      instances.push(await readInstance(set, n, encode(n % 2 ? 64 : Number.POSITIVE_INFINITY), settings))
    const { micro, truncatedNodes, pairs } = assembleBatch(
      instances,
      settings,
      set.benchmarks,
      trainable.tokens,
      1 << 20,
    )
    const [batch] = micro
    const ours = await engine.onePass(batch, adapter.tensors)
    await engine.close()
    const path = await python('gradients', {
      model: resolve(flags.encoder),
      adapter: folder,
      sequences: batch.sequences.map(({ ids }) => [...ids]),
      queries: querySequences,
      pairs: batch.pairs.map(({ question, preferred, other, weight }) => [question, preferred, other, weight]),
      loss,
      tau: settings.tau,
      margin: settings.margin,
    })
    let largest = 0
    for (const [name, gradient] of ours.gradients) {
      const theirs = await read(path, `base_model.model.${name}`)
      const difference = norm(gradient.map((x, k) => x - theirs[k])) / norm(theirs)
      largest = Math.max(largest, Number.isNaN(difference) ? Infinity : difference)
    }
    const theirLoss = (await read(path, 'loss'))[0]
    report(
      `gradients, ${label}, ${loss}: ${ours.gradients.size} LoRA matrices, ${pairs} pairs, ${truncatedNodes} truncated nodes`,
      `largest ‖g − g′‖ / ‖g′‖ ${largest.toExponential(1)}, loss ${ours.loss.toFixed(6)} and ${theirLoss.toFixed(6)}`,
      '<= 1e-3 each',
      largest <= 1e-3,
    )
  }
}

const targets = selectTargets(linearModules(profile), ['all-linear']).map((module) => ({
  ...module,
  rank: 8,
  alpha: 16,
}))
const tensors = initialLora(targets, 'parity')
const random = createRandom('parity/B')
for (const { module } of targets)
  tensors.set(
    loraB(module),
    tensors.get(loraB(module)).map(() => 0.02 * random.normal()),
  )
const randomAdapter = { targets, tensors, baseFingerprint: profile.fingerprint }
await writeAdapter(join(work, 'random'), randomAdapter, profile)
await compareGradients('random A and B', randomAdapter, join(work, 'random'))

const settings = await resolveSettings(undefined, { steps: 20, validationShare: 0 })
const options = {
  encoder: profile,
  queryEncoder: profile,
  datasets: [join(work, 'hotpotqa')],
  preferences: [preferences],
}
const { adapter: folder } = await train({ ...options, output: join(work, 'run'), settings })
const adapter = await readAdapter(folder, profile)
await compareGradients('after 20 steps', adapter, folder)

const tuned = await openEmbedder(profile, { adapter })
const ours = (await tuned.embedTexts(texts, 'node')).embeddings
const peft = await python('embed', { model: resolve(flags.encoder), adapter: folder, texts })
reportRows('embeddings with the adapter, against PEFT', ours, await read(peft, 'embeddings'), dimension)

const exported = join(work, 'export')
const canopy = canopySettings(profile, profile, { title: true, branching: 2 })
await exportEncoder({
  encoder: profile,
  adapter,
  queryEncoder: profile,
  settings: canopy,
  output: exported,
  version: 'parity',
})
const ort = await python('onnx', { model: exported, texts })
reportRows('exported folder in onnxruntime (Python)', ours, await read(ort, 'embeddings'), dimension)

// transformers.js itself cuts an over-long text behind its last special token, which the reference keeps: through the pipeline
// only texts within the limit are compared; over-long ones with the token ids that the reference gives them.
const { AutoModel, env, pipeline, Tensor } = await import('@huggingface/transformers')
env.allowRemoteModels = false
const local = { dtype: 'fp32', local_files_only: true }
const extract = await pipeline('feature-extraction', exported, local)
const whole = texts.map((_, i) => i).filter((i) => !encoded[i].truncated)
const parts = []
for (const i of whole) parts.push(...(await extract(texts[i], { pooling: profile.pooling, normalize: true })).data)
const pick = (indices) =>
  Float32Array.from(indices.flatMap((i) => [...ours.subarray(i * dimension, (i + 1) * dimension)]))
reportRows(
  `exported folder in transformers.js' pipeline, ${whole.length} texts`,
  pick(whole),
  Float32Array.from(parts),
  dimension,
)

const model = await AutoModel.from_pretrained(exported, local)
const cutRows = []
const over = texts.map((_, i) => i).filter((i) => encoded[i].truncated)
for (const i of over) {
  const ids = BigInt64Array.from(encoded[i].ids, BigInt)
  const tensor = (data) => new Tensor('int64', data, [1, ids.length])
  const feeds = {
    input_ids: tensor(ids),
    attention_mask: tensor(ids.map(() => 1n)),
    token_type_ids: tensor(ids.map(() => 0n)),
  }
  const { last_hidden_state: hidden } = await model(feeds)
  const mean = Float32Array.from({ length: dimension }, (_, k) => {
    let sum = 0
    for (let t = 0; t < ids.length; t++) sum += hidden.data[t * dimension + k]
    return sum
  })
  const length = norm(mean)
  cutRows.push(...mean.map((x) => x / length))
}
reportRows(
  `exported folder in transformers.js' model, ${over.length} over-long texts`,
  pick(over),
  Float32Array.from(cutRows),
  dimension,
)

await tuned.close()
await embedder.close()
await dataset.close()
rmSync(work, { recursive: true })
if (flags.json) console.log(JSON.stringify(rows, null, 2))
process.exitCode = rows.every((row) => row.holds) ? 0 : 1
