// Exports an encoder whose float32 weights are more than 2 GiB, which no protobuf message holds and no single file of a graph: a
// randomly initialised BERT with an adapter. It has to come out as a graph and a file of external data, to pass the export's own
// self-check, and to run in onnxruntime-node and, where --python names an interpreter that has it, in Python's onnxruntime.
//
//   npm run build
//   node bench/large-export.mjs [--vocabulary 530000] [--dtype fp32] [--python python3] [--work <folder>] [--keep]
//
// Needs three times the weights on the disk, for as long as it runs. Prints sizes, times and the most memory that the export held.
import { spawn, spawnSync } from 'node:child_process'
import { mkdtemp, open, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import {
  bertTensorShapes,
  createRandomBert,
  initialLora,
  linearModules,
  loraB,
  openEmbedder,
  readEncoder,
  writeAdapter,
} from '../dist/encoder/index.js'
import { loadRuntime } from '../dist/onnx/index.js'
import { createRandom } from '../dist/support/random.js'

const { values: flags } = parseArgs({
  options: {
    vocabulary: { type: 'string', default: '530000' },
    hidden: { type: 'string', default: '1024' },
    layers: { type: 'string', default: '2' },
    dtype: { type: 'string', default: 'fp32' },
    python: { type: 'string' },
    work: { type: 'string' },
    keep: { type: 'boolean', default: false },
  },
})
const [vocabulary, hidden, layers] = [flags.vocabulary, flags.hidden, flags.layers].map(Number)
const sizes = { hidden, layers, heads: hidden / 64, intermediate: 4 * hidden, maxLength: 128 }
const text = 'The ferry left the harbour at dawn, before the fog had lifted from the water.'
const GB = 1e9

/** Writes safetensors piece by piece; elements come from a table of normal numbers, read from place to place. */
async function writeWeights(file) {
  const random = createRandom('large')
  const table = Float32Array.from({ length: 65_537 }, () => random.normal())
  const header = {}
  let end = 0
  const shapes = [...bertTensorShapes(sizes, vocabulary)]
  for (const [name, shape] of shapes) {
    const bytes = 4 * shape.reduce((a, b) => a * b, 1)
    header[name] = { dtype: 'F32', shape, data_offsets: [end, end + bytes] }
    end += bytes
  }
  const json = new TextEncoder().encode(JSON.stringify(header))
  const length = new BigUint64Array([BigInt(json.length)])
  const out = await open(file, 'w')
  await out.write(new Uint8Array(length.buffer))
  await out.write(json)
  let at = 0
  for (const [name, shape] of shapes) {
    let left = shape.reduce((a, b) => a * b, 1)
    const [std, mean] = name.endsWith('LayerNorm.weight') ? [0, 1] : [shape.length === 1 ? 0 : 0.02, 0]
    while (left > 0) {
      const part = new Float32Array(Math.min(left, 2 ** 22))
      for (let i = 0; i < part.length; i++, at = (at + 1) % table.length) part[i] = mean + std * table[at]
      left -= part.length
      await out.write(new Uint8Array(part.buffer))
    }
  }
  await out.close()
  return end
}

/** Runs a command and returns what it printed, the seconds it took and the most memory it held of its own, in bytes. */
async function measured(args) {
  const begin = performance.now()
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] })
  let printed = ''
  let own = 0
  child.stdout.on('data', (data) => {
    printed += data
  })
  const watch = setInterval(async () => {
    const status = await readFile(`/proc/${child.pid}/status`, 'utf8').catch(() => '')
    own = Math.max(own, 1024 * Number(/RssAnon:\s+(\d+)/.exec(status)?.[1] ?? 0))
  }, 100)
  const code = await new Promise((done) => child.on('close', done))
  clearInterval(watch)
  if (code !== 0) throw new Error(`${args.join(' ')} ended with ${code}`)
  return { printed, seconds: (performance.now() - begin) / 1000, own }
}

const work = await mkdtemp(join(flags.work ?? tmpdir(), 'large-export-'))
const [encoder, adapter, output] = ['encoder', 'adapter', 'export'].map((name) => join(work, name))
try {
  await createRandomBert(encoder, {
    seed: 1,
    ...sizes,
    hidden: 64,
    heads: 1,
    intermediate: 64,
    layers: 1,
    vocabularyFrom: [text],
  })
  const bytes = await writeWeights(join(encoder, 'model.safetensors'))
  const config = JSON.parse(await readFile(join(encoder, 'config.json'), 'utf8'))
  const large = {
    ...{ hidden_size: hidden, num_hidden_layers: layers, num_attention_heads: sizes.heads },
    ...{ intermediate_size: sizes.intermediate, vocab_size: vocabulary },
  }
  await writeFile(join(encoder, 'config.json'), JSON.stringify({ ...config, ...large }))
  const pooling = join(encoder, '1_Pooling/config.json')
  await writeFile(
    pooling,
    JSON.stringify({ ...JSON.parse(await readFile(pooling, 'utf8')), word_embedding_dimension: hidden }),
  )
  console.log(
    `encoder: ${(bytes / GB).toFixed(2)} GB in float32, the table of words ${((4 * vocabulary * hidden) / GB).toFixed(2)} GB`,
  )

  const profile = await readEncoder(encoder)
  const targets = linearModules(profile).map((module) => ({ ...module, rank: 8, alpha: 16 }))
  const tensors = initialLora(targets, '1')
  const random = createRandom('update')
  for (const { module } of targets)
    tensors.set(
      loraB(module),
      tensors.get(loraB(module)).map(() => 0.02 * random.normal()),
    )
  await writeAdapter(adapter, { targets, tensors, baseFingerprint: profile.fingerprint }, profile)

  const cli = join(import.meta.dirname, '../dist/cli/main.js')
  const types = flags.dtype.split(',')
  const command = [
    cli,
    'export',
    '--encoder',
    encoder,
    '--adapter',
    adapter,
    '--dtype',
    ...types,
    '--keep-adapter',
    '--output',
    output,
  ]
  const { printed, seconds, own } = await measured(command)
  console.log(printed.trim())
  console.log(
    `export with its self-check: ${seconds.toFixed(0)} s, at most ${(own / GB).toFixed(2)} GB of memory of its own`,
  )
  for (const name of (await readdir(join(output, 'onnx'))).sort())
    console.log(`  onnx/${name}: ${((await stat(join(output, 'onnx', name))).size / GB).toFixed(3)} GB`)

  // what was trained, by the toolkit's own graph over the checkpoint
  const embedder = await openEmbedder(profile, { adapter: { targets, tensors, baseFingerprint: undefined } })
  const wanted = (await embedder.embedTexts([text], 'node')).embeddings
  const [{ sequence }] = await embedder.reader.encode([{ text }], 'node')
  await embedder.close()
  const ids = [...sequence.ids]
  const file = join(
    output,
    'onnx',
    types[0] === 'fp32'
      ? 'model.onnx'
      : (await readdir(join(output, 'onnx'))).find(
          (name) => name.startsWith('model_') && name.endsWith('.onnx') && !name.includes('lora'),
        ),
  )

  const { InferenceSession, Tensor } = await loadRuntime()
  const session = await InferenceSession.create(file)
  const int64 = (values) => new Tensor('int64', BigInt64Array.from(values, BigInt), [1, values.length])
  const feeds = {
    input_ids: int64(ids),
    attention_mask: int64(ids.map(() => 1)),
    token_type_ids: int64(ids.map(() => 0)),
  }
  const { last_hidden_state: found } = await session.run(feeds)
  await session.release()
  console.log(`onnxruntime-node opens it; cosine to what was trained ${cosine(pooled(found.data), wanted).toFixed(7)}`)

  if (flags.python !== undefined) {
    const program = `
import json, sys
import numpy as np, onnxruntime as ort
ids = np.array([json.loads(sys.argv[2])], np.int64)
session = ort.InferenceSession(sys.argv[1])
out = session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)})[0]
print(json.dumps(out[0].mean(0).tolist()))`
    const python = spawnSync(flags.python, ['-c', program, file, JSON.stringify(ids)], {
      encoding: 'utf8',
      maxBuffer: 2 ** 26,
    })
    if (python.status !== 0) throw new Error(python.stderr)
    console.log(
      `Python's onnxruntime opens it; cosine to what was trained ${cosine(JSON.parse(python.stdout), wanted).toFixed(7)}`,
    )
  }
} finally {
  if (flags.keep) console.log(`kept: ${work}`)
  else await rm(work, { recursive: true, force: true })
}

function pooled(rows) {
  const sum = new Float64Array(hidden)
  for (let i = 0; i < rows.length; i++) sum[i % hidden] += rows[i]
  return sum
}

function cosine(a, b) {
  let [dot, aa, bb] = [0, 0, 0]
  for (let i = 0; i < hidden; i++) {
    dot += a[i] * b[i]
    aa += a[i] ** 2
    bb += b[i] ** 2
  }
  return dot / Math.sqrt(aa * bb)
}
