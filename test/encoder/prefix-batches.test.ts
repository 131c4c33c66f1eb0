import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { causalLayout, type EncoderProfile, sharedTokens, type TokenSequence } from '../../src/encoder/index.ts'
import { sequences, tokensOf } from './prefix-sequences.ts'

/** A Qwen3 whose attention costs as much as its maps in rows of `evenLength`, about. */
function profile(evenLength: number): EncoderProfile {
  const config = {
    model_type: 'qwen3',
    ...{ vocab_size: 100, hidden_size: 64, intermediate_size: Math.round((evenLength * 693 * 2) / (6 * 64)) },
    ...{ num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1, head_dim: 8 },
  }
  return { config, folder: 'memory' } as unknown as EncoderProfile
}

const layout = (evenLength: number, share: boolean) => causalLayout(profile(evenLength), { padId: 0, share })
const pick = (all: TokenSequence[], group: number[]) => group.map((i) => all[i] as TokenSequence)

describe('the runs of a causal encoder', () => {
  it('hold every sequence once, within the budget but for what a single sequence takes', () => {
    fc.assert(
      fc.property(
        sequences,
        fc.constantFrom(16, 32, 64, Number.POSITIVE_INFINITY),
        fc.constantFrom(8, 200, 10000),
        fc.boolean(),
        (all, budget, evenLength, share) => {
          const { batches, tokens } = layout(evenLength, share)
          const groups = batches(all, budget)
          expect(groups.flat().sort((a, b) => a - b)).toEqual([...all.keys()])
          for (const group of groups) {
            const longest = Math.max(...group.map((i) => (all[i] as TokenSequence).ids.length))
            const allowed = group.length === 1 ? Math.ceil(longest / 8) * 8 : Math.ceil((longest * 17) / 16 / 8) * 8
            expect(tokens(pick(all, group))).toBeLessThanOrEqual(Math.max(budget, allowed))
          }
        },
      ),
    )
  })

  it('are the same whatever order the sequences come in', () => {
    fc.assert(
      fc.property(
        sequences.chain((all) =>
          fc.tuple(fc.constant(all), fc.shuffledSubarray([...all.keys()], { minLength: all.length })),
        ),
        ([all, order]) => {
          const { batches } = layout(200, true)
          const shuffled = pick(all, order)
          expect(batches(shuffled, 32).map((group) => pick(shuffled, group).map(tokensOf))).toEqual(
            batches(all, 32).map((group) => pick(all, group).map(tokensOf)),
          )
        },
      ),
    )
  })

  it('compute what an item’s nodes begin with once, in whatever order nodes come', () => {
    // 20 items of 3 to 7 nodes in turn: a prompt, a title, and a text of their own
    const items = Array.from({ length: 20 }, (_, item) =>
      Array.from({ length: 3 + (item % 5) }, (_, node) => ({
        ids: Int32Array.from({ length: 40 }, (_, i) => (i < 8 ? 1 : i < 20 ? 2 + item : 30 + node)),
      })),
    )
    const all = items.flat().sort((a, b) => (a.ids[39] as number) - (b.ids[39] as number))
    const { batches, computed } = layout(1e6, true)
    const groups = batches(all, 400)
    const cost = groups.reduce((sum, group) => sum + computed(pick(all, group)), 0)
    // a run repeats the prompt, and the title of an item that is cut
    expect(cost).toBeLessThanOrEqual(sharedTokens(all).computed + 20 * (groups.length - 1))
    expect(groups.length).toBe(Math.ceil(cost / 400))
  })

  it('let a sequence over the budget take along what it contains', () => {
    const long = Int32Array.from({ length: 1000 }, (_, i) => 1 + (i % 90))
    const nodes = [long, long.slice(0, 500), long.slice(0, 250), new Int32Array(80).fill(99)].map((ids) => ({ ids }))
    expect(layout(1e6, true).batches(nodes, 300)).toEqual([[2, 1, 0], [3]])
    expect(layout(1e6, false).batches(nodes, 300)).toEqual([[0], [1], [2], [3]])
  })

  it('are larger than wanted only where that saves more than it costs', () => {
    const begin = (length: number) => ({ ids: Int32Array.from({ length }, (_, i) => 1 + (i % 90)) })
    const { batches } = layout(1e6, true)
    const nested = [begin(1200), begin(1100), begin(1000)]
    expect(batches(nested, 4000, 800)).toEqual([[2, 1, 0]])
    const apart = [11, 12, 13].map((id) => ({ ids: new Int32Array(700).fill(id) }))
    expect(batches(apart, 4000, 800)).toEqual([[0], [1], [2]])
    expect(batches(apart, 4000)).toEqual([[0, 1, 2]])
  })

  it('take as long to plan for thousands of equal sequences as for one', () => {
    const all = Array.from({ length: 50_000 }, (_, n) => ({ ids: new Int32Array(100).fill(n % 2) }))
    const started = performance.now()
    expect(layout(4000, true).batches(all, 65_536)).toHaveLength(1)
    expect(performance.now() - started).toBeLessThan(5000)
  })

  it('are planned at hundreds of thousands of tokens a second', () => {
    const all = Array.from({ length: 1500 }, (_, n) => ({
      ids: Int32Array.from({ length: 200 }, (_, i) => (i < 100 ? n >> 3 : (i * 7919 + n) % 997)),
    }))
    const started = performance.now()
    layout(4000, true).batches(all, 1024)
    expect(performance.now() - started).toBeLessThan(5000)
  })
})
