// Training of Qwen3-VL beside PyTorch and PEFT: the same nodes (texts and pictures), pairs, question and first matrices, a few AdamW
// steps each, this project's with what nodes begin with shared. Says how far the losses and the matrices are apart afterwards.
//
//   npm run build
//   node bench/qwen3-training.mjs --python <python of bench/peers/requirements.txt> [--steps 6] [--json]
//
// The checkpoint and the pictures are those of test/fixtures/qwen3-vl; PyTorch reads the files by itself. B begins at zero, so that
// the first step moves B alone.
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import {
  chosenModules,
  encoderModules,
  initialLora,
  openEmbedder,
  openReader,
  readAdapter,
  readEncoder,
  writeAdapter,
} from '../dist/encoder/index.js'
import { markdownTable } from '../dist/eval/index.js'
import { loraEncoder } from '../dist/train/engine/encoder.js'
import { openEngine } from '../dist/train/engine/engine.js'
import { adamWStep, clipFactor, globalNorm, initialAdamW } from '../dist/train/step/optimizer.js'

const { values: flags } = parseArgs({
  options: {
    python: { type: 'string', default: 'python3' },
    steps: { type: 'string', default: '6' },
    json: { type: 'boolean', default: false },
  },
})
const checkpoint = resolve(import.meta.dirname, '../test/fixtures/qwen3-vl')
const settings = { learningRate: 0.01, weightDecay: 0.01, betas: [0.9, 0.999], epsilon: 1e-8, clipNorm: 1, tau: 0.05 }
const { inputs } = JSON.parse(readFileSync(join(checkpoint, 'expected.json'), 'utf8'))
const question = inputs.question
// frames of the fixture's video are files of their own, which no user's video is
const names = Object.keys(inputs).filter((name) => name !== 'question' && inputs[name].frames === undefined)
const nodes = names.map((name) => inputs[name])
const pairs = nodes.map((_, i) => [i, (i + 2) % nodes.length, 1 / nodes.length])

const work = mkdtempSync(join(tmpdir(), 'canopy-qwen3-training-'))
try {
  const ours = await trainHere()
  const request = { checkpoint, adapter: join(work, 'first'), output: join(work, 'theirs'), steps: Number(flags.steps) }
  writeFileSync(
    join(work, 'request.json'),
    JSON.stringify({
      ...request,
      ...settings,
      instruction: question.instruction,
      question: question.text,
      nodes,
      pairs,
    }),
  )
  execFileSync(flags.python, [resolve(import.meta.dirname, 'peers/qwen3_training.py'), join(work, 'request.json')], {
    stdio: ['ignore', 'ignore', 'inherit'],
    env: { ...process.env, HF_HUB_OFFLINE: '1', TRANSFORMERS_VERBOSITY: 'error' },
  })
  const theirs = JSON.parse(readFileSync(join(work, 'theirs', 'result.json'), 'utf8'))
  const profile = await readEncoder(checkpoint)
  const found = await readAdapter(join(work, 'theirs', 'adapter'), profile)
  const rows = theirs.losses.map((loss, i) => [i + 1, ours.losses[i].toFixed(6), loss.toFixed(6)])
  const distances = ['lora_A', 'lora_B'].map((kind) => distance(ours.tensors, found.tensors, ours.first, kind))
  const loss = Math.max(...theirs.losses.map((l, i) => Math.abs(l - ours.losses[i])))
  if (flags.json)
    console.log(JSON.stringify({ versions: theirs.versions, losses: rows, largestLossDifference: loss, distances }))
  else {
    console.log(
      `${names.join(', ')}; torch ${theirs.versions.torch}, transformers ${theirs.versions.transformers}, peft ${theirs.versions.peft}`,
    )
    console.log(
      markdownTable(
        ['step', 'loss here', 'loss of PyTorch'],
        rows.map((row) => row.map(String)),
      ),
    )
    console.log(
      `largest difference of losses ${loss.toExponential(1)}; matrices apart, as a part of how far they moved: A ${distances[0].toExponential(1)}, B ${distances[1].toExponential(1)}`,
    )
  }
} finally {
  rmSync(work, { recursive: true, force: true })
}

/** Trains from fresh matrices, which it writes for the peer. */
async function trainHere() {
  const asked = await readEncoder(checkpoint, { instructions: { query: question.instruction } })
  const embedder = await openEmbedder(asked, { threads: 1 })
  const { embeddings: query } = await embedder.embed([{ text: question.text }], 'query')
  await embedder.close()

  const profile = await readEncoder(checkpoint)
  const targets = chosenModules(await encoderModules(profile), null).map(({ module, inputs, outputs }) => ({
    ...{ module, inputs, outputs, rank: 4, alpha: 8 },
  }))
  const tensors = initialLora(targets, 'parity')
  const first = new Map([...tensors].map(([name, data]) => [name, data.slice()]))
  await writeAdapter(join(work, 'first'), { targets, tensors, baseFingerprint: profile.fingerprint }, profile)

  const reader = await openReader(profile, { threads: 1 })
  const encoded = await reader.encode(
    nodes.map(({ text, images = [] }) => ({ text, images: images.map((name) => join(checkpoint, 'pictures', name)) })),
    'node',
  )
  const encoder = await loraEncoder(profile, targets, reader.padId, { visuals: reader })
  const engine = await openEngine({
    ...{ encoder, queries: () => query, loss: { loss: 'logistic', tau: settings.tau, margin: 0 } },
    ...{ tokenBudget: 1 << 20, threads: 1 },
  })
  const batch = {
    sequences: encoded.map(({ sequence }) => sequence),
    pairs: pairs.map(([preferred, other, weight]) => ({ preferred, other, question: 0, weight })),
  }
  const state = initialAdamW(tensors)
  const losses = []
  for (let step = 0; step < Number(flags.steps); step++) {
    const { loss, gradients } = await engine.onePass(batch, tensors)
    losses.push(loss)
    const clip = clipFactor(globalNorm(gradients), settings.clipNorm)
    adamWStep(tensors, gradients, state, settings.learningRate, settings, clip)
  }
  await engine.close()
  await reader.close()
  return { losses, tensors, first }
}

/** ‖ours − theirs‖ / ‖theirs − first‖ over all matrices of a kind. */
function distance(ours, theirs, first, kind) {
  let [apart, moved] = [0, 0]
  for (const [name, data] of theirs) {
    if (!name.includes(kind)) continue
    data.forEach((x, i) => {
      apart += (ours.get(name)[i] - x) ** 2
      moved += (x - first.get(name)[i]) ** 2
    })
  }
  return Math.sqrt(apart / moved)
}
