// Writes a randomly initialised Qwen3 or Qwen3-VL checkpoint of any shape, as the model hub holds them: sharded safetensors with an
// index, config.json, and the tokenizer files of another folder, of Qwen3-VL (the shapes 0.2b-vl and 2b) the processor's too. It has
// learned nothing; what it computes is finite.
//
//   npm run build
//   node bench/qwen3-random.mjs --output <folder> --shape 0.05b|0.2b|0.6b|0.2b-vl|2b [--dtype bf16|fp32] [--tokenizer <folder>] [--seed n]
//   node bench/qwen3-random.mjs --output <folder> --config <config.json> …
//
// Memory stays bounded whatever the size: tensors are drawn and written piece by piece. Elements come from a table of 65 536 normal
// numbers, which takes a nanosecond or two an element. The same seed, shape and type give the same bytes.
import { copyFile, mkdir, open, readdir, readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { checkpointTensors } from '../dist/encoder/index.js'
import { float32ToBfloat16 } from '../dist/onnx/index.js'
import { atomicFolder } from '../dist/support/files.js'
import { createRandom } from '../dist/support/random.js'
import { qwen3Shapes } from './support/qwen3-shapes.mjs'

const { values: flags } = parseArgs({
  options: {
    output: { type: 'string' },
    shape: { type: 'string' },
    config: { type: 'string' },
    dtype: { type: 'string', default: 'bf16' },
    tokenizer: { type: 'string' },
    seed: { type: 'string', default: '1' },
    'shard-mib': { type: 'string', default: '2000' },
  },
})
/** Ends the program with a sentence. */
function fail(sentence) {
  console.error(`error: ${sentence}`)
  process.exit(1)
}

if (flags.output === undefined || (flags.shape === undefined) === (flags.config === undefined))
  fail('Give --output, and either --shape or --config.')
const types = {
  bf16: {
    stored: 'BF16',
    named: 'bfloat16',
    bytes: 2,
    encode: (values) => new Uint8Array(float32ToBfloat16(values).buffer),
  },
  fp32: { stored: 'F32', named: 'float32', bytes: 4, encode: (values) => new Uint8Array(values.slice().buffer) },
}
const type = types[flags.dtype]
if (type === undefined) fail(`--dtype is ${Object.keys(types).join(' or ')}, not ${flags.dtype}.`)
const tokenizer = flags.tokenizer ?? join(import.meta.dirname, '../test/fixtures/qwen3-vl')
const known = flags.shape === undefined ? JSON.parse(await readFile(flags.config, 'utf8')) : qwen3Shapes[flags.shape]
if (known === undefined) fail(`--shape is one of ${Object.keys(qwen3Shapes).join(', ')}, not ${flags.shape}.`)
const config = { ...known, ...(await tokenIds(known, tokenizer)), dtype: type.named }

/** The numbers that the tokenizer gives the tokens that a Qwen3-VL configuration names. */
async function tokenIds({ model_type: model }, folder) {
  if (model !== 'qwen3_vl') return {}
  const { added_tokens: added } = JSON.parse(await readFile(join(folder, 'tokenizer.json'), 'utf8'))
  const id = (token) => {
    const found = added.find(({ content }) => content === token)
    if (found === undefined) fail(`The tokenizer in ${folder} has no token ${token}.`)
    return found.id
  }
  return {
    image_token_id: id('<|image_pad|>'),
    video_token_id: id('<|video_pad|>'),
    vision_start_token_id: id('<|vision_start|>'),
    vision_end_token_id: id('<|vision_end|>'),
  }
}

/** What Qwen3-Embedding's folders say to sentence-transformers: the last token's vector, of length 1. Qwen3-VL's say nothing. */
async function sentenceFiles(folder, json) {
  await mkdir(join(folder, '1_Pooling'))
  const type = (name) => `sentence_transformers.models.${name}`
  await json('modules.json', [
    { idx: 0, name: '0', path: '', type: type('Transformer') },
    { idx: 1, name: '1', path: '1_Pooling', type: type('Pooling') },
    { idx: 2, name: '2', path: '2_Normalize', type: type('Normalize') },
  ])
  await json('1_Pooling/config.json', {
    word_embedding_dimension: config.hidden_size,
    pooling_mode_lasttoken: true,
    include_prompt: true,
  })
  await json('sentence_bert_config.json', { max_seq_length: 8192, do_lower_case: false })
}

/**
 * Every tensor by its name in the published checkpoints: its shape, and the mean and deviation of its elements. What a language layer
 * adds to the residual stream shrinks with their number, so that it does not grow with depth.
 */
function tensorsOf(model) {
  const before = model.model_type === 'qwen3_vl' ? 'model.' : ''
  const layers = (model.text_config ?? model).num_hidden_layers
  return [...checkpointTensors(model, flags.output)].map(([name, shape]) => {
    if (/norm\d?\.weight$/i.test(name)) return { name: before + name, shape, mean: 1, std: 0.1 }
    const adds = /(o_proj|down_proj)\.weight$/.test(name)
    return { name: before + name, shape, mean: 0, std: adds ? 0.02 / Math.sqrt(2 * layers) : 0.02 }
  })
}

const elements = ({ shape }) => shape.reduce((product, size) => product * size, 1)
const bytesOf = (tensor) => elements(tensor) * type.bytes

/** Tensors in the order given, a new shard wherever the next one would make it too large. */
function shardsOf(tensors, limit) {
  const shards = [[]]
  let size = 0
  for (const tensor of tensors) {
    if (size > 0 && size + bytesOf(tensor) > limit) {
      shards.push([])
      size = 0
    }
    shards.at(-1).push(tensor)
    size += bytesOf(tensor)
  }
  return shards
}

const TABLE = 65536
const tableRandom = createRandom(`${flags.seed}/table`)
const standard = Float32Array.from({ length: TABLE }, () => tableRandom.normal())

/** Draws a tensor's elements and hands them on in pieces, as bytes. */
async function draw(tensor, write) {
  const table = type.encode(standard.map((x) => tensor.mean + tensor.std * x))
  const values = type.bytes === 2 ? new Uint16Array(table.buffer) : new Uint32Array(table.buffer)
  // xorshift32 (Marsaglia 2003); both halves of a state number an element
  let state = createRandom(`${flags.seed}/${tensor.name}`).int(2 ** 31) + 1
  const piece = new values.constructor(2 ** 22)
  for (let left = elements(tensor); left > 0; ) {
    const count = Math.min(left, piece.length)
    for (let i = 0; i < count; i += 2) {
      state ^= state << 13
      state ^= state >>> 17
      state ^= state << 5
      piece[i] = values[state & 0xffff]
      piece[i + 1] = values[state >>> 16]
    }
    await write(new Uint8Array(piece.buffer, 0, count * type.bytes))
    left -= count
  }
}

async function writeShard(file, tensors) {
  let end = 0
  const header = Object.fromEntries(
    tensors.map((tensor) => {
      const begin = end
      end += bytesOf(tensor)
      return [tensor.name, { dtype: type.stored, shape: tensor.shape, data_offsets: [begin, end] }]
    }),
  )
  const json = JSON.stringify({ __metadata__: { format: 'pt' }, ...header })
  const head = Buffer.alloc(8 + Math.ceil(json.length / 8) * 8, ' ')
  head.writeBigUInt64LE(BigInt(head.length - 8))
  head.write(json, 8)
  const handle = await open(file, 'wx')
  try {
    await handle.write(head)
    for (const tensor of tensors)
      await draw(tensor, async (bytes) => {
        for (let done = 0; done < bytes.length; ) done += (await handle.write(bytes, done)).bytesWritten
      })
  } finally {
    await handle.close()
  }
}

const tensors = tensorsOf(config)
const shards = shardsOf(tensors, Number(flags['shard-mib']) * 2 ** 20)
const began = performance.now()
await atomicFolder(flags.output, async (folder) => {
  // what makes texts into inputs, and pictures where the encoder reads them, and nothing else
  const files =
    config.model_type === 'qwen3_vl'
      ? /^(tokenizer|vocab|merges|special_tokens|added_tokens|chat_template|preprocessor|video_preprocessor)/
      : /^(tokenizer|vocab|merges|special_tokens|added_tokens)/
  for (const name of await readdir(tokenizer))
    if (files.test(name)) await copyFile(join(tokenizer, name), join(folder, name))
  const json = (name, value) => writeFile(join(folder, name), `${JSON.stringify(value, null, 2)}\n`)
  await json('config.json', config)
  if (config.model_type === 'qwen3') await sentenceFiles(folder, json)
  const name = (i) =>
    shards.length === 1
      ? 'model.safetensors'
      : `model-${String(i + 1).padStart(5, '0')}-of-${String(shards.length).padStart(5, '0')}.safetensors`
  for (const [i, shard] of shards.entries()) await writeShard(join(folder, name(i)), shard)
  if (shards.length > 1)
    await json('model.safetensors.index.json', {
      metadata: { total_size: tensors.reduce((sum, tensor) => sum + bytesOf(tensor), 0) },
      weight_map: Object.fromEntries(shards.flatMap((shard, i) => shard.map((tensor) => [tensor.name, name(i)]))),
    })
})
const parameters = tensors.reduce((sum, tensor) => sum + elements(tensor), 0)
const seconds = ((performance.now() - began) / 1000).toFixed(1)
console.log(
  `${flags.output}: ${(parameters / 1e6).toFixed(1)} M parameters in ${tensors.length} tensors, ${shards.length} files, ${flags.dtype}, ${seconds} s`,
)
