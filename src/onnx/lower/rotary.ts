import { floatAttribute, intAttribute } from '../attributes.ts'
import type { Dim } from '../graph.ts'
import { joinHeads, splitHeads } from './attention.ts'
import {
  fixedSize,
  type Lowering,
  type LoweringContext,
  range,
  refuse,
  refuseAttributes,
  split,
  UNFUSED,
} from './lowering.ts'

/** cos and sin of the angles, of shapes that broadcast to [batch, heads, length, r/2]. */
export interface Angles {
  cos: string
  sin: string
}

/** Rows `positions` ([length] or [batch, length]) of the tables [positions, r/2], for {@link rotate}. */
export function anglesAt(ctx: LoweringContext, cosTable: string, sinTable: string, positions: string): Angles {
  const { g } = ctx
  const rows = (table: string) =>
    ctx.shared(`angles:${table}:${positions}`, () => {
      const picked = g.gather(table, positions)
      return g.shape(positions).length === 2 ? g.unsqueeze(picked, [1]) : picked
    })
  return { cos: rows(cosTable), sin: rows(sinTable) }
}

/**
 * Rotary position embedding (Su et al. 2021) of x [batch, heads, length, D]: of its first r columns, the pairs (x₁, x₂)
 * become (x₁·cos − x₂·sin, x₂·cos + x₁·sin); the other columns stay. Pairs are columns (i, i + r/2), or (2i, 2i + 1) where
 * interleaved.
 */
export function rotate(ctx: LoweringContext, x: string, { cos, sin }: Angles, interleaved: boolean): string {
  const { g, node } = ctx
  const [batch, heads, length, size] = g.shape(x) as [Dim, Dim, Dim, Dim]
  const width = fixedSize(node, 'the width of a head', size)
  const half = fixedSize(node, 'the width of the rotary tables', g.shape(cos).at(-1))
  const [turned, rest] = 2 * half === width ? [x] : split(g, x, 3, [2 * half, width - 2 * half])
  const turn = (a: string, b: string) =>
    [g.sub(g.mul(a, cos), g.mul(b, sin)), g.add(g.mul(b, cos), g.mul(a, sin))] as const
  let y: string
  if (interleaved) {
    const pairs = g.reshape(turned as string, [batch, heads, length, half, 2])
    const [a, b] = split(g, pairs, 4, [1, 1]).map((part) => g.squeeze(part, [4])) as [string, string]
    y = g.reshape(
      g.concat(
        turn(a, b).map((part) => g.unsqueeze(part, [4])),
        4,
      ),
      [batch, heads, length, 2 * half],
    )
  } else {
    const [a, b] = split(g, turned as string, 3, [half, half]) as [string, string]
    y = g.concat([...turn(a, b)], 3)
  }
  return rest === undefined ? y : g.concat([y, rest], 3)
}

/** `rotate` on [batch, heads, length, D], or on [batch, length, heads·D], which stays in that form. */
function rotateInput(ctx: LoweringContext, heads: () => number, angles: Angles): string[] {
  const { g, node } = ctx
  const x = ctx.x(0)
  const interleaved = intAttribute(node.attributes, 'interleaved', 0) === 1
  if (g.shape(x).length === 4) return [rotate(ctx, x, angles, interleaved)]
  return [joinHeads(ctx, rotate(ctx, splitHeads(ctx, x, heads()), angles, interleaved))]
}

/** com.microsoft RotaryEmbedding: positions are [batch, length], or [1], the position of the first token. */
export const rotaryEmbedding: Lowering = (ctx) => {
  const { g, node, x } = ctx
  refuseAttributes(node, ['is_packed_batching'])
  if (floatAttribute(node.attributes, 'scale', 1) !== 1) refuse(node, 'the attribute scale is not supported', UNFUSED)
  const shape = g.shape(x(0))
  const length = shape.at(shape.length === 4 ? 2 : 1) as Dim
  const offset = g.shape(x(1)).length === 1
  const positions = offset ? ctx.shared(`positions:${x(1)}:${length}`, () => g.add(range(ctx, length), x(1))) : x(1)
  // Without an explicit number of heads the tables are as wide as half a head.
  const count = () => {
    const own = intAttribute(node.attributes, 'num_heads', 0)
    if (own > 0) return own
    return (
      fixedSize(node, 'the hidden size', shape[2]) / (2 * fixedSize(node, 'the width of the tables', g.shape(x(2))[1]))
    )
  }
  return rotateInput(ctx, count, anglesAt(ctx, x(2), x(3), positions))
}

/** RotaryEmbedding of opset 23: tables [positions, r/2] with position_ids, or [batch, length, r/2] without. */
export const standardRotaryEmbedding: Lowering = (ctx) => {
  const { g, node, x } = ctx
  const given = (table: string) => ctx.shared(`angles:${table}`, () => g.unsqueeze(table, [1]))
  const angles = x(3) === '' ? { cos: given(x(1)), sin: given(x(2)) } : anglesAt(ctx, x(1), x(2), x(3))
  return rotateInput(ctx, () => intAttribute(node.attributes, 'num_heads', 0), angles)
}
