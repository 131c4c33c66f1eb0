import type { GraphBuilder } from '../../onnx/index.ts'
import type { Qwen3Config } from './config.ts'

/** Cosines and sines of the angles by which a token's heads turn, each float32 [tokens, width / 2]. */
export interface Angles {
  cos: string
  sin: string
}

/**
 * θ^(−2f / width) for the frequencies f < width / 2 that turn `width` columns; rounded to float32 step by step as transformers'
 * are, so that large positions turn by the same angles.
 */
export function rotaryFrequencies(theta: number, width: number): number[] {
  return Array.from({ length: width / 2 }, (_, f) =>
    Math.fround(1 / Math.fround(theta ** Math.fround((2 * f) / width))),
  )
}

/**
 * The angles of tokens: position · θ^(−2f / width) for frequency f, where M-RoPE takes the time, height or width position
 * (`axis`).
 *
 * @param positions float32: [tokens, 1], or [3, tokens] where the model has M-RoPE
 */
export function rotaryAngles(g: GraphBuilder, config: Qwen3Config, positions: string): Angles {
  const { headWidth, theta, sections } = config
  const frequencies = rotaryFrequencies(theta, headWidth)
  // element by element: matrix products may be computed in half precision, which has no room for positions
  const turning = sections === undefined ? positions : perFrequency(g, positions, frequencies.length, sections)
  const angles = g.mul(turning, g.constant(frequencies, 'float32', [1, frequencies.length]))
  return { cos: g.one('Cos', [angles]), sin: g.one('Sin', [angles]) }
}

/** [3, tokens] -> [tokens, count]: of each token the position that turns each frequency. */
function perFrequency(g: GraphBuilder, positions: string, count: number, sections: [number, number, number]): string {
  const axes = Array.from({ length: count }, (_, f) => axis(f, sections))
  return g.transpose(g.gather(positions, g.constant(axes, 'int64')), [1, 0])
}

/**
 * Which position turns frequency f in interleaved M-RoPE: time, height and width alternate as long as the height's and the
 * width's sections last, then time again (Qwen3-VL, transformers' `Qwen3VLTextRotaryEmbedding`).
 */
function axis(f: number, [, height, width]: [number, number, number]): 0 | 1 | 2 {
  if (f % 3 === 1 && f < 3 * height) return 1
  if (f % 3 === 2 && f < 3 * width) return 2
  return 0
}

/**
 * Heads turned by their tokens' angles: columns (i, i + width / 2) = (a, b) become (a·cos − b·sin, b·cos + a·sin). In one pass,
 * with ONNX Runtime's operator, to which all tokens are one sequence whose tables are the angles.
 *
 * @param x float32 [tokens, heads, width]
 */
export function rotated(g: GraphBuilder, x: string, { cos, sin }: Angles): string {
  const [tokens, heads, width] = g.shape(x) as [string, number, number]
  const first = g.constant([0], 'int64')
  const y = g.one('RotaryEmbedding', [g.reshape(x, [1, tokens, heads * width]), first, cos, sin], {
    domain: 'com.microsoft',
    attributes: { num_heads: { i: heads } },
  })
  return g.reshape(y, [tokens, heads, width])
}

/** The same in standard operators. */
export function plainRotated(g: GraphBuilder, x: string, { cos, sin }: Angles): string {
  const half = (g.shape(x)[2] as number) / 2
  const [a, b] = [g.slice(x, 2, 0, half), g.slice(x, 2, half, 2 * half)]
  const [c, s] = [g.unsqueeze(cos, [1]), g.unsqueeze(sin, [1])]
  return g.concat([g.sub(g.mul(a, c), g.mul(b, s)), g.add(g.mul(b, c), g.mul(a, s))], 2)
}
