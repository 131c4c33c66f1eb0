// One exported encoder in every type of weights, in every program that loads such a folder: how close the embeddings of real nodes
// lie to the trained graph's, whether the same decisions come out, and what loading, memory and waiting cost.
//
//   npm run build
//   node bench/runtimes.mjs --encoder <checkpoint> --adapter <adapter> --dataset datasets/hotpotqa --dataset datasets/nq \
//     --python <python with sentence-transformers and optimum-onnx> --work <folder>
//
// Every cell is a process of its own; what it leaves in --work is kept, so that a run that was stopped goes on.
import { execFileSync, spawn } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { loadTokenizer, readEncoderPair } from '../dist/encoder/index.js'
import { markdownTable } from '../dist/eval/index.js'
import { openSafetensors } from '../dist/onnx/index.js'
import { createRandom } from '../dist/support/random.js'
import {
  chooseNodes,
  chooseQueries,
  cosines,
  decisionAccuracy,
  quantiles,
  trainedEmbeddings,
} from './runtimes/cases.mjs'
import { describeMachine, machineText } from './support/machine.mjs'
import { wholeNumber } from './support/numbers.mjs'

const here = import.meta.dirname

/** The types of `canopy export` with their graphs inside onnx/ and their names in transformers.js. */
const VARIANTS = {
  fp32: { file: 'model.onnx', dtype: 'fp32' },
  fp16: { file: 'model_fp16.onnx', dtype: 'fp16' },
  int8: { file: 'model_int8.onnx', dtype: 'int8' },
  int4: { file: 'model_q4.onnx', dtype: 'q4' },
}

const node = (script, more = {}) => ({ command: process.execPath, script: join(here, 'runtimes', script), more })
const python = (library) => ({ command: 'python', script: join(here, 'peers/runtimes.py'), more: { library } })
/** The programs, each with its script. */
const RUNTIMES = {
  canopy: { label: 'this toolkit', ...node('canopy.mjs') },
  'onnxruntime-node': { label: 'onnxruntime-node by hand', ...node('onnxruntime-node.mjs') },
  'transformers-js': { label: 'transformers.js, Node', ...node('transformers-js.mjs') },
  'chromium-wasm': { label: 'transformers.js, Chromium, wasm', ...node('chromium.mjs', { device: 'wasm' }) },
  'sentence-transformers': { label: 'sentence-transformers, onnx', ...python('sentence-transformers') },
  'onnxruntime-python': { label: 'onnxruntime, Python', ...python('onnxruntime') },
  'chromium-webgpu': { label: 'transformers.js, Chromium, WebGPU', ...node('chromium.mjs', { device: 'webgpu' }) },
}

const HELP = `Exported types of weights in every program that loads an exported folder.

  --encoder <folder>        checkpoint that was fine-tuned
  --adapter <folder>        its adapter
  --dataset <folder>        made by "canopy import"; several times. The first one gives the questions of ten items
  --split <name>            (dev)
  --python <path>           interpreter with sentence-transformers, optimum-onnx and onnxruntime; without it no cells in Python
  --variant <type>          ${Object.keys(VARIANTS).join(', ')}; several times (all)
  --runtime <name>          ${Object.keys(RUNTIMES).join(', ')};
                            several times (all)
  --nodes <n>               distinct nodes within the encoder's limit, at least, from whole items (500)
  --queries <n>             questions of ten items each (12)
  --webgpu-nodes <n>        of the nodes, in WebGPU, and no questions: its driver here computes in software (8); 0 for all and all
                            questions, where there is a graphics card
  --threads <n>             (2)
  --minutes <n>             that one cell may take (10)
  --seed <text>             (runtimes)
  --work <folder>           the exports, and every cell's answer; a run goes on there (required)
  --again                   measure cells anew that are there already
  --json <file>             all figures

example: node bench/runtimes.mjs --encoder minilm --adapter runs/minilm/adapter --dataset datasets/hotpotqa --work runs/runtimes`

const { values: flags } = parseArgs({
  options: {
    encoder: { type: 'string' },
    adapter: { type: 'string' },
    dataset: { type: 'string', multiple: true, default: [] },
    split: { type: 'string', default: 'dev' },
    python: { type: 'string' },
    variant: { type: 'string', multiple: true, default: Object.keys(VARIANTS) },
    runtime: { type: 'string', multiple: true, default: Object.keys(RUNTIMES) },
    nodes: { type: 'string', default: '500' },
    queries: { type: 'string', default: '12' },
    'webgpu-nodes': { type: 'string', default: '8' },
    threads: { type: 'string', default: '2' },
    minutes: { type: 'string', default: '10' },
    seed: { type: 'string', default: 'runtimes' },
    work: { type: 'string' },
    again: { type: 'boolean', default: false },
    json: { type: 'string' },
    help: { type: 'boolean', default: false },
  },
})
if (flags.help) {
  console.log(HELP)
  process.exit(0)
}
if (flags.encoder === undefined || flags.work === undefined || flags.dataset.length === 0)
  throw new Error('Give --encoder, --work and at least one --dataset; --help says more.')
for (const [flag, known] of [
  ['variant', VARIANTS],
  ['runtime', RUNTIMES],
])
  for (const name of flags[flag])
    if (!Object.hasOwn(known, name))
      throw new Error(`--${flag} ${name}: there are ${Object.keys(known).join(', ')} only.`)
const [nodeCount, queryCount, threads, minutes] = [
  wholeNumber(flags, 'nodes'),
  wholeNumber(flags, 'queries'),
  wholeNumber(flags, 'threads'),
  wholeNumber(flags, 'minutes'),
]
const webgpuNodes = wholeNumber(flags, 'webgpu-nodes', 0)
const log = (line) => console.error(line)
const machine = describeMachine({ gigabytes: 2 })
const work = resolve(flags.work)
mkdirSync(work, { recursive: true })

const pair = await readEncoderPair(flags.encoder, { adapter: flags.adapter })
const settings = { ...pair.settings, ...(pair.trained ? {} : { title: true, tableFormat: 'markdown' }) }
keepOrClear()
const model = exportOnce('export', [
  ...(flags.adapter === undefined ? [] : ['--adapter', flags.adapter]),
  ...['--bundle', '--force', '--dtype', ...Object.keys(VARIANTS)],
])
const f0 = exportOnce('f0', [])

const tokenizer = await loadTokenizer(pair.encoder)
const cases = await chooseNodes(flags.dataset, flags.split, {
  ...{ nodes: nodeCount, settings },
  fits: (text) => !tokenizer.encode(pair.encoder.prompts.node + text).truncated,
})
const random = createRandom(flags.seed)
const queries = await chooseQueries(flags.dataset[0], flags.split, { queries: queryCount, settings, random })
const { texts, long, questions, instances } = cases
log(`${texts.length} nodes and ${long.length} over-long ones of ${instances.length} items, ${queries.length} queries`)
const trained = await trainedEmbeddings(pair, cases, threads)
const { dimension } = pair.encoder
const trainedDecisions = decisionAccuracy(cases, trained, dimension)

const cells = []
for (const runtime of flags.runtime) for (const variant of flags.variant) cells.push(await cell(runtime, variant))

const fixed = (value, digits) => (Number.isFinite(value) ? value.toFixed(digits) : '–')
const percent = (value) => (Number.isFinite(value) ? `${(100 * value).toFixed(1)} %` : '–')
const mebibytes = (bytes) => fixed(bytes / 2 ** 20, 0)
const signed = (value) => (Number.isFinite(value) ? `${value > 0 ? '+' : ''}${value.toFixed(1)}` : '–')
const label = (c) => RUNTIMES[c.runtime].label
const failed = cells.filter(({ error }) => error !== undefined)
const done = cells.filter(({ error }) => error === undefined)
console.log(`${machineText(machine)}

${pair.encoder.id}${flags.adapter === undefined ? '' : ', fine-tuned'}: ${texts.length} nodes within ${pair.encoder.maxLength} tokens and ${long.length} over-long ones, of ${instances.length} items of ${flags.dataset.length} data sets (${flags.split}). Decision accuracy of the trained graph: ${percent(trainedDecisions.decisionAccuracy)} of ${trainedDecisions.decisions} decisions. Questions by f0 in the same program, always in fp32.

${markdownTable(
  [
    'program',
    'weights',
    'smallest cosine',
    'mean cosine',
    'nodes',
    'over-long: smallest, mean',
    'decision accuracy',
    'against trained, points',
  ],
  done.map((c) => [
    ...[label(c), c.variant, fixed(c.cosine.min, 6), fixed(c.cosine.mean, 6), String(c.nodes)],
    `${fixed(c.long.min, 4)}, ${fixed(c.long.mean, 4)}`,
    ...[percent(c.decisionAccuracy), signed(100 * (c.decisionAccuracy - trainedDecisions.decisionAccuracy))],
  ]),
)}

${markdownTable(
  [
    'program',
    'weights',
    'graph MB',
    'import ms',
    'load ms',
    'loaded MiB',
    'peak MiB',
    'nodes/s',
    'query p50 ms',
    'query p95 ms',
  ],
  done.map((c) => [
    ...[label(c), c.variant, fixed(c.bytes / 1e6, 1), fixed(c.importMs, 0), fixed(c.loadMs, 0)],
    ...[
      mebibytes(c.memory.loaded),
      mebibytes(c.memory.peak),
      fixed(c.nodes / c.seconds, c.nodes / c.seconds < 10 ? 1 : 0),
    ],
    ...[fixed(c.p50, 0), fixed(c.p95, 0)],
  ]),
)}

A query is one question and ten items (${fixed(queries.reduce((sum, query) => sum + query.texts.length, 0) / queries.length, 0)} nodes), nothing cached, ${queries.length} of them; ${threads} threads. Memory is what the process (in Chromium the page's) takes above an empty one.
${failed.map((c) => `\n- ${label(c)}, ${c.variant}: ${c.error}`).join('')}`)
if (flags.json !== undefined) {
  const settingsUsed = {
    nodes: texts.length,
    long: long.length,
    items: instances.length,
    queries: queries.length,
    threads,
  }
  writeFileSync(
    flags.json,
    `${JSON.stringify({ machine, flags, settings: settingsUsed, trained: trainedDecisions, cells }, null, 2)}\n`,
  )
}

/** Exports of another encoder or adapter, and answers to another choice of nodes, are of no use. */
function keepOrClear() {
  const { dataset, split, nodes, queries: asked, threads: count, seed } = flags
  const adapter = flags.adapter === undefined ? '' : resolve(flags.adapter)
  const trainedAt = adapter === '' ? 0 : statSync(join(adapter, 'adapter_model.safetensors')).mtimeMs
  const exports = { encoder: pair.encoder.fingerprint, adapter, trainedAt }
  const answers = { ...exports, dataset, split, nodes, asked, count, seed, some: flags['webgpu-nodes'] }
  for (const [name, made, from] of [
    ['exports', exports, ['export', 'f0', 'cells']],
    ['answers', answers, ['cells']],
  ]) {
    const file = join(work, `${name}.json`)
    const now = JSON.stringify(made)
    if (!existsSync(file) || readFileSync(file, 'utf8') !== now)
      for (const folder of from) rmSync(join(work, folder), { recursive: true, force: true })
    writeFileSync(file, now)
  }
}

/** `canopy export` as a user calls it, unless its folder is there. */
function exportOnce(name, more) {
  const output = join(work, name)
  if (existsSync(join(output, 'canopy.json'))) return output
  log(`exporting ${name}`)
  const command = ['export', '--encoder', flags.encoder, ...more, '--output', output, '--threads', String(threads)]
  execFileSync(process.execPath, [resolve(here, '../dist/cli/main.js'), ...command], { stdio: ['ignore', 2, 2] })
  return output
}

/** A cell's figures: those it left earlier, or measured now; `error` where it does not run. */
async function cell(runtime, variant) {
  const { command, script, more } = RUNTIMES[runtime]
  const { file, dtype } = VARIANTS[variant]
  const output = join(work, 'cells', `${runtime}-${variant}`)
  const graph = join(model, 'onnx', file)
  const bytes = [graph, `${graph}_data`].reduce((sum, path) => sum + (existsSync(path) ? statSync(path).size : 0), 0)
  const known = join(output, 'result.json')
  let error
  if (flags.again || !existsSync(known)) {
    if (command === 'python' && flags.python === undefined)
      return { runtime, variant, error: 'left out: no --python was given' }
    rmSync(output, { recursive: true, force: true })
    mkdirSync(output, { recursive: true })
    const { pooling, normalize, prompts } = pair.encoder
    const some = more.device === 'webgpu' && webgpuNodes > 0
    const request = {
      ...{ model, file, dtype, f0, pooling, normalize, dimension, threads, output },
      ...(some
        ? { texts: texts.slice(0, webgpuNodes), long: [], questions: [], queries: [] }
        : { texts, long, questions, queries }),
      prompts: { query: pair.query.prompts.query, node: prompts.node },
      ...more,
    }
    writeFileSync(join(output, 'request.json'), JSON.stringify(request))
    const began = performance.now()
    error = await run(command === 'python' ? flags.python : command, [script, join(output, 'request.json')])
    log(`${RUNTIMES[runtime].label}, ${variant}: ${error ?? `${((performance.now() - began) / 1000).toFixed(1)} s`}`)
  }
  if (error !== undefined) return { runtime, variant, error }
  const result = JSON.parse(readFileSync(known, 'utf8'))
  const stored = await openSafetensors(join(output, 'embeddings.safetensors'))
  const found = { nodes: await stored.readTensor('nodes'), questions: await stored.readTensor('questions') }
  const rows = found.nodes.length / dimension
  const whole = rows === texts.length + long.length
  return {
    ...{ runtime, variant, bytes },
    ...result,
    nodes: whole ? texts.length : rows,
    cosine: cosines(trained.nodes, found.nodes, dimension, 0, whole ? texts.length : rows),
    long: cosines(trained.nodes, found.nodes, dimension, texts.length, whole ? rows : texts.length),
    ...(whole
      ? {
          questions: cosines(trained.questions, found.questions, dimension, 0, questions.length),
          ...decisionAccuracy(cases, found, dimension),
        }
      : {}),
    ...quantiles(result.milliseconds),
  }
}

/** Runs a program to its end; what went wrong in one sentence, or undefined. */
async function run(command, args) {
  const offline = { HF_HUB_OFFLINE: '1', TOKENIZERS_PARALLELISM: 'true', TRANSFORMERS_VERBOSITY: 'error' }
  const child = spawn(command, args, {
    stdio: ['ignore', 'ignore', 'pipe'],
    env: { ...process.env, ...offline },
    detached: true,
  })
  // the whole group: a browser outlives the program that started it
  const stop = () => {
    try {
      process.kill(-child.pid, 'SIGKILL')
    } catch {
      // it has ended
    }
  }
  const interrupted = () => {
    stop()
    process.exit(130)
  }
  process.once('SIGINT', interrupted).once('SIGTERM', interrupted)
  let stderr = ''
  child.stderr.on('data', (data) => {
    stderr = (stderr + data).slice(-6000)
  })
  const timer = setTimeout(stop, minutes * 60_000)
  const code = await new Promise((done) => {
    child.on('error', (error) => done(error.message))
    child.on('close', (status, signal) => done(status ?? signal))
  })
  clearTimeout(timer)
  process.off('SIGINT', interrupted).off('SIGTERM', interrupted)
  stop()
  if (code === 0) return undefined
  if (code === 'SIGKILL') return `took more than ${minutes} minutes (--minutes), or was killed for its memory`
  const lines = stderr.split('\n').filter((line) => line.trim() !== '' && !/^query \d+ of/.test(line))
  const said = lines.filter((line) => /error|exception|cannot|no /i.test(line) && !/^\s+at /.test(line))
  return `${(said.at(-1) ?? lines.at(-1) ?? 'no message').trim().slice(0, 400)} (status ${code})`
}
