import fc from 'fast-check'
import type { TokenSequence } from '../../src/encoder/index.ts'

/** What decides a token's state beside the tokens before it: id, three positions, and the feature row it stands for. */
export function tokensOf({ ids, positions, visuals = [] }: TokenSequence): string[] {
  const rows = new Map(
    visuals.flatMap(({ at, length, key }) => Array.from({ length }, (_, r) => [at + r, `${key}/${r}`])),
  )
  return Array.from(ids, (id, i) => {
    const place = [0, 1, 2].map((axis) => (positions === undefined ? i : positions[axis * ids.length + i]))
    return [id, ...place, rows.get(i) ?? 'text'].join(' ')
  })
}

/** Few different tokens, so that many sequences begin alike, are equal, or go on from another. */
const text = fc
  .array(fc.integer({ min: 1, max: 2 }), { minLength: 1, maxLength: 14 })
  .map((ids): TokenSequence => ({ ids: Int32Array.from(ids) }))

/** The placeholder of pictures in {@link sequences}; text may have it, too. */
export const PLACEHOLDER = 2

/** Text, then two pictures of the same size that share their placeholder, then text; positions that differ by axis, or none. */
const picture = fc
  .record({
    before: fc.array(fc.integer({ min: 1, max: 2 }), { maxLength: 3 }),
    keys: fc.array(fc.constantFrom('a', 'b'), { minLength: 1, maxLength: 2 }),
    after: fc.array(fc.integer({ min: 1, max: 2 }), { maxLength: 3 }),
    shift: fc.constantFrom(undefined, 0, 1),
  })
  .map(({ before, keys, after, shift }): TokenSequence => {
    const ids = Int32Array.from([...before, ...keys.flatMap(() => [PLACEHOLDER, PLACEHOLDER, PLACEHOLDER]), ...after])
    const visuals = keys.map((key, n) => ({ at: before.length + 3 * n, length: 3, key }))
    if (shift === undefined) return { ids, visuals }
    const positions = Int32Array.from({ length: 3 * ids.length }, (_, at) => {
      const [axis, i] = [Math.floor(at / ids.length), at % ids.length]
      return axis === 2 && i > 3 ? i + shift : i
    })
    return { ids, positions, visuals }
  })

export const sequences = fc.array(fc.oneof(text, picture), { minLength: 1, maxLength: 24 })
