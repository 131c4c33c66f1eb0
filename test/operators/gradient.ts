import { addGradients } from '../../src/autodiff/index.ts'
import {
  type Graph,
  inferTypes,
  lower,
  openSession,
  prune,
  type Tensor,
  upgradeOpset,
  type ValueType,
} from '../../src/onnx/index.ts'
import type { OperatorCase } from './case.ts'
import { differences, type GradientOutcome, type Problem, type Sessions } from './differences.ts'
import { converted, feedsOf, isFloat, refusal, settings } from './outcome.ts'

/**
 * The gradient of Σ outputs∘weights, the weights drawn, with respect to each float input, against central differences:
 * in float64 where ONNX Runtime has the kernels, else in float32. Inputs of integers and booleans become constants, as
 * they are in models.
 */
export async function checkGradient(test: OperatorCase): Promise<GradientOutcome> {
  const skipped = (why: string): GradientOutcome => ({ outcome: { kind: 'skipped', why }, compared: 0, kinks: 0 })
  const wrt = test.graph.inputs.filter((name) => isFloat(test.inputs[name]?.dtype))
  if (wrt.length === 0 || !Object.values(test.expected).some(({ dtype }) => isFloat(dtype)))
    return skipped('integer/shape only')
  let refused = ''
  for (const precision of ['float64', 'float32'] as const) {
    const problem = inPrecision(test, wrt, precision)
    const made = await gradientSession(problem, wrt)
    if ('why' in made) {
      if (made.final) return skipped(made.why)
      refused = made.why
      continue
    }
    try {
      return await differences(made, problem, precision)
    } catch (e) {
      refused = (e as Error).message
    } finally {
      await made.forward.release()
      await made.backward?.release()
    }
  }
  return skipped(refusal(refused))
}

/** The graph with its floats in one precision and its other inputs as constants. */
function inPrecision(test: OperatorCase, wrt: string[], precision: 'float64' | 'float32'): Problem {
  const convert = (tensor: Tensor) => (isFloat(tensor.dtype) ? converted(tensor, precision) : tensor)
  const initializers = new Map(test.graph.initializers)
  for (const [name, tensor] of initializers) if ('data' in tensor) initializers.set(name, convert(tensor))
  const types = new Map(
    [...test.graph.types].map(([name, type]) => [name, isFloat(type.dtype) ? { ...type, dtype: precision } : type]),
  )
  for (const name of test.graph.inputs) {
    const tensor = convert(test.inputs[name] as Tensor)
    types.set(name, { dtype: tensor.dtype, shape: tensor.shape })
    if (!wrt.includes(name)) initializers.set(name, tensor)
  }
  const graph = inferTypes(upgradeOpset({ ...test.graph, inputs: wrt, initializers, types }))
  return { graph, feeds: Object.fromEntries(wrt.map((name) => [name, convert(test.inputs[name] as Tensor)])) }
}

/** Weights drawn from a fixed sequence. */
const weight = (i: number, k: number): number => Math.sin(1 + 2.3 * i + 5 * k) + 0.2

async function gradientSession(
  { graph, feeds }: Problem,
  wrt: string[],
): Promise<Sessions | { why: string; final?: boolean }> {
  const outputs = graph.outputs.filter((name) => isFloat(graph.types.get(name)?.dtype))
  const forward = await openSession(prune({ ...graph, outputs }, { unusedInputs: false }), settings).catch(
    (e: Error) => e,
  )
  if (forward instanceof Error) return { why: forward.message }
  let keep = false
  try {
    const first = await forward.run(feedsOf(forward, feeds))
    for (const output of outputs)
      if (first[output]?.dtype !== 'float64' && first[output]?.dtype !== 'float32')
        return { why: 'rounds to float16, too coarse for differences', final: true }
    const differentiated = differentiate(graph, outputs, wrt)
    if ('why' in differentiated) return { ...differentiated, final: true }
    const { seeded, gradients, full, note } = differentiated
    const weights = new Map<string, number[]>()
    const initializers = new Map(full.initializers)
    seeded.forEach((output, k) => {
      const { dtype, shape, data } = first[output] as Tensor
      // What is not finite has no derivative, and would hide the others.
      const drawn = Array.from(data as Float64Array, (y, i) => (Number.isFinite(y) ? weight(i, k) : 0))
      weights.set(output, drawn)
      const tensor: Tensor = { dtype: 'float64', shape, data: Float64Array.from(drawn) }
      initializers.set(`weights:${output}`, converted(tensor, dtype as 'float64' | 'float32'))
    })
    const wanted = [...new Set(gradients.values())]
    const inputs = full.inputs.filter((name) => !name.startsWith('weights:'))
    const backward =
      wanted.length === 0
        ? undefined
        : await openSession(
            prune({ ...full, inputs, initializers, outputs: wanted }, { unusedInputs: false }),
            settings,
          )
    keep = true
    return { forward, backward, gradients, weights, wrt: differentiated.wrt, ...(note === undefined ? {} : { note }) }
  } catch (e) {
    return { why: (e as Error).message }
  } finally {
    if (!keep) await forward.release()
  }
}

interface Differentiated {
  full: Graph
  gradients: Map<string, string>
  seeded: string[]
  /** The inputs with respect to which. */
  wrt: string[]
  note?: string
}

/** Through all float outputs, else through the first alone, else by what the operator is lowered to. */
function differentiate(graph: Graph, outputs: string[], wrt: string[]): Differentiated | { why: string } {
  const attempt = (source: Graph, seeded: string[], note?: string, inputs = wrt): Differentiated => {
    const seeds = Object.fromEntries(seeded.map((output) => [output, `weights:${output}`]))
    const types = new Map(source.types)
    for (const output of seeded) types.set(`weights:${output}`, source.types.get(output) as ValueType)
    const given = [...source.inputs, ...seeded.map((output) => `weights:${output}`)]
    const { graph: full, gradients } = addGradients({ ...source, inputs: given, types }, seeds, inputs)
    return { full, gradients, seeded, wrt: inputs, ...(note === undefined ? {} : { note }) }
  }
  const attempts = [
    () => attempt(graph, outputs),
    () => attempt(graph, outputs.slice(0, 1), 'first output'),
    () => attempt(graph, outputs.slice(0, 1), 'first input', wrt.slice(0, 1)),
    () => attempt(inferTypes(lower(graph).graph), outputs.slice(0, 1), 'lowered'),
  ]
  let why = ''
  for (const make of attempts)
    try {
      return make()
    } catch (e) {
      why ||= (e as Error).message
    }
  return { why }
}
