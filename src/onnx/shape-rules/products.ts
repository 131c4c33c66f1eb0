import { intAttribute, stringAttribute } from '../attributes.ts'
import type { Dim, ValueType } from '../graph.ts'
import { broadcast, need, type ShapeContext, type ShapeRule } from './rule.ts'

const swap = (shape: Dim[], yes: boolean): Dim[] =>
  yes ? [...shape.slice(0, -2), shape.at(-1) as Dim, shape.at(-2) as Dim] : shape

/** The shape of op(a)·op(b): a vector is a row on the left, a column on the right, and vanishes from the result. */
export function productShape(a: Dim[], b: Dim[], transA = false, transB = false): Dim[] {
  const [x, y] = [swap(a, transA), swap(b, transB)]
  const rows = x.length >= 2 ? [x.at(-2) as Dim] : []
  const columns = y.length >= 2 ? [y.at(-1) as Dim] : []
  return [...broadcast(x.slice(0, -2), y.slice(0, -2)), ...rows, ...columns]
}

const flagged: ShapeRule = (ctx) => {
  const [a, b] = [need(ctx, 0), need(ctx, 1)]
  const flag = (name: string) => intAttribute(ctx.attributes, name, 0) === 1
  return [{ dtype: a.dtype, shape: productShape(a.shape, b.shape, flag('transA'), flag('transB')) }]
}

/** The sizes that an Einsum equation gives to its output's letters. */
function einsum(ctx: ShapeContext): ValueType[] {
  const { inputs, output } = einsumTerms(
    stringAttribute(ctx.attributes, 'equation', ''),
    ctx.inputs.map((_, i) => need(ctx, i).shape.length),
  )
  const sizes = new Map<string, Dim>()
  inputs.forEach((letters, i) => {
    letters.forEach((letter, axis) => {
      const size = need(ctx, i).shape[axis] as Dim
      const [merged] = broadcast([sizes.get(letter) ?? 1], [size])
      sizes.set(letter, merged as Dim)
    })
  })
  return [{ dtype: need(ctx, 0).dtype, shape: output.map((letter) => sizes.get(letter) as Dim) }]
}

/**
 * The axes' letters of an Einsum equation. Axes under an ellipsis get the digits 0, 1, ... counted from its last, since
 * they broadcast; an equation without `->` has the letters that occur once, in order, after the ellipsis.
 *
 * @throws Error for an equation that does not fit inputs of these ranks.
 */
export function einsumTerms(equation: string, ranks: number[]): { inputs: string[][]; output: string[] } {
  const [left = '', right] = equation.replaceAll(' ', '').split('->')
  const terms = left.split(',')
  const wide = Math.max(0, ...ranks.map((rank, i) => rank - (terms[i] ?? '').replace('...', '').length))
  const letters = (term: string, under: number) =>
    term
      .split('...')
      .flatMap((part, i) => [
        ...(i === 0 ? [] : Array.from({ length: under }, (_, k) => String(under - 1 - k))),
        ...part,
      ])
  const inputs = ranks.map((rank, i) => letters(terms[i] ?? '', rank - (terms[i] ?? '').replace('...', '').length))
  const fits = terms.length === ranks.length && inputs.every((term, i) => term.length === ranks[i])
  if (!fits || !/^[A-Za-z.,]*$/.test(left)) throw new Error(`the equation "${equation}" does not fit its inputs`)
  const used = inputs.flat()
  const once = [...new Set(used)].filter((l) => /\D/.test(l) && used.indexOf(l) === used.lastIndexOf(l)).sort()
  const output =
    right === undefined ? [...letters('...', left.includes('...') ? wide : 0), ...once] : letters(right, wide)
  if (output.some((letter) => !used.includes(letter)))
    throw new Error(`the equation "${equation}" has an output that no input gives`)
  return { inputs, output }
}

/** Products of matrices and tensors. */
export const productShapes: Record<string, ShapeRule> = {
  MatMul: flagged,
  FusedMatMul: flagged,
  Gemm: flagged,
  MatMulInteger: (ctx) => [{ dtype: 'int32', shape: productShape(need(ctx, 0).shape, need(ctx, 1).shape) }],
  Einsum: einsum,
}
