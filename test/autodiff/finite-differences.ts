import { addGradients } from '../../src/autodiff/index.ts'
import {
  type Dim,
  type DType,
  elementCount,
  GraphBuilder,
  openSession,
  prune,
  type Tensor,
} from '../../src/onnx/index.ts'

/** An input of the function under test: differentiated if it is a float, unless `fixed`. */
export interface Input {
  shape: number[]
  values: number[]
  dtype?: DType
  fixed?: boolean
}

export interface Comparison {
  /** Which input. */
  input: number
  shape: number[]
  analytic: number[]
  numeric: number[]
  /** max |analytic − numeric| over max(1, |analytic|, |numeric|). */
  error: number
}

export interface Options {
  /** Element type of float inputs. */
  dtype?: 'float32' | 'float64'
  /** Declare the sizes above 1 as symbols, one per size. */
  symbolic?: boolean
  /** Declared shapes of the first inputs, where they are not given sizes. */
  shapes?: Dim[][]
  opset?: number
  /** Step of the differences. */
  step?: number
}

/**
 * Compares the gradients that autodiff adds to a function with central differences of
 * loss(inputs) = Σ output∘weights, the weights being fixed random numbers, which are the seed.
 *
 * `build` gets the inputs' names and a function from a size to the dimension that stands for it.
 */
export async function compareGradients(
  build: (g: GraphBuilder, x: string[], dim: (size: number) => Dim) => string | string[],
  inputs: Input[],
  options: Options = {},
): Promise<Comparison[]> {
  const float = options.dtype ?? 'float64'
  const step = options.step ?? (float === 'float64' ? 1e-3 : 0.03)
  const dim = (size: number): Dim => (options.symbolic && size > 1 ? `n${size}` : size)
  const g = new GraphBuilder(options.opset ?? 17)
  const names = inputs.map(({ dtype, shape }, i) =>
    g.input(`x${i}`, dtype ?? float, options.shapes?.[i] ?? shape.map(dim)),
  )
  const built = build(g, names, dim)
  const outputs = Array.isArray(built) ? built : [built]
  const seeds: Record<string, string> = {}
  outputs.forEach((output, i) => {
    seeds[output] = g.input(`w${i}`, float, g.shape(output))
    g.output(output)
  })

  const forward = await openSession(prune(g.build(), { unusedInputs: false }), { threads: 1 })
  const wrt = names.filter((_, i) => inputs[i]!.dtype === undefined && !inputs[i]!.fixed)
  const { graph, gradients } = addGradients(g.build(), seeds, wrt)
  const wanted = wrt.map((name) => {
    const gradient = gradients.get(name)
    if (gradient === undefined) throw new Error(`no gradient for ${name}`)
    return gradient
  })
  const backward = await openSession(prune({ ...graph, outputs: [...new Set(wanted)] }, { unusedInputs: false }), {
    threads: 1,
  })
  try {
    const feeds: Record<string, Tensor> = {}
    inputs.forEach(({ shape, values, dtype }, i) => {
      feeds[`x${i}`] = tensor(dtype ?? float, shape, values)
    })
    const given = (inputsOf: ReadonlyMap<string, unknown>) =>
      Object.fromEntries(Object.entries(feeds).filter(([name]) => inputsOf.has(name)))
    const first = await forward.run(given(forward.inputs))
    const weights = outputs.map((output, k) => {
      const { shape } = first[output]!
      return Array.from({ length: elementCount(shape) }, (_, i) => Math.sin(1 + 2.3 * i + 5 * k) + 0.2)
    })
    outputs.forEach((output, k) => {
      feeds[`w${k}`] = tensor(float, first[output]!.shape, weights[k]!)
    })
    const loss = async (): Promise<number> => {
      const result = await forward.run(given(forward.inputs))
      let sum = 0
      outputs.forEach((output, k) => {
        const data = result[output]!.data as Float64Array
        for (let i = 0; i < data.length; i++) sum += data[i]! * weights[k]![i]!
      })
      return sum
    }
    const analytic = await backward.run(given(backward.inputs))
    const comparisons: Comparison[] = []
    for (const [k, name] of wrt.entries()) {
      const input = names.indexOf(name)
      const at = feeds[name]!.data as Float64Array
      const result = analytic[wanted[k]!]!
      const numeric: number[] = []
      for (let i = 0; i < at.length; i++) {
        const x = at[i]!
        const value = async (offset: number) => {
          at[i] = x + offset
          const l = await loss()
          at[i] = x
          return l
        }
        // fourth order: f' = (8·(f(h) − f(−h)) − (f(2h) − f(−2h))) / 12h
        const near = (await value(step)) - (await value(-step))
        const far = (await value(2 * step)) - (await value(-2 * step))
        numeric.push((8 * near - far) / (12 * step))
      }
      const found = Array.from(result.data as Float64Array)
      comparisons.push({
        input,
        shape: result.shape,
        analytic: found,
        numeric,
        error: Math.max(0, ...found.map((a, i) => difference(a, numeric[i]!))),
      })
    }
    return comparisons
  } finally {
    await forward.release()
    await backward.release()
  }
}

function difference(a: number, b: number): number {
  const d = Math.abs(a - b) / Math.max(1, Math.abs(a), Math.abs(b))
  return Number.isFinite(d) ? d : Number.POSITIVE_INFINITY
}

function tensor(dtype: DType, shape: number[], values: number[]): Tensor {
  const data =
    dtype === 'float64'
      ? Float64Array.from(values)
      : dtype === 'float32'
        ? Float32Array.from(values)
        : dtype === 'int64'
          ? BigInt64Array.from(values, (v) => BigInt(v))
          : dtype === 'int32'
            ? Int32Array.from(values)
            : Uint8Array.from(values)
  return { dtype, shape, data }
}
