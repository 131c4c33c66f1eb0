import fc from 'fast-check'
import { type Attribute, type Dim, type DType, GraphBuilder, type Tensor } from '../../../src/onnx/index.ts'

/** What a case draws from, and the graph that it fills. */
export class Draw {
  readonly g = new GraphBuilder(24)
  readonly feeds: Record<string, Tensor> = {}
  readonly gen: fc.GeneratorValue
  constructor(gen: fc.GeneratorValue) {
    this.gen = gen
  }

  int(min: number, max: number): number {
    return this.gen(fc.integer, { min, max })
  }

  flag(): boolean {
    return this.gen(fc.boolean)
  }

  pick<T>(...from: T[]): T {
    return from[this.int(0, from.length - 1)] as T
  }

  shape(minRank = 1, maxRank = 4): number[] {
    return Array.from({ length: this.int(minRank, maxRank) }, () => this.int(1, 4))
  }

  /** A graph input of run-time shape `shape`; some sizes above 1 are declared by a symbol, one symbol a size. */
  input(shape: number[], dtype: DType = 'float32', values?: number[]): string {
    const declared = shape.map((d): Dim => (d > 1 && this.flag() ? `s${d}` : d))
    const name = `x${Object.keys(this.feeds).length}`
    const count = shape.reduce((a, b) => a * b, 1)
    const numbers = values ?? Array.from({ length: count }, (_, i) => ((i * 7) % 5) / 4 + 0.25)
    const data =
      dtype === 'int64'
        ? BigInt64Array.from(numbers, (v) => BigInt(Math.trunc(v)))
        : dtype === 'bool'
          ? Uint8Array.from(numbers, (v) => (v > 0.8 ? 1 : 0))
          : dtype === 'uint8'
            ? Uint8Array.from(numbers)
            : Float32Array.from(numbers)
    this.feeds[name] = { dtype, shape, data }
    return this.g.input(name, dtype, declared)
  }

  /** An int64 vector of fixed length whose values are known only at run time. */
  vector(values: number[]): string {
    const name = `x${Object.keys(this.feeds).length}`
    this.feeds[name] = { dtype: 'int64', shape: [values.length], data: BigInt64Array.from(values, BigInt) }
    return this.g.input(name, 'int64', [values.length])
  }

  ints(values: number[]): string {
    return this.g.constant(values, 'int64')
  }

  /** `shape`, or a shape that broadcasts to it: leading sizes dropped, others replaced by 1. */
  broadcastable(shape: number[]): number[] {
    return shape.map((d) => (this.flag() ? d : 1)).slice(this.int(0, shape.length))
  }

  axis(rank: number): number {
    return this.int(-rank, rank - 1)
  }

  axes(rank: number): number[] {
    return Array.from({ length: rank }, (_, i) => i)
      .filter(() => this.flag())
      .map((i) => (this.flag() ? i : i - rank))
  }
}

/** Adds a node with drawn inputs and returns its outputs. */
export type Case = (d: Draw) => string[]

/** An integer attribute. */
export const i = (n: number): Attribute => ({ i: n })

/** Shapes of a matrix product's two sides, transposed where asked. */
export function matrices(d: Draw, transA: boolean, transB: boolean, batched: boolean): [number[], number[]] {
  const [m, k, n] = [d.int(1, 4), d.int(1, 4), d.int(1, 4)]
  const batch = batched ? d.shape(0, 2) : []
  const batchB = batched && d.flag() ? batch.map((b) => (d.flag() ? b : 1)) : batch
  return [
    [...batch, ...(transA ? [k, m] : [m, k])],
    [...batchB, ...(transB ? [n, k] : [k, n])],
  ]
}
