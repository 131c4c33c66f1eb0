// One phase of bench/memory-plan.mjs, alone in its process: `{ encoder, phase, tokens, nodeTokens, rank, threads }` as JSON, to the
// rows that were computed and the seconds that the phase's work took.
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import {
  defaultTargets,
  initialLora,
  linearModules,
  openEmbedder,
  readEncoder,
  selectTargets,
} from '../../dist/encoder/index.js'
import { writeSafetensors } from '../../dist/onnx/index.js'
import { createRandom } from '../../dist/support/random.js'
import { loraEncoder } from '../../dist/train/engine/encoder.js'
import { openEngine } from '../../dist/train/engine/engine.js'
import { chosenUpdate } from '../../dist/train/engine/update.js'
import { accumulate, adamWStep, copyTensors, initialAdamW, zerosLike } from '../../dist/train/step/optimizer.js'

const { encoder, phase, tokens, nodeTokens, rank, threads } = JSON.parse(process.argv[2])
const profile = await readEncoder(encoder)
const random = createRandom('memory')
const sequences = Array.from({ length: Math.ceil(tokens / nodeTokens) }, () => ({
  ids: Int32Array.from({ length: nodeTokens }, () => 1 + random.int(200)),
}))
let rows
let began

if (phase === 'encoding') {
  const embedder = await openEmbedder(profile, { threads })
  rows = rowsOf(await loraEncoder(profile, [], 0))
  began = performance.now()
  await embedder.embedSequences(sequences)
  await embedder.close()
} else {
  const targets = selectTargets(linearModules(profile), defaultTargets(profile)).map((m) => ({
    ...m,
    rank,
    alpha: rank,
  }))
  const trainable = await loraEncoder(profile, targets, 0, { update: chosenUpdate(targets, 'fp32') })
  rows = rowsOf(trainable)
  began = performance.now()
  await train(trainable, initialLora(targets, 'memory'))
}
console.log(JSON.stringify({ rows, seconds: (performance.now() - began) / 1000 }))

function rowsOf(graph) {
  return graph.feeds(sequences).input_ids.shape
}

async function train(trainable, tensors) {
  const query = new Float32Array(trainable.dimension).fill(trainable.dimension ** -0.5)
  const loss = { loss: 'logistic', tau: 0.05, margin: 0.1 }
  const engine = await openEngine({ encoder: trainable, queries: () => query, loss, tokenBudget: 1e9, threads })
  const batch = { sequences, pairs: [{ preferred: 0, other: sequences.length - 1, question: 0, weight: 1 }] }
  if (phase === 'step') await engine.onePass(batch, tensors)
  else await trainingRun(engine, batch, tensors)
  await engine.close()
}

/** What a run holds: two steps, the second perhaps in two passes, with the optimizer, the embeddings of a validation, the best matrices, a checkpoint. */
async function trainingRun(engine, batch, tensors) {
  const optimizer = initialAdamW(tensors)
  const stored = (all) =>
    new Map([...all].map(([name, data]) => [name, { dtype: 'float32', shape: [data.length], data }]))
  for (const pass of ['onePass', phase === 'mixedTraining' ? 'twoPass' : 'onePass']) {
    const gradients = zerosLike(tensors)
    accumulate(gradients, (await engine[pass](batch, tensors)).gradients)
    adamWStep(tensors, gradients, optimizer, 1e-4, { weightDecay: 0.01, betas: [0.9, 0.999], epsilon: 1e-8 })
  }
  await engine.embed(batch.sequences, tensors)
  const best = copyTensors(tensors)
  const folder = mkdtempSync(join(tmpdir(), 'canopy-memory-'))
  try {
    const moments = [optimizer.first, optimizer.second].flatMap((all, i) =>
      [...all].map(([name, data]) => [`${i}.${name}`, data]),
    )
    for (const [name, all] of Object.entries({ tensors, best, moments }))
      await writeSafetensors(join(folder, `${name}.safetensors`), stored(all))
  } finally {
    rmSync(folder, { recursive: true })
  }
}
