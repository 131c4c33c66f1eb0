// LoRA adapters of Qwen3 and Qwen3-VL in and out of PEFT: one that is written here and read by PEFT over AutoModel, and one that
// PEFT makes and is read here, each with the embeddings of both sides compared. Rank 4, A and B away from zero.
//
//   npm run build
//   node bench/peft-adapters.mjs --python <python of bench/peers/requirements.txt> [--encoder <folder>…]
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
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

const { values: flags } = parseArgs({
  options: { python: { type: 'string', default: 'python3' }, encoder: { type: 'string', multiple: true } },
})

const TEXTS = [
  'The lamp turns once in nine seconds.',
  'a',
  'Salt keeps meat from spoiling because it draws the water out.',
]
/** What LoRA is put over by PEFT: every linear map of the language model. */
const ALL = '.*layers\\.\\d+\\.(self_attn|mlp)\\.\\w+_proj'
const COSINE = 0.99999

const fixtures = resolve(import.meta.dirname, '../test/fixtures')
const folders = flags.encoder ?? ['qwen3', 'qwen3-vl'].map((name) => join(fixtures, name))
const work = mkdtempSync(join(tmpdir(), 'canopy-peft-'))
let failed = false

function throughPeft(name, request) {
  const file = join(work, `${name}.json`)
  const output = join(work, `${name}.out.json`)
  writeFileSync(file, JSON.stringify({ ...request, output }))
  execFileSync(flags.python, [resolve(import.meta.dirname, 'peers/peft_adapter.py'), file], {
    stdio: ['ignore', 'ignore', 'pipe'],
    env: { ...process.env, HF_HUB_OFFLINE: '1' },
  })
  return JSON.parse(readFileSync(output, 'utf8'))
}

async function embedded(profile, adapter) {
  const embedder = await openEmbedder(profile, { adapter })
  const { embeddings } = await embedder.embedTexts(TEXTS, 'node')
  await embedder.close()
  return TEXTS.map((_, i) => embeddings.subarray(i * profile.dimension, (i + 1) * profile.dimension))
}

const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0)
const cosine = (a, b) => dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b))

/** `adapted`: how much the adapter itself changes an embedding, so that leaving it out would show. */
function report(what, modules, theirs, ours, frozen) {
  const least = Math.min(...ours.map((row, i) => cosine(row, theirs.embeddings[i])))
  const change = Math.min(...ours.map((row, i) => cosine(row, frozen[i])))
  const holds = least >= COSINE && theirs.adapted === modules
  failed ||= !holds
  console.log(
    `${holds ? 'ok  ' : 'FAIL'} ${what}: ${theirs.adapted} modules (${modules}), cosine ${least.toFixed(9)}; with the frozen encoder ${change.toFixed(3)}`,
  )
}

try {
  for (const folder of folders) {
    const profile = await readEncoder(folder)
    const name = basename(folder)
    const reader = await openReader(profile)
    const encoded = await reader.encode(
      TEXTS.map((text) => ({ text })),
      'node',
    )
    await reader.close()
    const sequences = encoded.map(({ sequence }) => [...sequence.ids])
    const frozen = await embedded(profile)

    const modules = await encoderModules(profile)
    const targets = chosenModules(modules, null).map((module) => ({ ...module, rank: 4, alpha: 8 }))
    const tensors = initialLora(targets, 'peft')
    const random = createRandom('peft')
    for (const { module } of targets) {
      const b = tensors.get(loraB(module))
      b.forEach((_, i) => {
        b[i] = 0.1 * random.normal()
      })
    }
    const own = { targets, tensors, baseFingerprint: profile.fingerprint }
    const written = join(work, `${name}-ours`)
    await writeAdapter(written, own, profile)
    const theirs = throughPeft(`${name}-ours`, { checkpoint: resolve(folder), adapter: written, sequences })
    report(`${name}: written here, read by PEFT`, targets.length, theirs, await embedded(profile, own), frozen)

    const peft = join(work, `${name}-theirs`)
    const made = throughPeft(`${name}-theirs`, { checkpoint: resolve(folder), adapter: peft, make: ALL, sequences })
    const read = await readAdapter(peft, profile)
    report(`${name}: made by PEFT, read here`, read.targets.length, made, await embedded(profile, read), frozen)
  }
} finally {
  rmSync(work, { recursive: true })
}
process.exitCode = failed ? 1 : 0
