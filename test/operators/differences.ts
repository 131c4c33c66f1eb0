import { type Graph, openSession, type Session, type Tensor } from '../../src/onnx/index.ts'
import { feedsOf, isFloat, type Outcome, settings } from './outcome.ts'

export interface GradientOutcome {
  outcome: Outcome
  /** Elements compared with finite differences, and those at which the function has no derivative. */
  compared: number
  kinks: number
  /** The element type in which the comparison was made. */
  precision?: 'float64' | 'float32'
}

/** At most so many elements of an input are moved; which ones is drawn from a fixed sequence. */
const MAX_ELEMENTS = 24

export interface Problem {
  graph: Graph
  feeds: Record<string, Tensor>
}

export interface Sessions {
  forward: Session
  /** Absent where no gradient flows: all are 0. */
  backward: Session | undefined
  /** Input -> the backward graph's output that is its gradient. */
  gradients: Map<string, string>
  /** The outputs that are weighted, and their weights. */
  weights: Map<string, number[]>
  wrt: string[]
  note?: string
}

const steps = { float64: [1e-3, 1e-4, 1e-5, 1e-6], float32: [0.03, 0.1, 0.01, 3e-3, 1e-3] }
const tolerance = { float64: 1e-5, float32: 1e-2 }
/** How far an input's gradient may be off, of its largest element, or of FLOOR where all are smaller. */
const coarseness = { float64: 1e-3, float32: 0.1 }
const FLOOR = 1e-3

/** Compares sampled elements of each gradient with differences of the weighted sum of the outputs. */
export async function differences(
  { forward, backward, gradients, weights, wrt, note }: Sessions,
  { graph, feeds }: Problem,
  given: 'float64' | 'float32',
): Promise<GradientOutcome> {
  // A Cast on the way, or a kernel that computes in float32, makes the whole as coarse as its coarsest value.
  let precision = given
  if ([...graph.types.values()].some(({ dtype }) => isFloat(dtype) && dtype !== 'float64')) precision = 'float32'
  const at = Object.fromEntries(
    Object.entries(feeds).map(([name, t]) => [name, { ...t, data: t.data.slice() } as Tensor]),
  )
  const loss = async (): Promise<number> => {
    const result = await forward.run(feedsOf(forward, at))
    let sum = 0
    for (const [output, w] of weights) {
      const { data } = result[output] as Tensor
      for (let i = 0; i < w.length; i++) if (w[i] !== 0) sum += Number(data[i]) * (w[i] as number)
    }
    return sum
  }
  const analytic = await backward?.run(feedsOf(backward, at))
  let [compared, kinks, error] = [0, 0, 0]
  for (const name of wrt) {
    const data = (at[name] as Tensor).data as Float64Array
    const gradient = gradients.get(name)
    const found = gradient === undefined ? undefined : (analytic?.[gradient] as Tensor)
    if (found !== undefined && String(found.shape) !== String((at[name] as Tensor).shape))
      return fails(`the gradient of "${name}" has shape [${found.shape}]`)
    let [size, apart] = [0, 0]
    for (const i of sampled(data.length)) {
      const x = data[i] as number
      const a = found === undefined ? 0 : Number(found.data[i])
      const value = async (offset: number) => {
        data[i] = x + offset
        const y = await loss()
        data[i] = x
        return y
      }
      if (Number.isNaN(a) && (await hasNaN(graph, at)))
        return {
          outcome: { kind: 'skipped', why: 'its values are no numbers on the way, and 0·NaN is NaN' },
          compared,
          kinks,
        }
      const scale = Math.max(1, Math.abs(x))
      let best = await disagreement(a, value, scale, precision)
      if (best.off >= tolerance[precision] && precision === 'float64') {
        const coarse = await disagreement(a, value, scale, 'float32')
        if (coarse.off < tolerance.float32 && !(await isKink(value, scale))) {
          precision = 'float32'
          best = coarse
        }
      }
      if (best.off < tolerance[precision]) {
        compared++
        error = Math.max(error, best.off)
        size = Math.max(size, Math.abs(a), Math.abs(best.numeric))
        apart = Math.max(apart, Math.abs(a - best.numeric))
      } else if (await isKink(value, scale)) kinks++
      else return fails(`d/d ${name}[${i}] is ${a} at ${x}, off by ${best.off.toPrecision(2)} of its size`)
    }
    // Where the whole gradient is small, a wrong one is near it too.
    if (apart > coarseness[precision] * Math.max(size, FLOOR))
      return fails(`the gradient of "${name}" is at most ${size}, and off by ${apart.toPrecision(2)}`)
  }
  if (compared === 0) return { outcome: { kind: 'skipped', why: 'no point with a derivative' }, compared, kinks }
  return { outcome: { kind: 'agrees', error, ...(note === undefined ? {} : { note }) }, compared, kinks, precision }

  function fails(why: string): GradientOutcome {
    return { outcome: { kind: 'fails', why }, compared, kinks }
  }
}

/** Whether any value of a graph is no number. */
async function hasNaN(graph: Graph, feeds: Record<string, Tensor>): Promise<boolean> {
  const outputs = graph.nodes.flatMap((node) => node.outputs.filter((name) => isFloat(graph.types.get(name)?.dtype)))
  const session = await openSession({ ...graph, outputs }, settings)
  try {
    const results = await session.run(feedsOf(session, feeds))
    return Object.values(results).some(({ data }) => Array.from(data as Float64Array).some(Number.isNaN))
  } finally {
    await session.release()
  }
}

/** The least relative difference from fourth-order central differences over a few steps: each function has its own best. */
async function disagreement(
  analytic: number,
  value: (offset: number) => Promise<number>,
  scale: number,
  precision: 'float64' | 'float32',
): Promise<{ off: number; numeric: number }> {
  let best = { off: Number.POSITIVE_INFINITY, numeric: Number.NaN }
  for (const step of steps[precision]) {
    const h = step * scale
    // f' = (8·(f(h) − f(−h)) − (f(2h) − f(−2h))) / 12h
    const near = (await value(h)) - (await value(-h))
    const far = (await value(2 * h)) - (await value(-2 * h))
    const numeric = (8 * near - far) / (12 * h)
    const off = Math.abs(analytic - numeric) / Math.max(1, Math.abs(analytic), Math.abs(numeric))
    if (off < best.off) best = { off, numeric }
    if (best.off < tolerance[precision] / 10) break
  }
  return best
}

/**
 * Whether the slopes to both sides stay apart, or grow, however near one looks: a kink or a jump. So is a point where the
 * function is not finite.
 */
async function isKink(value: (offset: number) => Promise<number>, scale: number): Promise<boolean> {
  const y = await value(0)
  if (!Number.isFinite(y)) return true
  const slopes = async (h: number) => {
    const [up, down] = [((await value(h)) - y) / h, (y - (await value(-h))) / h]
    const size = Math.max(1, Math.abs(up), Math.abs(down))
    return { size, apart: Math.abs(up - down) / size }
  }
  const [far, near] = [await slopes(0.03 * scale), await slopes(0.003 * scale)]
  if (!Number.isFinite(near.size)) return true
  return near.size > 5 * far.size || (near.apart > 0.01 && near.apart > far.apart / 3)
}

/** Indices of at most MAX_ELEMENTS of `n` elements, spread over all of them. */
function sampled(n: number): number[] {
  if (n <= MAX_ELEMENTS) return Array.from({ length: n }, (_, i) => i)
  const chosen = Array.from({ length: MAX_ELEMENTS }, (_, i) =>
    Math.floor(((i + ((i * 0.618) % 1)) * n) / MAX_ELEMENTS),
  )
  return [...new Set(chosen.map((i) => Math.min(i, n - 1)))]
}
