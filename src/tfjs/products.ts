import { elementCount, floatAttribute, intAttribute } from '../onnx/index.ts'
import { broadcastShape } from './index-maps.ts'
import type { Float, NodeContext, Tfjs } from './values.ts'

interface ProductOptions {
  transA?: boolean
  transB?: boolean
  alpha?: number
}

export function productOptions({ attributes, node }: NodeContext): ProductOptions {
  if (intAttribute(attributes, 'transBatchA', 0) === 1 || intAttribute(attributes, 'transBatchB', 0) === 1)
    throw new TypeError(`${node.op} with transBatchA or transBatchB is not supported`)
  return {
    transA: intAttribute(attributes, 'transA', 0) === 1,
    transB: intAttribute(attributes, 'transB', 0) === 1,
    alpha: floatAttribute(attributes, 'alpha', 1),
  }
}

/** x with its axes of size 1 stretched to `shape`. A product with ones, whose gradient sums (`tf.tile`'s stops at rank 4). */
export function stretched(tf: Tfjs, x: Float, shape: number[]): Float {
  const same = x.shape.length === shape.length && x.shape.every((d, i) => d === shape[i])
  return same ? x : tf.mul(x, tf.ones(shape))
}

/**
 * α · op(a) · op(b), numpy's matmul: vectors are rows (a) or columns (b), batch axes broadcast. They are made equal first,
 * because `tf.matMul`'s gradient does not sum over those that it broadcasts itself.
 */
export function product(tf: Tfjs, a: Float, b: Float, options: ProductOptions = {}): Float {
  const { transA = false, transB = false, alpha = 1 } = options
  if (a.rank === 1 || b.rank === 1) {
    const rows = a.rank === 1 ? tf.reshape(a, [1, -1]) : a
    const columns = b.rank === 1 ? tf.reshape(b, [-1, 1]) : b
    const y = product(tf, rows, columns, { transA: a.rank > 1 && transA, transB: b.rank > 1 && transB, alpha })
    const drop = new Set([...(a.rank === 1 ? [y.rank - 2] : []), ...(b.rank === 1 ? [y.rank - 1] : [])])
    return tf.reshape(
      y,
      y.shape.filter((_, axis) => !drop.has(axis)),
    )
  }
  const [m, k] = transA ? [a.shape.at(-1)!, a.shape.at(-2)!] : [a.shape.at(-2)!, a.shape.at(-1)!]
  const n = transB ? b.shape.at(-2)! : b.shape.at(-1)!
  const scaled = (y: Float): Float => (alpha === 1 ? y : tf.mul(y, alpha))
  if (b.rank === 2 && !transA) {
    // one product over all rows
    const rows = tf.reshape(a, [elementCount(a.shape) / k, k])
    return scaled(tf.reshape(tf.matMul(rows, b, false, transB), [...a.shape.slice(0, -2), m, n]))
  }
  const batch = broadcastShape(a.shape.slice(0, -2), b.shape.slice(0, -2))
  const matrices = (x: Float): Float => {
    const matrix = x.shape.slice(-2)
    return tf.reshape(stretched(tf, x, [...batch, ...matrix]), [elementCount(batch), ...matrix])
  }
  return scaled(tf.reshape(tf.matMul(matrices(a), matrices(b), transA, transB), [...batch, m, n]))
}

/**
 * Einsum from transposes, sums and one matrix product for each further operand (`tf.einsum` has no gradient).
 *
 * @throws TypeError for an ellipsis, or a letter twice in one operand
 */
export function einsum(tf: Tfjs, equation: string, operands: Float[]): Float {
  const [left, right] = equation.replace(/\s/g, '').split('->') as [string, string | undefined]
  const terms = left.split(',')
  if (equation.includes('.')) throw new TypeError(`Einsum "${equation}" with an ellipsis is not supported`)
  if (terms.some((term) => new Set(term).size < term.length))
    throw new TypeError(`Einsum "${equation}" with a letter twice in one operand is not supported`)
  const letters = [...terms.join('')]
  // without "->": the letters that occur once, in alphabetical order
  const result =
    right ??
    [...new Set(letters)]
      .filter((l) => letters.indexOf(l) === letters.lastIndexOf(l))
      .sort()
      .join('')
  let term = terms[0]!
  let value = operands[0]!
  for (let i = 1; i < terms.length; i++) {
    const later = new Set([...terms.slice(i + 1).join(''), ...result])
    ;({ term, value } = contract(tf, { term, value }, { term: terms[i]!, value: operands[i]! }, later))
  }
  const summed = summedOver(tf, { term, value }, new Set(result))
  return ordered(tf, summed, result)
}

interface Labelled {
  /** A letter for each axis. */
  term: string
  value: Float
}

/** Sums over the axes whose letters are not among `kept`. */
function summedOver(tf: Tfjs, { term, value }: Labelled, kept: Set<string>): Labelled {
  const axes = [...term].flatMap((l, axis) => (kept.has(l) ? [] : [axis]))
  if (axes.length === 0) return { term, value }
  return { term: [...term].filter((l) => kept.has(l)).join(''), value: tf.sum(value, axes) }
}

function ordered(tf: Tfjs, { term, value }: Labelled, letters: string): Float {
  if (term === letters) return value
  return tf.transpose(
    value,
    [...letters].map((l) => term.indexOf(l)),
  )
}

/** Both operands as [batch, m, k]·[batch, k, n]; the letters that nobody needs later are summed over. */
function contract(tf: Tfjs, first: Labelled, second: Labelled, later: Set<string>): Labelled {
  const a = summedOver(tf, first, new Set([...second.term, ...later]))
  const b = summedOver(tf, second, new Set([...first.term, ...later]))
  const shared = [...a.term].filter((l) => b.term.includes(l))
  const batch = shared.filter((l) => later.has(l)).join('')
  const inner = shared.filter((l) => !later.has(l)).join('')
  const rows = [...a.term].filter((l) => !shared.includes(l)).join('')
  const columns = [...b.term].filter((l) => !shared.includes(l)).join('')
  const size = (l: string): number =>
    a.term.includes(l) ? a.value.shape[a.term.indexOf(l)]! : b.value.shape[b.term.indexOf(l)]!
  const sizes = (text: string): number[] => [...text].map(size)
  const matrix = (x: Labelled, left: string, right: string): Float =>
    tf.reshape(ordered(tf, x, batch + left + right), [
      elementCount(sizes(batch)),
      elementCount(sizes(left)),
      elementCount(sizes(right)),
    ])
  const y = tf.matMul(matrix(a, rows, inner), matrix(b, inner, columns))
  return { term: batch + rows + columns, value: tf.reshape(y, sizes(batch + rows + columns)) }
}
