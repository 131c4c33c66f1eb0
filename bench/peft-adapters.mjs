// LoRA adapters in and out of PEFT, over BERT and Qwen3: adapters that PEFT makes in every way that it has of naming modules, ranks
// and alphas are read here, written again, and read by PEFT over AutoModel and by SentenceTransformer.load_adapter; adapters that are
// made here are read by both. Every way's modules, ranks and scales are compared, and the embeddings of both sides. What cannot be
// read has to be refused, with a sentence.
//
//   npm run build
//   node bench/peft-adapters.mjs --python <python of bench/peers/requirements.txt> [--encoder <folder>…] [--onnx <folder>…] [--keep <folder>]
//
// --encoder: checkpoints of BERT, Qwen3 or Qwen3-VL (by default those of test/fixtures); --onnx: ONNX folders of the first encoder, over
// which the adapters that PEFT made for it are read, too. Prints a table; fails where something does not hold. With
// --fixtures test/fixtures/peft it writes what the tests read of it without Python.
import { execFileSync } from 'node:child_process'
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import {
  chosenModules,
  encoderModules,
  initialLora,
  loraB,
  openEmbedder,
  openReader,
  readAdapter,
  readEncoder,
  writeAdapter,
} from '../dist/encoder/index.js'
import { createRandom } from '../dist/support/random.js'
import { CASES, OWN, REFUSED } from './peft/cases.mjs'

const { values: flags } = parseArgs({
  options: {
    python: { type: 'string', default: 'python3' },
    encoder: { type: 'string', multiple: true },
    onnx: { type: 'string', multiple: true, default: [] },
    keep: { type: 'string' },
    fixtures: { type: 'string' },
  },
})

const TEXTS = [
  'The lamp turns once in nine seconds.',
  'a',
  'Salt keeps meat from spoiling because it draws the water out.',
]
const LARGEST_DIFFERENCE = 2e-5

const fixtures = resolve(import.meta.dirname, '../test/fixtures')
const folders = flags.encoder ?? ['tiny-bert/mean', 'qwen3', 'qwen3-vl'].map((name) => join(fixtures, name))
const work = flags.keep === undefined ? mkdtempSync(join(tmpdir(), 'canopy-peft-')) : resolve(flags.keep)
mkdirSync(work, { recursive: true })
const table = []
let failures = 0

/** What PEFT makes of the cases of each encoder, by name: in one process, whose start takes longer than all of them. */
function throughPeft(requests) {
  const [file, output] = [join(work, 'request.json'), join(work, 'answers.json')]
  writeFileSync(file, JSON.stringify({ requests, output }))
  execFileSync(flags.python, [resolve(import.meta.dirname, 'peers/peft_adapter.py'), file], {
    stdio: ['ignore', 'ignore', 'pipe'],
    env: { ...process.env, HF_HUB_OFFLINE: '1', TRANSFORMERS_VERBOSITY: 'error', OMP_NUM_THREADS: '1' },
  })
  return JSON.parse(readFileSync(output, 'utf8'))
}

async function embedded(profile, adapter) {
  const embedder = await openEmbedder(profile, { adapter })
  const { embeddings } = await embedder.embedTexts(TEXTS, 'node')
  await embedder.close()
  return TEXTS.map((_, i) => [...embeddings.subarray(i * profile.dimension, (i + 1) * profile.dimension)])
}

const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0)
const cosine = (a, b) => dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b))
const least = (ours, theirs) => Math.min(...ours.map((row, i) => cosine(row, theirs[i])))
const most = (ours, theirs) => Math.max(...ours.flatMap((row, i) => row.map((x, j) => Math.abs(x - theirs[i][j]))))

/** Modules, ranks and scales of an adapter as PEFT counts them, inside the model of text. */
const modulesOf = ({ targets }) =>
  new Map(targets.map((t) => [t.module.replace('language_model.', ''), [t.rank, t.alpha / t.rank]]))

/** How PEFT's modules differ from ours; '' where they do not. Heads count for nothing. */
function differences(ours, theirs, leftOut = []) {
  const mine = modulesOf(ours)
  const names = new Set([...mine.keys(), ...Object.keys(theirs).filter((name) => !leftOut.includes(name))])
  const wrong = [...names].filter((name) => {
    const [a, b] = [mine.get(name), theirs[name]]
    return a === undefined || b === undefined || a[0] !== b[0] || Math.abs(a[1] / b[1] - 1) > 1e-12
  })
  const [first] = wrong
  return first === undefined
    ? ''
    : `${wrong.length} modules differ, as ${first}: ${mine.get(first)} here, ${theirs[first]} there`
}

/** A line of the table: `pairs` are embeddings here and there. */
function line(encoder, what, way, { ours, theirs, change, modules, wrong }) {
  const difference = ours === undefined ? Number.NaN : most(ours, theirs)
  const holds = wrong === '' && difference <= LARGEST_DIFFERENCE
  if (!holds) failures++
  table.push([
    ...[encoder, what, way, String(modules)],
    ours === undefined ? '-' : difference.toExponential(1),
    ours === undefined ? '-' : least(ours, theirs).toFixed(7),
    change === undefined ? '-' : change.toFixed(2),
    holds ? 'ok' : `FAIL ${wrong}`,
  ])
}

/** The cases of a list that are for the encoder, each with the folder of its adapter. */
const casesOf = (list, { name, kind }, prefix) =>
  list
    .map((one, i) => ({ ...one, adapter: join(work, name, `${prefix}-${i}`) }))
    .filter((one) => one.for.includes(kind))

/** Reads what PEFT made, compares it, and writes it again; returns what PEFT shall read of that. */
async function fromPeft(encoder, made) {
  const { name, profile, frozen } = encoder
  const again = []
  for (const one of encoder.theirs) {
    const theirs = made[one.name]
    if (theirs.error !== undefined) {
      line(name, one.name, 'PEFT → here', { modules: 0, wrong: theirs.error })
      continue
    }
    try {
      const adapter = await readAdapter(one.adapter, profile)
      const ours = await embedded(profile, adapter)
      line(name, one.name, 'PEFT → here', {
        ...{ ours, theirs: theirs.embeddings, change: least(ours, frozen), modules: adapter.targets.length },
        wrong: differences(adapter, theirs.modules, adapter.leftOut),
      })
      const written = `${one.adapter}-again`
      await writeAdapter(written, adapter, profile)
      const way = 'PEFT → here → PeftModel'
      again.push({
        name: one.name,
        what: one.name,
        way,
        adapter: written,
        read: 'PeftModel',
        own: adapter,
        ours: theirs.embeddings,
      })
      for (const graph of encoder.graphs) await overGraph(graph, one, theirs)
    } catch (error) {
      line(name, one.name, 'PEFT → here', { modules: 0, wrong: error.message })
    }
  }
  return again
}

/** An adapter that PEFT made for a checkpoint, read over an ONNX graph of it. */
async function overGraph({ name, profile, frozen }, one, theirs) {
  try {
    const adapter = await readAdapter(one.adapter, profile)
    const ours = await embedded(profile, adapter)
    line(name, one.name, 'PEFT → ONNX graph', {
      ...{ ours, theirs: theirs.embeddings, change: least(ours, frozen), modules: adapter.targets.length },
      wrong: differences(adapter, theirs.modules, adapter.leftOut),
    })
  } catch (error) {
    line(name, one.name, 'PEFT → ONNX graph', { modules: 0, wrong: error.message })
  }
}

/** Holds adapters that cannot be read here to being refused with a sentence. */
async function refused({ name, profile, refusals }, made) {
  for (const { name: what, adapter, says } of refusals) {
    if (made[what].error !== undefined) {
      line(name, what, 'refused', { modules: 0, wrong: `PEFT: ${made[what].error}` })
      continue
    }
    const message = await readAdapter(adapter, profile).then(
      () => 'it was read',
      (error) => error.message,
    )
    const holds = says.test(message)
    if (!holds) failures++
    table.push([name, what, 'refused', '-', '-', '-', '-', holds ? `"${shortened(message)}"` : `FAIL ${message}`])
  }
}

const shortened = (message) => {
  const bare = message.replace(/^\S*\/(\S+): /, '$1: ')
  return bare.length > 150 ? `${bare.slice(0, 149)}…` : bare
}

/** Writes adapters that are made here; returns what PEFT shall read of them. */
async function fromHere({ name, kind, profile, frozen }) {
  const modules = await encoderModules(profile)
  const cases = []
  for (const [index, { name: what, targets: patterns, rank, alpha, rankStabilised }] of OWN.entries()) {
    const chosen = chosenModules(modules, patterns?.[kind] ?? null)
    const targets = chosen.map(({ module, inputs, outputs }, i) => ({
      ...{ module, inputs, outputs, rank: rank(i), alpha: alpha(i) },
    }))
    const tensors = initialLora(targets, what)
    const random = createRandom(what)
    for (const { module } of targets) {
      const b = tensors.get(loraB(module))
      b.forEach((_, i) => {
        b[i] = 0.1 * random.normal()
      })
    }
    const own = { targets, tensors, baseFingerprint: profile.fingerprint, ...(rankStabilised && { rankStabilised }) }
    const adapter = join(work, name, `ours-${index}`)
    await writeAdapter(adapter, own, profile)
    const ours = await embedded(profile, own)
    const change = least(ours, frozen)
    for (const [read, way] of [
      ['PeftModel', 'here → PeftModel'],
      // sentence-transformers does not build Qwen3-VL's class from these files
      ...(kind === 'qwen3_vl' ? [] : [['SentenceTransformer', 'here → SentenceTransformer.load_adapter']]),
    ])
      cases.push({ name: `${what}/${read}`, what, way, adapter, read, own, ours, change })
  }
  return cases
}

/** Compares an adapter that was written here with what PEFT reads. */
function readBack(encoder, { what, way, adapter: folder, own, ours, change }, answer) {
  if (answer.error !== undefined) return line(encoder, what, way, { modules: 0, wrong: answer.error })
  const config = JSON.parse(readFileSync(join(folder, 'adapter_config.json'), 'utf8'))
  const stable = config.use_rslora === (own.rankStabilised ?? false) ? '' : 'use_rslora is not what it was'
  line(encoder, what, way, {
    ...{ ours, theirs: answer.embeddings, change, modules: Object.keys(answer.modules).length },
    wrong: differences(own, answer.modules) || answer.missing.join(' ') || stable,
  })
}

async function opened(folder) {
  const profile = await readEncoder(folder)
  const name = basename(folder) === 'mean' ? 'tiny-bert' : basename(folder)
  const kind = profile.config.model_type
  const reader = await openReader(profile)
  const encoded = await reader.encode(
    TEXTS.map((text) => ({ text })),
    'node',
  )
  await reader.close()
  const graphs = []
  if (folder === folders[0])
    for (const graph of flags.onnx) {
      const profile = await readEncoder(graph, { kind: 'onnx' })
      graphs.push({ name: basename(resolve(graph)), profile, frozen: await embedded(profile) })
    }
  return {
    ...{ name, kind, profile, graphs, frozen: await embedded(profile) },
    ...{ theirs: casesOf(CASES, { name, kind }, 'theirs'), refusals: casesOf(REFUSED, { name, kind }, 'refused') },
    request: {
      checkpoint: resolve(profile.folder),
      sequences: encoded.map(({ sequence }) => [...sequence.ids]),
      pooling: profile.pooling === 'last' ? 'last' : 'mean',
    },
  }
}

/** Keeps some of PEFT's adapters, and what it makes of them, for the tests. */
function keepFixtures(folder, { name, theirs }, made) {
  const expected = {}
  for (const { name: what, adapter, fixture } of theirs) {
    if (fixture === undefined) continue
    const place = join(folder, name, fixture)
    mkdirSync(place, { recursive: true })
    copyFileSync(join(adapter, 'adapter_model.safetensors'), join(place, 'adapter_model.safetensors'))
    const config = JSON.parse(readFileSync(join(adapter, 'adapter_config.json'), 'utf8'))
    config.base_model_name_or_path = name
    if (Array.isArray(config.target_modules)) config.target_modules.sort()
    writeFileSync(join(place, 'adapter_config.json'), `${JSON.stringify(config, null, 1)}\n`)
    const embeddings = made[what].embeddings.map((row) => row.map((x) => Number(x.toPrecision(8))))
    expected[fixture] = { what, modules: made[what].modules, embeddings }
  }
  if (Object.keys(expected).length === 0) return
  writeFileSync(
    join(folder, name, 'expected.json'),
    `${JSON.stringify({ texts: TEXTS, adapters: expected }, null, 1)}\n`,
  )
}

/** Without what only this program knows. */
const asked = (cases) => cases.map(({ own: _own, ours: _ours, ...one }) => one)

try {
  const encoders = []
  for (const folder of folders) encoders.push(await opened(folder))
  const made = throughPeft(
    encoders.map(({ request, theirs, refusals }) => ({ ...request, cases: [...theirs, ...refusals] })),
  )
  if (flags.fixtures !== undefined)
    for (const [i, encoder] of encoders.entries()) keepFixtures(resolve(flags.fixtures), encoder, made[i])
  const written = []
  for (const [i, encoder] of encoders.entries()) {
    written.push([...(await fromPeft(encoder, made[i])), ...(await fromHere(encoder))])
    await refused(encoder, made[i])
  }
  const read = throughPeft(encoders.map(({ request }, i) => ({ ...request, cases: asked(written[i]) })))
  for (const [i, { name }] of encoders.entries()) for (const one of written[i]) readBack(name, one, read[i][one.name])
} finally {
  if (flags.keep === undefined) rmSync(work, { recursive: true })
}
const heads = ['Encoder', 'Adapter', 'Way', 'Modules', 'Max. difference', 'Cosine', 'Cosine to frozen', '']
for (const row of [heads, heads.map(() => '---'), ...table])
  console.log(`| ${row.map((x) => x.replaceAll('|', '\\|')).join(' | ')} |`)
console.log(`\n${table.length - failures} of ${table.length} hold.`)
process.exitCode = failures > 0 ? 1 : 0
