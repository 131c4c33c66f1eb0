import { readFileSync } from 'node:fs'
import { join } from 'node:path'

/** A small random BERT with what Python computes for it; see bench/peers/make_fixtures.py. */
export function tinyBert(variant: 'mean' | 'cls'): string {
  return join(import.meta.dirname, '..', 'fixtures', 'tiny-bert', variant)
}

export interface Expected {
  texts: string[]
  ids: number[][]
  truncated: boolean[]
  maxLength: number
  embeddings: number[][]
  query: number[][]
  node: number[][]
}

export interface ExpectedAdapter {
  rank: number
  alpha: number
  embeddings: number[][]
  queries: number[][]
  /** query, preferred, other (indices of texts), weight */
  pairs: [number, number, number, number][]
  tau: number
  margin: number
  losses: Record<'logistic' | 'hinge', number>
}

export function expected(variant: 'mean' | 'cls'): Expected {
  return JSON.parse(readFileSync(join(tinyBert(variant), 'expected.json'), 'utf8'))
}

export function expectedAdapter(): ExpectedAdapter {
  return JSON.parse(readFileSync(join(tinyBert('mean'), 'adapter.json'), 'utf8'))
}

/** Largest difference between embeddings [n, dimension] and rows of numbers. */
export function largestDifference(embeddings: Float32Array, rows: number[][]): number {
  const flat = rows.flat()
  if (flat.length !== embeddings.length) return Number.POSITIVE_INFINITY
  return flat.reduce((worst, x, i) => Math.max(worst, Math.abs(x - (embeddings[i] as number))), 0)
}
