// Gradients of LoRA through imported graphs against PyTorch's autograd, for architectures and exporters, with every linear map
// adapted; rows are packed where they can be.
//
//   npm run build
//   python bench/peers/lora_gradients.py --output exported
//   node bench/imported-gradients.mjs exported/*
import { basename, join } from 'node:path'
import { addGradients } from '../dist/autodiff/index.js'
import { encoderGraph, encoderModules, loraA, loraB, readEncoder, textSequence } from '../dist/encoder/index.js'
import { GraphBuilder, openSafetensors, openSession, prune } from '../dist/onnx/index.js'

const [RANK, ALPHA] = [2, 4]
/** Of a matrix's length: float32. */
const TOLERANCE = 1e-4

async function sequencesOf(stored) {
  const names = [...stored.tensors.keys()].filter((name) => name.startsWith('ids.')).sort()
  const read = await Promise.all(names.map((name) => stored.read(name)))
  return read.map(({ data }) => textSequence(Int32Array.from(data, Number)))
}

/** ‖a − b‖ / ‖b‖ */
function distance(a, b) {
  return Math.hypot(...b.map((x, i) => x - a[i])) / Math.hypot(...b)
}

async function check(folder) {
  const profile = await readEncoder(folder, { kind: 'onnx', pooling: 'mean', normalize: true })
  const stored = await openSafetensors(join(folder, 'lora.safetensors'))
  const sequences = await sequencesOf(stored)
  const modules = await encoderModules(profile)
  const targets = modules.filter(({ module }) => stored.tensors.has(loraA(module)))
  const lora = targets.map(({ module, inputs, outputs }) => ({ module, inputs, outputs, rank: RANK, alpha: ALPHA }))
  const encoder = await encoderGraph(profile, lora, profile.config.pad_token_id ?? 0)
  const names = lora.flatMap(({ module }) => [loraA(module), loraB(module)])
  const g = GraphBuilder.from(encoder.graph)
  const seed = g.input('seed', 'float32', g.shape('embeddings'))
  const { graph, gradients } = addGradients(g.build(), { embeddings: seed }, names)
  const outputs = [...new Set([...names.map((name) => gradients.get(name)), 'embeddings'])]
  const session = await openSession(prune({ ...graph, outputs }), {
    threads: 1,
    externalFolder: encoder.externalFolder,
  })
  const shape = [sequences.length, profile.dimension]
  const feeds = {
    ...encoder.feeds(sequences),
    seed: { dtype: 'float32', shape, data: new Float32Array(shape[0] * shape[1]).map((_, i) => Math.cos(i)) },
  }
  for (const name of names) feeds[name] = await stored.read(name)
  const found = await session.run(
    Object.fromEntries(Object.entries(feeds).filter(([name]) => session.inputs.has(name))),
  )
  await session.release()
  let worst = { difference: 0, name: '' }
  for (const name of names) {
    const difference = distance(found[gradients.get(name)].data, await stored.readTensor(`grad.${name}`))
    if (!(difference <= worst.difference)) worst = { difference, name }
  }
  const adapted = [...stored.tensors.keys()].filter((name) => name.startsWith('grad.')).length / 2
  return {
    layout: encoder.layout,
    modules: modules.length,
    compared: targets.length,
    // what PyTorch adapts too and has no counterpart here
    missing: adapted - targets.length,
    embeddings: distance(found.embeddings.data, await stored.readTensor('embeddings')),
    ...worst,
  }
}

console.log(
  'model | rows | linear maps | compared | only in PyTorch | embeddings differ | largest difference of a gradient',
)
console.log('--- | --- | ---: | ---: | ---: | ---: | ---:')
for (const folder of process.argv.slice(2)) {
  const found = await check(folder)
  const cells = [found.layout, found.modules, found.compared, found.missing]
  console.log(
    [basename(folder), ...cells, found.embeddings.toExponential(1), found.difference.toExponential(1)].join(' | '),
  )
  if (found.compared < found.modules || !(Math.max(found.embeddings, found.difference) < TOLERANCE)) {
    console.error(`${folder}: wrong, the gradient of "${found.name}" the most`)
    process.exitCode = 1
  }
}
