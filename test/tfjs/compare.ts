import { addGradients } from '../../src/autodiff/index.ts'
import {
  type DType,
  elementCount,
  type Graph,
  GraphBuilder,
  openSession,
  prune,
  type Tensor,
} from '../../src/onnx/index.ts'
import { createRandom } from '../../src/support/random.ts'
import { openTfjs, type TfjsBackend } from '../../src/tfjs/index.ts'

/** An input of a case: random floats, or the values given. */
export interface CaseInput {
  shape: number[]
  dtype?: DType
  values?: number[]
  /** Random floats lie in this range; [-2, 2] by default. */
  range?: [number, number]
  /** Stays out of the gradients. */
  fixed?: boolean
}

/** A node between inputs and outputs. */
export interface Case {
  inputs: CaseInput[]
  build(g: GraphBuilder, x: string[]): string | string[]
  opset?: number
  /** Why the two engines' gradients aren't compared. */
  forwardOnly?: string
}

export function tensorOf({ shape, dtype = 'float32', values, range = [-2, 2] }: CaseInput, seed: string): Tensor {
  const random = createRandom(seed)
  const numbers =
    values ?? Array.from({ length: elementCount(shape) }, () => range[0] + (range[1] - range[0]) * random.next())
  switch (dtype) {
    case 'int64':
      return { dtype, shape, data: BigInt64Array.from(numbers, (v) => BigInt(v)) }
    case 'int32':
      return { dtype, shape, data: Int32Array.from(numbers) }
    case 'int8':
      return { dtype, shape, data: Int8Array.from(numbers) }
    case 'bool':
    case 'uint8':
      return { dtype, shape, data: Uint8Array.from(numbers) }
    case 'float64':
      return { dtype, shape, data: Float64Array.from(numbers) }
    default:
      return { dtype: 'float32', shape, data: Float32Array.from(numbers) }
  }
}

/** Largest |a − b| over max(1, |b|). */
export function largestDifference(a: Tensor, b: Tensor): number {
  let largest = 0
  for (let i = 0; i < b.data.length; i++) {
    const [x, y] = [Number(a.data[i]), Number(b.data[i])]
    if (Object.is(x, y) || x === y) continue
    const difference = Math.abs(x - y) / Math.max(1, Math.abs(y))
    largest = Math.max(largest, Number.isNaN(difference) ? Number.POSITIVE_INFINITY : difference)
  }
  return largest
}

export interface Result {
  outputs: Record<string, Tensor>
  gradients: Record<string, Tensor>
}

/**
 * Runs a case in ONNX Runtime, its gradients by src/autodiff, and in TensorFlow.js, its gradients by TensorFlow.js: of
 * Σ output∘weights, the weights being fixed numbers.
 */
export async function bothEngines(name: string, { inputs, build, opset, forwardOnly }: Case, backend: TfjsBackend) {
  const g = new GraphBuilder(opset ?? 17)
  const names = inputs.map(({ dtype, shape }, i) => g.input(`x${i}`, dtype ?? 'float32', shape))
  const feeds: Record<string, Tensor> = Object.fromEntries(
    inputs.map((input, i) => [`x${i}`, tensorOf(input, `${name}/${i}`)]),
  )
  const built = build(g, names)
  const outputs = Array.isArray(built) ? built : [built]
  for (const output of outputs) g.output(output)
  const forward = g.build()
  const wrt = names.filter((_, i) => (inputs[i]!.dtype ?? 'float32') === 'float32' && !inputs[i]!.fixed)
  const differentiable = outputs.filter((output) => g.type(output).dtype === 'float32')

  const first = await onnxruntime(forward, feeds)
  const theirs: Result = { outputs: first, gradients: {} }
  const session = await openTfjs(forward, { backend })
  const ours: Result = { outputs: await session.run(feeds), gradients: {} }
  session.close()
  if (forwardOnly !== undefined || wrt.length === 0 || differentiable.length === 0) return { theirs, ours }

  const loss = GraphBuilder.from(forward)
  const terms = differentiable.map((output, k) => {
    const { shape } = first[output]!
    const weights = Float32Array.from({ length: elementCount(shape) }, (_, i) => Math.sin(1 + 2.3 * i + 5 * k) + 0.2)
    const weighted = loss.mul(output, loss.initializer(`weights${k}`, { dtype: 'float32', shape, data: weights }))
    return loss.reduceSum(
      weighted,
      shape.map((_, i) => i),
    )
  })
  loss.output(
    terms.reduce((a, b) => loss.add(a, b)),
    'loss',
  )
  const { graph, gradients } = addGradients(loss.build(), { loss: 1 }, wrt)
  const found = await onnxruntime(prune({ ...graph, outputs: [...new Set(gradients.values())] }), feeds)
  theirs.gradients = Object.fromEntries(wrt.map((x) => [x, found[gradients.get(x)!]!]))
  const oracle = await openTfjs({ ...loss.build(), outputs: ['loss'] }, { backend })
  const { gradients: byTfjs } = await oracle.gradients(feeds, { of: 'loss', wrt })
  oracle.close()
  ours.gradients = Object.fromEntries(
    wrt.map((x) => [x, { dtype: 'float32', shape: feeds[x]!.shape, data: byTfjs.get(x)! }]),
  )
  return { theirs, ours }
}

async function onnxruntime(graph: Graph, feeds: Record<string, Tensor>): Promise<Record<string, Tensor>> {
  const session = await openSession(prune(graph, { unusedInputs: false }), { threads: 1 })
  try {
    return await session.run(Object.fromEntries([...session.inputs.keys()].map((name) => [name, feeds[name]!])))
  } finally {
    await session.release()
  }
}
