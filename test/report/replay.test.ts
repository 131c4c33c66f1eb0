import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { buildTree, preOrder, type TreeNode } from '../../src/hierarchy/index.ts'
import { refine, refineVisits } from '../../src/refine/index.ts'
import { fairShares } from '../../src/report/choose.ts'
import { compactScores } from '../../src/report/compact.ts'
import { html, inlineJson } from '../../src/report/html.ts'
import { replay, statesAfter } from '../../src/report/replay.ts'
import { clock, nodeText, scoreText, stepText } from '../../src/report/viewer/words.ts'
import type { ViewerItem } from '../../src/report/viewer-data.ts'

/** A tree, its nodes in pre-order and a score for each: coarse ones, so that many are equal. */
const scoredTree = fc
  .record({ leaves: fc.integer({ min: 1, max: 40 }), branching: fc.integer({ min: 2, max: 4 }) })
  .chain(({ leaves, branching }) => {
    const nodes = preOrder(buildTree(leaves, branching))
    const score = fc.oneof(
      fc.integer({ min: 0, max: 5 }).map((n) => n / 5),
      fc.double({ min: -1, max: 1, noNaN: true }),
    )
    return fc.array(score, { minLength: nodes.length, maxLength: nodes.length }).map((scores) => ({ nodes, scores }))
  })
const scorer = (nodes: readonly TreeNode[], scores: readonly number[]) => {
  const place = new Map(nodes.map((node, i) => [node, i]))
  return (node: TreeNode): number => scores[place.get(node)!]!
}

describe('replay', () => {
  it('keeps what refinement keeps, and enters what it enters, in the same order', () => {
    fc.assert(
      fc.property(scoredTree, ({ nodes, scores }) => {
        const score = scorer(nodes, scores)
        const steps = replay(nodes, score)
        expect(steps.filter((s) => s.kept).map((s) => s.node)).toEqual(refine(nodes[0]!, score))
        const decisions = steps
          .filter((s) => s.node.children.length > 0)
          .map(({ node, entered }) => ({ node, entered }))
        expect(decisions).toEqual(refineVisits(nodes[0]!, score))
      }),
    )
  })

  it('leaves no node undecided at the end, and decides every leaf as kept or dropped', () => {
    fc.assert(
      fc.property(scoredTree, ({ nodes, scores }) => {
        const steps = replay(nodes, scorer(nodes, scores))
        const states = statesAfter(nodes, steps, steps.length)
        expect(states).not.toContain('open')
        expect(states).not.toContain('waiting')
        const kept = new Set(
          refine(nodes[0]!, scorer(nodes, scores)).flatMap(({ from, to }) =>
            Array.from({ length: to - from }, (_, i) => from + i),
          ),
        )
        for (const [i, { from, children }] of nodes.entries()) {
          if (children.length > 0) continue
          expect(['kept', 'within'].includes(states[i]!)).toBe(kept.has(from))
        }
      }),
    )
  })

  it('begins with the root waiting and nothing else reached', () => {
    const nodes = preOrder(buildTree(4))
    expect(
      statesAfter(
        nodes,
        replay(nodes, () => 1),
        0,
      ),
    ).toEqual(['waiting', 'open', 'open', 'open', 'open', 'open', 'open'])
  })
})

it('compactScores shortens scores and changes no comparison of a node with its parent', () => {
  fc.assert(
    fc.property(scoredTree, ({ nodes, scores }) => {
      const rounded = compactScores(nodes, scores)
      expect(refine(nodes[0]!, scorer(nodes, rounded))).toEqual(refine(nodes[0]!, scorer(nodes, scores)))
      for (const [i, score] of rounded.entries()) expect(Math.abs(score - scores[i]!)).toBeLessThanOrEqual(0.5e-4)
    }),
  )
  const nodes = preOrder(buildTree(2))
  expect(compactScores(nodes, [0.123456789, 0.2, 0.3])).toEqual([0.1235, 0.2, 0.3])
  expect(compactScores(nodes, [0.5, 0.49999999, 0.1])).toEqual([0.5, 0.49999999, 0.1])
})

describe('fairShares', () => {
  it('gives as much as possible, to none more than it has, and to none less than to a smaller one', () => {
    fc.assert(
      fc.property(fc.array(fc.nat(50), { minLength: 1, maxLength: 8 }), fc.nat(200), (sizes, count) => {
        const shares = fairShares(new Map(sizes.map((size, i) => [String(i), size])), count)
        const given = sizes.map((_, i) => shares.get(String(i))!)
        expect(given.reduce((a, b) => a + b, 0)).toBe(
          Math.min(
            count,
            sizes.reduce((a, b) => a + b, 0),
          ),
        )
        for (const [i, share] of given.entries()) {
          expect(share).toBeLessThanOrEqual(sizes[i]!)
          for (const [j, other] of given.entries())
            if (sizes[i]! > sizes[j]!) expect(share).toBeGreaterThanOrEqual(other)
        }
      }),
    )
  })
})

describe('text becomes HTML or JSON', () => {
  it('in which no string is markup', () => {
    const bad = `<b a="1" b='2'>&amp;</b>`
    expect(html`<p title="${bad}">${bad}${[1, bad]}${undefined}${false}</p>`.text).toBe(
      `<p title="${'&lt;b a=&quot;1&quot; b=&apos;2&apos;&gt;&amp;amp;&lt;/b&gt;'}">${'&lt;b a=&quot;1&quot; b=&apos;2&apos;&gt;&amp;amp;&lt;/b&gt;'}1${'&lt;b a=&quot;1&quot; b=&apos;2&apos;&gt;&amp;amp;&lt;/b&gt;'}</p>`,
    )
  })

  it('that reads back as what it was', () => {
    fc.assert(
      fc.property(fc.jsonValue(), fc.string({ unit: 'binary' }), (value, text) => {
        const both = [value, text, '</script><!--\u2028\u2029']
        const json = inlineJson(both)
        expect(json).not.toMatch(/[<>&\u2028\u2029]/)
        expect(JSON.parse(json)).toEqual(JSON.parse(JSON.stringify(both)))
      }),
    )
  })
})

describe('the words of the viewer', () => {
  const text: ViewerItem = { id: 'a', modality: 'text', leaves: ['A.', 'B.', 'C.'] }
  const video: ViewerItem = {
    id: 'v',
    modality: 'video',
    segments: [
      [2_030_000, 2_060_000],
      [2_060_000, 3_661_500],
    ],
  }
  const nodes = preOrder(buildTree(3))

  it('count leaves from one and read times of the source video', () => {
    expect(nodes.map((node) => nodeText(text, node))).toEqual([
      'sentences 1–3',
      'sentences 1–2',
      'sentence 1',
      'sentence 2',
      'sentence 3',
    ])
    expect(nodeText(video, { from: 0, to: 2, children: [] })).toBe('33:50–1:01:01.5')
    expect([clock(0), clock(65_000), clock(3_600_000)]).toEqual(['0:00', '1:05', '1:00:00'])
  })

  it('tell each step', () => {
    const score = scorer(nodes, [0.5, 0.6, 0.2, 0.3, 0.4])
    const steps = replay(nodes, score)
    const tell = (position: number): string => stepText(text, steps, position, nodes[0]!, score)
    expect(tell(0)).toBe('Start: refinement begins at the root, sentences 1–3, score 0.500.')
    expect(tell(1)).toBe('Sentences 1–3, score 0.500. Entered: sentences 1–2 (0.600). Dropped: sentence 3 (0.400).')
    expect(tell(2)).toBe(
      'Sentences 1–2, score 0.600: no child scores as high (sentence 1 (0.200), sentence 2 (0.300)), so it is kept whole.',
    )
  })

  it('give more digits where two scores look alike', () => {
    const score = scorer(nodes, [0.5, 0.49999, 0.2, 0.3, 0.50001])
    expect(stepText(text, replay(nodes, score), 1, nodes[0]!, score)).toContain(
      'score 0.500000. Entered: sentence 3 (0.500010). Dropped: sentences 1–2 (0.499990)',
    )
    expect(scoreText(-0.25)).toBe('−0.250')
  })
})
