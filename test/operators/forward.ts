import { encodeModel, type Graph, inferTypes, type Tensor, upgradeOpset, type ValueType } from '../../src/onnx/index.ts'
import { InputError } from '../../src/support/errors.ts'
import type { OperatorCase } from './case.ts'
import { isFloat, numbers, type Outcome, refusal, runOnce } from './outcome.ts'

/**
 * Read, upgraded, typed, written and loaded again, the model gives the outputs that are stored beside it; and so it does
 * with its integers and booleans as constants.
 */
export async function checkForward(test: OperatorCase): Promise<Outcome> {
  const fixed = test.graph.inputs.filter((name) => !isFloat(test.inputs[name]?.dtype))
  const attempts = [await forwardOf(test, test.graph, test.inputs)]
  if (fixed.length > 0) {
    const inputs = test.graph.inputs.filter((name) => !fixed.includes(name))
    const initializers = new Map(test.graph.initializers)
    for (const name of fixed) initializers.set(name, test.inputs[name] as Tensor)
    const feeds = Object.fromEntries(inputs.map((name) => [name, test.inputs[name] as Tensor]))
    attempts.push(await forwardOf(test, { ...test.graph, inputs, initializers }, feeds))
  }
  const failure = attempts.find(({ kind }) => kind === 'fails')
  if (failure !== undefined) return (await ownResult(test)) ?? failure
  return attempts.find(({ kind }) => kind === 'agrees') ?? (attempts[0] as Outcome)
}

async function forwardOf(test: OperatorCase, source: Graph, feeds: Record<string, Tensor>): Promise<Outcome> {
  let graph: Graph
  try {
    graph = inferTypes(upgradeOpset(source))
  } catch (e) {
    if (e instanceof InputError) return { kind: 'skipped', why: `refused: ${e.message}` }
    throw e
  }
  try {
    for (const [name, tensor] of Object.entries(test.expected)) checkType(name, graph.types.get(name), tensor)
    const error = compare(await runOnce(encodeModel(graph), feeds), test.expected)
    if (error < 1) return { kind: 'agrees', error }
    return { kind: 'fails', why: `results differ by ${error.toPrecision(2)} tolerances` }
  } catch (e) {
    return { kind: 'fails', why: (e as Error).message }
  }
}

/** Why ONNX Runtime cannot judge a case: it refuses the model as it stands, or computes something else. */
async function ownResult({ bytes, inputs, expected }: OperatorCase): Promise<Outcome | undefined> {
  try {
    const error = compare(await runOnce(bytes, inputs), expected)
    return error < 1 ? undefined : { kind: 'skipped', why: 'ONNX Runtime computes something else than is stored' }
  } catch (e) {
    return { kind: 'skipped', why: refusal((e as Error).message) }
  }
}

function checkType(name: string, type: ValueType | undefined, { dtype, shape }: Tensor): void {
  if (type === undefined) return
  const fits = type.shape.length === shape.length && type.shape.every((d, i) => typeof d === 'string' || d === shape[i])
  if (type.dtype !== dtype || !fits)
    throw new Error(`"${name}" is ${dtype} [${shape}], and was inferred as ${type.dtype} [${type.shape}]`)
}

/** The largest difference in units of the tolerance of the element type; infinite where shapes or types differ. */
function compare(found: Record<string, Tensor>, expected: Record<string, Tensor>): number {
  let worst = 0
  for (const [name, want] of Object.entries(expected)) {
    const got = found[name]
    if (got === undefined || got.dtype !== want.dtype || String(got.shape) !== String(want.shape)) return Infinity
    const [relative, absolute] = want.dtype === 'float16' ? [1e-2, 1e-3] : [1e-3, 1e-5]
    const [a, b] = [numbers(got), numbers(want)]
    for (let i = 0; i < a.length; i++) {
      const [x, y] = [a[i] as number, b[i] as number]
      if (x === y || (Number.isNaN(x) && Number.isNaN(y))) continue
      const ratio = Math.abs(x - y) / (absolute + relative * Math.abs(y))
      worst = Math.max(worst, Number.isFinite(ratio) ? ratio : Infinity)
    }
  }
  return worst
}
