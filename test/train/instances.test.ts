import { describe, expect, it } from 'vitest'
import { type EncodedInput, type TokenSequence, textSequence } from '../../src/encoder/index.ts'
import { buildHierarchy, renderNode, type TextItem } from '../../src/hierarchy/index.ts'
import { preferencePairs } from '../../src/preferences/index.ts'
import { assembleBatch, benchmarkWeight, type Instance, prepareInstance } from '../../src/train/data/instances.ts'
import { pairLoss } from '../../src/train/loss/pairwise.ts'

/** One token a word, at most `limit` of them. */
const words = (limit: number): ((text: string) => EncodedInput) => {
  const vocabulary = new Map<string, number>()
  return (text) => {
    const all = text.split(/\s+/).filter((word) => word !== '')
    const ids = all.slice(0, limit).map((word) => {
      if (!vocabulary.has(word)) vocabulary.set(word, vocabulary.size + 1)
      return vocabulary.get(word)!
    })
    return { sequence: textSequence(Int32Array.from(ids)), truncated: all.length > limit }
  }
}

function instance(
  item: string,
  sentences: string[],
  gold: number[],
  options: { limit?: number; title?: boolean; branching?: number; benchmark?: number } = {},
): Instance {
  const startOf = (i: number): number => sentences.slice(0, i).join('').length
  const extents = sentences.map((_, i): [number, number] => [startOf(i), startOf(i + 1)])
  const text: TextItem = { id: item, modality: 'text', title: 'Title', text: sentences.join(''), sentences: extents }
  const hierarchy = buildHierarchy(text, options.branching ?? 2)
  const encode = words(options.limit ?? 100)
  const index = new Map(hierarchy.nodes.map((node, i) => [node, i]))
  return prepareInstance(
    {
      question: `q-${item}`,
      item,
      nodes: hierarchy.nodes.map(({ from, to }): [number, number] => [from, to]),
      pairs: preferencePairs(hierarchy.root, (leaf) => gold.includes(leaf)).map(
        ({ preferred, other, kind }): [number, number, typeof kind] => [index.get(preferred)!, index.get(other)!, kind],
      ),
    },
    hierarchy.nodes.map((node) => encode(renderNode(hierarchy, node, { title: options.title ?? true }))),
    { question: 0, benchmark: options.benchmark ?? 0 },
  )
}

const six = ['One a. ', 'Two b. ', 'Three c. ', 'Four d. ', 'Five e. ', 'Six f.']
const settings = {
  kindWeights: { 'fully-gold': 1, 'gold-child': 1, 'non-gold-child': 1, 'sibling-separation': 1 },
  weighting: 'decision-node',
  benchmarkWeights: {},
} as const
const tokens = (sequences: TokenSequence[]): number => sequences.reduce((sum, { ids }) => sum + ids.length, 0)

describe('an instance', () => {
  it('groups pairs by decision node, sibling separations with their parent', () => {
    const { decisions, nodes } = instance('i', six, [4])
    // root -> [3, 6) -> [3, 5) -> leaf 4
    expect(nodes).toBe(11)
    expect(decisions.map(({ learnable }) => learnable.map(({ kind }) => kind))).toEqual(
      Array.from({ length: 3 }, () => ['gold-child', 'non-gold-child', 'sibling-separation']),
    )
  })

  it('groups the pairs of wider trees too', () => {
    const { decisions } = instance('i', six, [0, 5], { branching: 3 })
    expect(decisions.map(({ learnable }) => learnable.length)).toEqual([2 + 1 + 2, 1 + 1 + 1, 1 + 1 + 1])
  })

  it('encodes equal token sequences once, and sets their pairs apart', () => {
    const cut = instance('i', ['One two three four ', 'five ', 'six seven eight.'], [0], { limit: 3, title: false })
    // [0, 3), [0, 2) and [0, 1) are all cut to "One two three".
    expect(cut.sequences.length).toBe(3)
    expect(cut.truncated).toBe(3)
    expect(cut.decisions.map(({ equal }) => equal.map(({ kind }) => kind))).toEqual([['gold-child'], ['gold-child']])
    expect(cut.decisions.map(({ learnable }) => learnable.length)).toEqual([2, 2])
  })

  it('puts the title before every node only if asked', () => {
    const count = (title: boolean): number => tokens(instance('i', six, [4], { title }).sequences)
    expect(count(true) - count(false)).toBe(11)
  })
})

describe('a batch', () => {
  const batchOf = (instances: Instance[], budget: number, weighting: 'decision-node' | 'item' = 'decision-node') =>
    assembleBatch(instances, { ...settings, weighting }, ['a', 'b'], tokens, budget)
  const some = [
    instance('i', six, [4]),
    instance('j', six.slice(0, 2), [0, 1]),
    instance('k', six.slice(1, 5), [2]),
    instance('l', six.slice(0, 5), [0]),
  ]

  /** The batch's loss for made-up scores of token sequences. */
  const lossOf = (batch: ReturnType<typeof batchOf>): number =>
    batch.micro.reduce(
      (sum, { sequences, pairs }) =>
        sum +
        pairs.reduce((part, { preferred, other, weight }) => {
          const score = (i: number): number => Math.sin(sequences[i]!.ids.reduce((a, id) => 3 * a + id, 0))
          return part + weight * pairLoss(score(preferred) - score(other), { loss: 'logistic', tau: 1, margin: 0 })
        }, 0),
      0,
    )

  for (const weighting of ['decision-node', 'item'] as const)
    it(`has the same loss however it is cut into micro-batches (${weighting})`, () => {
      const whole = batchOf(some, 10_000, weighting)
      expect(whole.micro.length).toBe(1)
      for (const budget of [1, 40, 80]) {
        const cut = batchOf(some, budget, weighting)
        expect(cut.micro.length).toBeGreaterThan(1)
        expect(lossOf(cut)).toBeCloseTo(lossOf(whole), 9)
      }
    })

  it('weighs decision nodes, or items, equally', () => {
    const share = (weighting: 'decision-node' | 'item', item: number): number => {
      const marked = some.map((instance, i) => ({ ...instance, question: i }))
      const { micro } = batchOf(marked, 10_000, weighting)
      return micro[0]!.pairs.filter(({ question }) => question === item).reduce((sum, { weight }) => sum + weight, 0)
    }
    const decisions = some.reduce((n, i) => n + i.decisions.length, 0)
    some.forEach((instance, i) => {
      expect(share('decision-node', i)).toBeCloseTo(instance.decisions.length / decisions, 12)
      expect(share('item', i)).toBeCloseTo(1 / some.length, 12)
    })
  })

  it('weighs a benchmark 1 that nothing is said of, whatever its name', () => {
    expect(benchmarkWeight({ benchmarkWeights: { b: 0 } }, 'b')).toBe(0)
    expect(benchmarkWeight({ benchmarkWeights: { b: 0 } }, 'constructor')).toBe(1)
  })

  it('weighs benchmarks and kinds as asked', () => {
    const two = [instance('i', six.slice(0, 2), [0]), instance('j', six.slice(0, 2), [1], { benchmark: 1 })]
    const { micro } = assembleBatch(
      two.map((instance, question) => ({ ...instance, question })),
      {
        kindWeights: { ...settings.kindWeights, 'sibling-separation': 2 },
        weighting: 'decision-node',
        benchmarkWeights: { b: 3 },
      },
      ['a', 'b'],
      tokens,
      10_000,
    )
    const weights = micro
      .flatMap(({ pairs }) => pairs)
      .toSorted((x, y) => x.question - y.question)
      .map(({ weight }) => weight)
    const expected = [1, 1, 2].flatMap((w) => [(w / 4) * (1 / 4)]).concat([1, 1, 2].map((w) => (w / 4) * (3 / 4)))
    weights.forEach((weight, i) => {
      expect(weight).toBeCloseTo(expected[i]!, 12)
    })
  })

  it('encodes the nodes of an item once for all of its questions', () => {
    const both = [instance('i', six, [4]), { ...instance('i', six, [0]), question: 1 }]
    const { micro } = batchOf(both, 60)
    expect(micro.length).toBe(1)
    expect(micro[0]!.sequences.length).toBe(11)
  })

  it('leaves out instances without anything to learn, and counts what it drops', () => {
    const nothing = instance('m', ['same same ', 'same same.'], [0], { limit: 1, title: false })
    const batch = batchOf([nothing], 100)
    expect(batch).toMatchObject({ micro: [], pairs: 0, droppedPairs: 3, truncatedNodes: 3, tokens: 0 })
  })
})
