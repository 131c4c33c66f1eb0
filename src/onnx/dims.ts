import type { Dim } from './graph.ts'

/**
 * Arithmetic of dimensions. A dimension is a polynomial with whole coefficients in the graph's symbols; it is written in
 * one canonical order, so that equal texts are equal sizes: `3*batch*sequence + past - 1`.
 */

/** A product of symbols in order, joined by `*` ('' for none) -> its coefficient. */
type Terms = Map<string, number>

/** Longer sums and names become symbols of their own: what a hostile graph multiplies up stays small. */
const MAX_TERMS = 8
const MAX_LENGTH = 160

/** The symbols in a dimension, and the dimension's own text. */
export function symbolsOf(dim: Dim): string[] {
  return typeof dim === 'number' ? [] : [dim, ...[...parse(dim).keys()].flatMap(factors)]
}

/** What a dimension comes to where its symbols have these sizes; undefined where one of them has none. */
export function sizeOfDim(dim: Dim, sizes: Readonly<Record<string, number>>): number | undefined {
  if (typeof dim === 'number') return dim
  let total = 0
  for (const [key, n] of parse(dim)) {
    let product = n
    for (const symbol of factors(key)) {
      const size = Object.hasOwn(sizes, symbol) ? sizes[symbol] : undefined
      if (size === undefined) return undefined
      product *= size
    }
    total += product
  }
  return total
}

export function addDims(a: Dim, b: Dim): Dim | undefined {
  return combine(a, b, 1)
}

export function subtractDims(a: Dim, b: Dim): Dim | undefined {
  return combine(a, b, -1)
}

export function multiplyDims(a: Dim, b: Dim): Dim | undefined {
  if (typeof a === 'number' && typeof b === 'number') return whole(a * b)
  const terms: Terms = new Map()
  for (const [x, m] of parse(a))
    for (const [y, n] of parse(b)) {
      const key = [...factors(x), ...factors(y)].sort().join('*')
      terms.set(key, (terms.get(key) ?? 0) + m * n)
    }
  return format(terms)
}

/** The product of dimensions; undefined where it grows beyond bounds. */
export function productOfDims(dims: readonly Dim[]): Dim | undefined {
  return dims.reduce<Dim | undefined>((p, d) => (p === undefined ? undefined : multiplyDims(p, d)), 1)
}

/** a/b where it is a whole polynomial: b is one product of symbols, or divides a as a whole. */
export function divideDims(a: Dim, b: Dim): Dim | undefined {
  if (a === b) return a === 0 ? undefined : 1
  const divisor = [...parse(b)]
  const [[symbols, n] = ['', 0]] = divisor
  if (divisor.length !== 1 || n === 0) return undefined
  const terms: Terms = new Map()
  for (const [key, m] of parse(a)) {
    if (m === 0) continue
    const rest = factors(key)
    for (const symbol of factors(symbols)) {
      const at = rest.indexOf(symbol)
      if (at < 0) return undefined
      rest.splice(at, 1)
    }
    if (m % n !== 0) return undefined
    terms.set(rest.join('*'), m / n)
  }
  return format(terms)
}

/** ⌊a/b⌋ for sizes, as a symbol of its own where b does not divide a. */
export function floorDivideDims(a: Dim, b: Dim): Dim | undefined {
  if (typeof a === 'number' && typeof b === 'number') return b === 0 ? undefined : Math.floor(a / b)
  const name = (d: Dim) => String(d).replaceAll('*', '.').replaceAll(' ', '')
  return divideDims(a, b) ?? short(`floor(${name(a)}/${name(b)})`)
}

/** a < b, a = b or a > b as -1, 0 or 1, where it is so whatever non-negative sizes the symbols have. */
export function compareDims(a: Dim, b: Dim): -1 | 0 | 1 | undefined {
  const { low, high } = bounds(a, b)
  if (low > 0) return 1
  if (high < 0) return -1
  return low === 0 && high === 0 ? 0 : undefined
}

/** Whether a ≥ b whatever non-negative sizes the symbols have. */
export function atLeast(a: Dim, b: Dim): boolean {
  return bounds(a, b).low >= 0
}

/** The least and greatest that a − b can be. */
function bounds(a: Dim, b: Dim): { low: number; high: number } {
  let [low, high] = [0, 0]
  for (const [key, n] of sum(parse(a), parse(b), -1)) {
    if (key === '') {
      low += n
      high += n
    } else if (n > 0) high = Number.POSITIVE_INFINITY
    else if (n < 0) low = Number.NEGATIVE_INFINITY
  }
  return { low, high }
}

function combine(a: Dim, b: Dim, sign: 1 | -1): Dim | undefined {
  if (typeof a === 'number' && typeof b === 'number') return whole(a + sign * b)
  return format(sum(parse(a), parse(b), sign))
}

function sum(a: Terms, b: Terms, sign: 1 | -1): Terms {
  const terms = new Map(a)
  for (const [key, n] of b) terms.set(key, (terms.get(key) ?? 0) + sign * n)
  return terms
}

const factors = (key: string): string[] => (key === '' ? [] : key.split('*'))

/** The polynomial behind a dimension. A name that is none is one symbol. */
function parse(dim: Dim): Terms {
  if (typeof dim === 'number') return new Map([['', dim]])
  const terms: Terms = new Map()
  // operands at even places, the signs before them at odd ones
  const parts = dim.split(/ ([+-]) /)
  for (let i = 0; i < parts.length; i += 2) {
    const product = (parts[i] as string).split('*')
    const number = /^\d+$/.test(product[0] as string) ? Number(product.shift()) : 1
    if (product.some((name) => /^\d*$/.test(name))) return new Map([[dim, 1]])
    const key = product.sort().join('*')
    const sign = parts[i - 1] === '-' ? -1 : 1
    terms.set(key, (terms.get(key) ?? 0) + sign * number)
  }
  return terms
}

function format(terms: Terms): Dim | undefined {
  const parts = [...terms].filter(([, n]) => n !== 0)
  if (parts.some(([, n]) => whole(n) === undefined) || parts.length > MAX_TERMS) return undefined
  if (parts.every(([key]) => key === '')) return parts[0]?.[1] ?? 0
  // longer products first, then by name; positive before negative, so that a text never starts with a sign if it can
  parts.sort(
    ([a, m], [b, n]) =>
      Number(n > 0) - Number(m > 0) || factors(b).length - factors(a).length || (a < b ? -1 : a > b ? 1 : 0),
  )
  const text = parts
    .map(([key, n], i) => {
      const size = Math.abs(n)
      const body = key === '' ? String(size) : size === 1 ? key : `${size}*${key}`
      return i === 0 ? (n < 0 ? `0 - ${body}` : body) : `${n < 0 ? '-' : '+'} ${body}`
    })
    .join(' ')
  return short(text)
}

const short = (text: string): string | undefined => (text.length > MAX_LENGTH ? undefined : text)

/** A number that is exact; 0 for −0. */
const whole = (n: number): number | undefined => (Number.isSafeInteger(n) ? n || 0 : undefined)
