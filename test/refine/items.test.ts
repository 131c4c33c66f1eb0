import { describe, expect, it } from 'vitest'
import { buildHierarchy, renderNode } from '../../src/hierarchy/index.ts'
import { refine, refineWith, type TextInput } from '../../src/refine/index.ts'
import { InputError } from '../../src/support/errors.ts'

/** An encoder of letters: how often each of a to z stands in a text. */
const letters = (text: string): number[] => {
  const counts = new Array<number>(26).fill(0)
  for (const c of text.toLowerCase()) {
    const at = c.charCodeAt(0) - 97
    if (at >= 0 && at < 26) counts[at] = (counts[at] as number) + 1
  }
  return counts
}
const cosine = (a: number[], b: number[]): number => {
  const dot = (x: number[], y: number[]): number => x.reduce((sum, v, i) => sum + v * (y[i] as number), 0)
  return dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b))
}
const seen: string[] = []
const functions = {
  embedQuery: async (question: string) => letters(question),
  embedNodes: async (texts: string[]) => {
    seen.push(...texts)
    return { embeddings: Float32Array.from(texts.flatMap(letters)), truncated: texts.map((text) => text.length > 60) }
  },
  settings: { title: true },
}
const TEXT = 'Aardvarks eat ants at dawn. Zebras doze. Bees buzz by the blue barn. Xylophones exist.'
const TABLE = {
  ...{ id: 't', title: 'Zoo', header: ['Animal', 'Feet'] },
  rows: [
    ['Zebra', '4'],
    ['Bee', '6'],
    ['Snake', '0'],
  ],
}

describe('refinement with embeddings from elsewhere', () => {
  it('keeps what the rule keeps of the trees and texts that training has, item by item', async () => {
    const items: TextInput[] = [TEXT, { id: 'p', title: 'Zoo', text: TEXT }, TABLE]
    seen.length = 0
    const question = 'Zebras doze?'
    const refined = await refineWith(functions, question, items)
    expect(refined.map(({ id, title, modality, leaves }) => ({ id, title, modality, leaves }))).toEqual([
      { id: undefined, title: undefined, modality: 'text', leaves: 4 },
      { id: 'p', title: 'Zoo', modality: 'text', leaves: 4 },
      { id: 't', title: 'Zoo', modality: 'table', leaves: 3 },
    ])
    const trees = [
      buildHierarchy({ id: 'a', modality: 'text', text: TEXT }),
      buildHierarchy({ id: 'a', modality: 'text', title: 'Zoo', text: TEXT }),
      buildHierarchy({ ...TABLE, modality: 'table' }),
    ]
    expect(seen).toEqual(trees.flatMap((tree) => tree.nodes.map((node) => renderNode(tree, node, { title: true }))))
    for (const [i, tree] of trees.entries()) {
      const score = (node: (typeof tree.nodes)[number]): number =>
        cosine(letters(question), letters(renderNode(tree, node, { title: true })))
      const kept = refine(tree.root, score)
      expect(refined[i]?.kept.map(({ from, to }) => [from, to])).toEqual(kept.map(({ from, to }) => [from, to]))
      expect(refined[i]?.nodes.map((node) => node.score)).toEqual(
        tree.nodes.map((node) => expect.closeTo(score(node), 6) as number),
      )
      expect(refined[i]?.nodes.map((node) => node.truncated)).toEqual(
        tree.nodes.map((node) => renderNode(tree, node, { title: true }).length > 60),
      )
    }
    for (const { start, end, text } of refined[0]?.kept ?? []) expect(TEXT.slice(start, end)).toBe(text)
  })

  it('honours title, table format, branching and margin of a canopy.json', async () => {
    const kept = async (settings: Parameters<typeof refineWith>[0]['settings']): Promise<number> => {
      const [item] = await refineWith({ ...functions, settings }, 'Xylophones exist?', [TEXT])
      return (item?.kept ?? []).reduce((sum, { from, to }) => sum + to - from, 0)
    }
    expect(await kept({ title: true, margin: 0 })).toBeLessThan(4)
    expect(await kept({ title: true, margin: Number.POSITIVE_INFINITY })).toBe(4)
    seen.length = 0
    const settings = { title: false, tableFormat: 'key-value' as const, branching: 3 }
    const [table] = await refineWith({ ...functions, settings }, 'Zebras?', [TABLE])
    expect(table?.nodes).toHaveLength(4)
    expect(seen[1]).toBe('Animal: Zebra; Feet: 4.\n')
  })

  it('asks for no embeddings of no items', async () => {
    const none = { ...functions, embedQuery: () => expect.unreachable('a question was embedded') }
    expect(await refineWith(none, 'Anything?', [])).toEqual([])
  })

  it('says what is wrong with a question, an item or the embeddings', async () => {
    const wrong = async (question: string, items: unknown[], embed = functions.embedNodes): Promise<string> => {
      const error: unknown = await refineWith({ ...functions, embedNodes: embed }, question, items as TextInput[]).then(
        () => undefined,
        (reason: unknown) => reason,
      )
      expect(error).toBeInstanceOf(InputError)
      return (error as InputError).message
    }
    expect(await wrong(' ', [TEXT])).toBe('The question is empty.')
    expect(await wrong('a', [TEXT, { id: 'x', text: ' ' }])).toBe('Item 2 ("x") has no text to refine.')
    expect(await wrong('a', [null])).toMatch(/^Item 1 is neither a text nor/)
    expect(await wrong('a', [{ text: 'a', rows: [], header: [] }])).toMatch(/make it an item for each/)
    expect(await wrong('a', [{ header: 'a', rows: [] }])).toMatch(/is no table/)
    expect(await wrong('a', [TEXT], async () => ({ embeddings: new Float32Array(26), truncated: [] }))).toMatch(
      /embeddings of 7 regions are 26 numbers/,
    )
    expect(
      await wrong('a', [TEXT], async (texts) => ({
        embeddings: new Float32Array(texts.length * 26).fill(Number.NaN),
        truncated: [],
      })),
    ).toMatch(/score of node \[0, 4\) is NaN/)
  })
})
