import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { type CausalRows, causalFeeds, causalRows, sharedTokens, type TokenSequence } from '../../src/encoder/index.ts'
import { sequences, tokensOf } from './prefix-sequences.ts'

const options = fc.record(
  {
    share: fc.boolean(),
    rowLength: fc.constantFrom(16, 24, 40),
    work: fc.constantFrom({ evenLength: 4 }, { evenLength: 1e6 }, { evenLength: 64 }),
  },
  { requiredKeys: ['share', 'work'] },
)
const padId = 9
const work = { evenLength: 1000 }

/** The columns that a token sees, by the mask's definition. */
function seenBy(batch: CausalRows, at: number): number[] {
  const start = at - (at % batch.length)
  const column = at - start
  return Array.from({ length: column + 1 }, (_, j) => start + j).filter((j) => column < (batch.ends[j] as number))
}

/** A column's token as {@link tokensOf} writes it. */
function tokenAt(batch: CausalRows, at: number): string {
  const size = batch.rows * batch.length
  const row = batch.visualRows[at] as number
  const block = batch.visuals.find(({ first, rows }) => row >= first && row < first + rows)
  const place = [0, 1, 2].map((axis) => batch.positionIds[axis * size + at])
  return [batch.inputIds[at], ...place, block === undefined ? 'text' : `${block.key}/${row - block.first}`].join(' ')
}

/** Tokens of the trie of some sequences: their distinct prefixes. */
function distinctPrefixes(all: TokenSequence[]): number {
  return new Set(all.map(tokensOf).flatMap((tokens) => tokens.map((_, i) => tokens.slice(0, i + 1).join()))).size
}

describe('causalRows', () => {
  it('has each sequence’s last token see exactly the sequence, in order, and each other token what is before it', () => {
    fc.assert(
      fc.property(sequences, options, (all, chosen) => {
        const batch = causalRows(all, { padId, ...chosen })
        const inUse = new Set<number>()
        all.forEach((sequence, n) => {
          const path = seenBy(batch, batch.last[n] as number)
          expect(path.map((at) => tokenAt(batch, at))).toEqual(tokensOf(sequence))
          path.forEach((at, i) => {
            expect(seenBy(batch, at)).toEqual(path.slice(0, i + 1))
            inUse.add(at)
          })
        })
        expect(inUse.size).toBe(batch.computed)
        for (let at = 0; at < batch.rows * batch.length; at++) {
          if (inUse.has(at)) continue
          expect(seenBy(batch, at)).toEqual([at])
          expect([batch.inputIds[at], batch.visualRows[at]]).toEqual([padId, 0])
        }
      }),
      { numRuns: 300 },
    )
  })

  it('computes each common prefix of a row once, and shares nothing where it is told not to', () => {
    fc.assert(
      fc.property(sequences, options, (all, chosen) => {
        const batch = causalRows(all, { padId, ...chosen })
        const total = all.reduce((sum, { ids }) => sum + ids.length, 0)
        if (!chosen.share) expect(batch.computed).toBe(total)
        else {
          const rowOf = (n: number): number => Math.floor((batch.last[n] as number) / batch.length)
          const byRow = Array.from({ length: batch.rows }, (_, row) => all.filter((_, n) => rowOf(n) === row))
          expect(batch.computed).toBe(byRow.reduce((sum, row) => sum + distinctPrefixes(row), 0))
        }
      }),
    )
  })

  it('keeps to the length of a row that it is given, or to one that suits the kernels', () => {
    fc.assert(
      fc.property(sequences, options, (all, chosen) => {
        const { length } = causalRows(all, { padId, ...chosen })
        const longest = Math.max(...all.map(({ ids }) => ids.length))
        if (chosen.rowLength !== undefined) expect(length).toBe(chosen.rowLength)
        else expect(length === longest || (length > longest && length % 8 === 0)).toBe(true)
      }),
    )
  })

  it('is the same whatever order the sequences come in', () => {
    fc.assert(
      fc.property(
        sequences.chain((all) =>
          fc.tuple(fc.constant(all), fc.shuffledSubarray([...all.keys()], { minLength: all.length })),
        ),
        options,
        ([all, shuffled], chosen) => {
          const batch = causalRows(all, { padId, ...chosen, share: true })
          const other = causalRows(
            shuffled.map((n) => all[n] as TokenSequence),
            { padId, ...chosen, share: true },
          )
          expect({ ...other, last: undefined }).toEqual({ ...batch, last: undefined })
          expect(Int32Array.from(shuffled, (n) => batch.last[n] as number)).toEqual(other.last)
        },
      ),
    )
  })

  it('takes one row for wide encoders, and shorter ones where attention would cost more than repeating prefixes', () => {
    const all = Array.from({ length: 32 }, (_, n) => ({
      ids: Int32Array.from({ length: 40 }, (_, i) => (i < 20 ? 99 : n)),
    }))
    const wide = causalRows(all, { padId, work: { evenLength: 1e5 } })
    expect([wide.rows, wide.length, wide.computed]).toEqual([1, 664, 660])
    const narrow = causalRows(all, { padId, work: { evenLength: 100 } })
    expect(narrow.rows).toBeGreaterThan(3)
    expect(narrow.computed).toBe(32 * 20 + narrow.rows * 20)
  })

  it('takes no rows much longer than the longest sequence or 1 024 tokens, whatever that would save', () => {
    const all = Array.from({ length: 40 }, (_, n) => ({
      ids: Int32Array.from({ length: 400 }, (_, i) => (i < 300 ? 7 : n)),
    }))
    expect(causalRows(all, { padId, work: { evenLength: 1e6 } }).length).toBeLessThanOrEqual(1024)
    const long = all.map(({ ids }) => ({ ids: Int32Array.from({ length: 1600 }, (_, i) => ids[i >> 2] as number) }))
    const { rows, length } = causalRows(long, { padId, work: { evenLength: 1e6 } })
    expect(length).toBeLessThanOrEqual(3200)
    expect(rows * length).toBeLessThan(9 * 3200)
  })

  it('lays equal sequences and beginnings of others out as if they were not there', () => {
    fc.assert(
      fc.property(sequences, options, fc.infiniteStream(fc.nat()), (all, chosen, numbers) => {
        const parts = all.map(({ ids, positions, visuals }) => {
          const part = ids.subarray(0, 1 + ((numbers.next().value as number) % ids.length))
          const whole = part.length === ids.length || positions !== undefined || visuals !== undefined
          return whole ? all[0]! : { ids: part }
        })
        const without = causalRows(all, { padId, ...chosen, share: true })
        const batch = causalRows([...parts, ...all], { padId, ...chosen, share: true })
        expect({ ...batch, last: batch.last.slice(parts.length) }).toEqual(without)
      }),
    )
  })

  it('cuts a trie that is too long for a row into parts that repeat what they begin with', () => {
    const all = [0, 1, 2, 3].map((n) => ({ ids: Int32Array.from({ length: 10 }, (_, i) => (i < 6 ? 7 : n)) }))
    const { rows, computed } = causalRows(all, { padId, rowLength: 14, work })
    expect([rows, computed]).toEqual([2, 2 * 14])
  })

  it('refuses what fits no row, and features that contradict each other', () => {
    expect(() => causalRows([{ ids: new Int32Array(9) }], { padId, rowLength: 8, work })).toThrow(
      /9 tokens, a row only 8/,
    )
    expect(() => causalRows([{ ids: new Int32Array(0) }], { padId, work })).toThrow(/Sequence 0 is empty/)
    const picture = (length: number) => ({ ids: new Int32Array(4), visuals: [{ at: 1, length, key: 'a' }] })
    expect(() => causalRows([picture(4)], { padId, work })).toThrow(/Sequence 0 of 4 tokens has visual features at 1/)
    expect(() => causalRows([picture(2), picture(3)], { padId, work })).toThrow(/"a" have 2 rows .* 3 in another/)
  })

  it('lays out hundreds of thousands of tokens a second', () => {
    const all = Array.from({ length: 300 }, (_, n) => ({
      ids: Int32Array.from({ length: 500 }, (_, i) => (i < 300 ? n >> 3 : (i * 7919 + n) % 997)),
    }))
    const started = performance.now()
    causalRows(all, { padId, work: { evenLength: 4000 } })
    expect(performance.now() - started).toBeLessThan(5000)
  })
})

describe('sharedTokens', () => {
  it('counts distinct prefixes', () => {
    fc.assert(
      fc.property(sequences, (all) => {
        const total = all.reduce((sum, { ids }) => sum + ids.length, 0)
        expect(sharedTokens(all)).toEqual({ computed: distinctPrefixes(all), total })
      }),
    )
  })

  it('has equal sequences, and one that begins another, cost nothing', () => {
    const [a, b] = [Int32Array.of(1, 2, 3, 4), Int32Array.of(1, 2)]
    expect(sharedTokens([{ ids: a }, { ids: b }, { ids: a.slice() }])).toEqual({ computed: 4, total: 10 })
  })

  it('tells pictures apart whose placeholders are alike, and the same picture at other positions', () => {
    const ids = Int32Array.of(2, 2, 2)
    const picture = (key: string) => ({ ids, visuals: [{ at: 0, length: 3, key }] })
    expect(sharedTokens([picture('a'), picture('b'), picture('a')]).computed).toBe(6)
    const moved = { ...picture('a'), positions: Int32Array.of(0, 1, 2, 0, 1, 2, 0, 1, 3) }
    expect(sharedTokens([picture('a'), moved]).computed).toBe(4)
  })
})

describe('causalFeeds', () => {
  const stored = new Map([
    ['b', Float32Array.of(1, 2, 3, 4, 5, 6, 7, 8)],
    ['a', Float32Array.of(10, 20, 30, 40)],
  ])
  const features = { has: (key: string) => stored.has(key), get: (key: string) => stored.get(key) as Float32Array }
  const visual = { levels: 2, width: 2, features }
  const span = (at: number, length: number, key: string) => ({ at, length, key })
  const sequences = [
    { ids: Int32Array.of(2, 2, 5), visuals: [span(0, 2, 'b')] },
    { ids: Int32Array.of(7, 2, 2, 2, 6), visuals: [span(1, 2, 'b'), span(3, 1, 'a')] },
  ]

  it('gathers each picture’s features once, level by level, after a row of zeros', () => {
    const rows = causalRows(sequences, { padId, rowLength: 8, work })
    const feeds = causalFeeds(rows, visual)
    expect(feeds.visual).toEqual({
      dtype: 'float32',
      shape: [2, 4, 2],
      data: Float32Array.of(0, 0, 10, 20, 1, 2, 3, 4, 0, 0, 30, 40, 5, 6, 7, 8),
    })
    expect(feeds.visual_rows?.data).toEqual(Int32Array.of(2, 3, 0, 0, 2, 3, 1, 0))
    expect(feeds.position_ids?.shape).toEqual([3, 1, 8])
    expect(feeds.last?.data).toEqual(Int32Array.of(2, 7))
  })

  it('has one position a token, and no features, for an encoder of text', () => {
    const feeds = causalFeeds(causalRows([{ ids: Int32Array.of(3, 4) }], { padId, rowLength: 8, work }))
    expect(Object.keys(feeds).sort()).toEqual(['ends', 'input_ids', 'last', 'position_ids'])
    expect(feeds.position_ids?.shape).toEqual([1, 8])
    expect(feeds.ends?.data).toEqual(Int32Array.of(2, 2, 3, 4, 5, 6, 7, 8))
  })

  it('has a row of zeros for a run of texts alone', () => {
    const rows = causalRows([{ ids: Int32Array.of(3, 4) }], { padId, work })
    expect(causalFeeds(rows, { ...visual, features: undefined }).visual?.shape).toEqual([2, 1, 2])
  })

  it('refuses features of other sizes, and pictures that nobody can look up or read', () => {
    const rows = causalRows(sequences, { padId, work })
    expect(() => causalFeeds(rows, { ...visual, width: 4 })).toThrow(/"a" are 4 numbers, not 2 times 1 rows of 4/)
    expect(() => causalFeeds(rows, { ...visual, features: undefined })).toThrow(/no store/)
    expect(() => causalFeeds(rows)).toThrow(/reads text alone/)
  })
})
