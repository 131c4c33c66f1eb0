// Exports of other architectures: every value typed in the inputs' symbols, and the gradient of every float weight against
// central differences along one direction of it.
//
//   npm run build
//   python bench/peers/export_architectures.py --output exported
//   node bench/architectures.mjs exported/*.onnx
import { readFileSync } from 'node:fs'
import { basename } from 'node:path'
import { addGradients } from '../dist/autodiff/index.js'
import { decodeModel, inferTypes, openSession, prune, upgradeOpset } from '../dist/onnx/index.js'

const settings = { threads: 1 }
const [BATCH, SEQUENCE] = [2, 7]
/** Of max(1, |gradient|): float32 differences. */
const TOLERANCE = 5e-3
const STEPS = [0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001]

const ids = (value) => ({
  dtype: 'int64',
  shape: [BATCH, SEQUENCE],
  data: BigInt64Array.from({ length: BATCH * SEQUENCE }, (_, i) => BigInt(value(i))),
})
const feeds = { input_ids: ids((i) => 5 + ((i * 7) % 40)), attention_mask: ids((i) => (i < 12 ? 1 : 0)) }

async function use(graph, given, run) {
  const session = await openSession(graph, settings)
  const step = () => session.run(Object.fromEntries([...session.inputs.keys()].map((name) => [name, given[name]])))
  try {
    return await run(step)
  } finally {
    await session.release()
  }
}

/** How many values' shapes are other than inferred, equal symbols being equal sizes; and how many are not known. */
async function checkShapes(graph) {
  const values = graph.nodes.flatMap((node) => node.outputs.filter((name) => name !== ''))
  const unknown = values.filter((name) => graph.types.get(name)?.shape.some((d) => /^unknown_/.test(d)) ?? true).length
  const results = await use({ ...graph, outputs: values }, feeds, (step) => step())
  const sizes = new Map()
  let wrong = 0
  for (const [name, { shape }] of Object.entries({ ...feeds, ...results }))
    graph.types.get(name).shape.forEach((d, axis) => {
      const known = typeof d === 'number' ? d : (sizes.get(d) ?? shape[axis])
      sizes.set(d, known)
      if (known !== shape[axis]) wrong++
    })
  return { values: values.length, unknown, wrong }
}

/** The largest difference between a weight's gradient and central differences, along a direction of length 1. */
async function checkGradients(graph) {
  const isWeight = ([, { dtype, data }]) => dtype === 'float32' && data.length > 1
  const weights = [...graph.initializers].filter(isWeight)
  const names = weights.map(([name]) => name)
  const [output] = graph.outputs
  const types = new Map(graph.types).set('seed', graph.types.get(output))
  const initializers = new Map([...graph.initializers].filter((entry) => !isWeight(entry)))
  const open = { ...graph, types, initializers, inputs: [...graph.inputs, ...names] }
  const given = { ...feeds }
  for (const [name, tensor] of weights) given[name] = { ...tensor, data: tensor.data.slice() }

  const { graph: full, gradients } = addGradients(
    { ...open, inputs: [...open.inputs, 'seed'] },
    { [output]: 'seed' },
    names,
  )
  const backward = prune({ ...full, outputs: [...new Set(gradients.values())] }, { unusedInputs: false })
  return use(prune(open, { unusedInputs: false }), given, async (forward) => {
    const y = (await forward())[output]
    const seed = Float32Array.from(y.data, (_, i) => Math.sin(1 + 2.3 * i))
    const found = await use(backward, { ...given, seed: { ...y, data: seed } }, (step) => step())
    const loss = async () => (await forward())[output].data.reduce((sum, v, i) => sum + v * seed[i], 0)
    let worst = { difference: 0, name: '' }
    for (const name of names) {
      const data = given[name].data
      const base = data.slice()
      const direction = Float64Array.from(base, (_, i) => Math.sin(3 + 1.7 * i))
      const length = Math.hypot(...direction)
      const at = async (h) => {
        for (let i = 0; i < base.length; i++) data[i] = base[i] + (h * direction[i]) / length
        const value = await loss()
        data.set(base)
        return value
      }
      const gradient = found[gradients.get(name)]?.data ?? new Float32Array(base.length)
      const analytic = gradient.reduce((sum, v, i) => sum + (v * direction[i]) / length, 0)
      let difference = Number.POSITIVE_INFINITY
      for (const h of STEPS) {
        const near = (await at(h)) - (await at(-h))
        const far = (await at(2 * h)) - (await at(-2 * h))
        const numeric = (8 * near - far) / (12 * h)
        difference = Math.min(
          difference,
          Math.abs(numeric - analytic) / Math.max(1, Math.abs(numeric), Math.abs(analytic)),
        )
      }
      if (!(difference <= worst.difference)) worst = { difference, name }
    }
    return { weights: names.length, ...worst, nodes: backward.nodes.length }
  })
}

console.log(
  'model | opset | nodes | values | sizes unknown | shapes wrong | weights | nodes with gradients | largest difference',
)
console.log('--- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---:')
for (const file of process.argv.slice(2)) {
  const model = decodeModel(readFileSync(file), file)
  const graph = inferTypes(upgradeOpset(model))
  const shapes = await checkShapes(graph)
  const gradient = await checkGradients(graph)
  const cells = [
    model.opset,
    graph.nodes.length,
    shapes.values,
    shapes.unknown,
    shapes.wrong,
    gradient.weights,
    gradient.nodes,
  ]
  console.log([basename(file, '.onnx'), ...cells, gradient.difference.toExponential(1)].join(' | '))
  if (shapes.unknown > 0 || shapes.wrong > 0 || !(gradient.difference < TOLERANCE)) {
    console.error(`${file}: wrong, the gradient of "${gradient.name}" the most`)
    process.exitCode = 1
  }
}
