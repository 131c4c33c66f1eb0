import { RetrieverQueryEngine } from '@llamaindex/core/query-engine'
import type { BaseSynthesizer } from '@llamaindex/core/response-synthesizers'
import { BaseRetriever } from '@llamaindex/core/retriever'
import {
  Document,
  ImageNode,
  MetadataMode,
  NodeRelationship,
  type NodeWithScore,
  ObjectType,
  TextNode,
} from '@llamaindex/core/schema'
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest'
import type { Encoder, RefinedItem } from '../../src/encoder/index.ts'
import { CanopyPostprocessor, type Refinement, type RefinementFailure } from '../../src/integrations/llamaindex.ts'
import { FERRY, openMini, QUESTION, TOWER } from './encoder.ts'

let encoder: Pick<Encoder, 'refine' | 'close'>
beforeAll(async () => {
  encoder = await openMini()
})
afterAll(() => encoder.close())

const SOURCE = `Preface.\n${FERRY}${TOWER}`
/** Nodes as a splitter makes them: places in their source, and its id. */
const nodes = (): NodeWithScore[] => {
  const node = (text: string, id_: string): TextNode => {
    const start = SOURCE.indexOf(text)
    return new TextNode({
      ...{ id_, text, startCharIdx: start, endCharIdx: start + text.length, metadata: { file: 'a.txt', page: 2 } },
      excludedLlmMetadataKeys: ['page'],
      relationships: { [NodeRelationship.SOURCE]: { nodeId: 'source', metadata: {} } },
    })
  }
  return [
    { node: node(TOWER, 'tower'), score: 0.25 },
    { node: node(FERRY, 'ferry'), score: 0.75 },
    { node: new TextNode({ id_: 'blank', text: ' ' }), score: 0.5 },
    { node: new ImageNode({ id_: 'image', text: 'a picture', image: 'data:,' }), score: 0.5 },
    { node: new Document({ id_: 'document', text: FERRY }) },
  ]
}
const refinementOf = ({ node }: NodeWithScore): Refinement => node.metadata.canopy as Refinement
const textOf = ({ node }: NodeWithScore): string => node.getContent(MetadataMode.NONE)

class Fixed extends BaseRetriever {
  readonly #found: NodeWithScore[]
  constructor(found: NodeWithScore[]) {
    super()
    this.#found = found
  }
  async _retrieve(): Promise<NodeWithScore[]> {
    return this.#found
  }
}

describe('CanopyPostprocessor', () => {
  it('is a postprocessor of a query engine, which gives what the encoder keeps, in order', async () => {
    const engine = new RetrieverQueryEngine(new Fixed(nodes()), {} as BaseSynthesizer, [
      new CanopyPostprocessor({ encoder }),
    ])
    const refined = await engine.retrieve(QUESTION)
    expect(refined.map(({ node, score }) => [node.id_, score])).toEqual(
      nodes().map(({ node, score }) => [node.id_, score]),
    )
    const kept = await encoder.refine(QUESTION, [TOWER, FERRY, FERRY])
    for (const [at, i] of [
      [0, 0],
      [1, 1],
      [4, 2],
    ] as const) {
      const { ranges, leaves } = refinementOf(refined[at] as NodeWithScore)
      expect(leaves).toBe(kept[i]?.leaves)
      expect(ranges.map(({ from, to, score }) => [from, to, score])).toEqual(
        kept[i]?.kept.map(({ from, to, score }) => [from, to, score]),
      )
    }
    expect(textOf(refined[1] as NodeWithScore)).toContain('first novel')
    expect(textOf(refined[1] as NodeWithScore).length).toBeLessThan(FERRY.length - 20)
    expect(refined[4]?.node.type).toBe(ObjectType.DOCUMENT)
  })

  it('keeps metadata, relationships and what a language model does not see; hashes change with the text', async () => {
    const given = nodes()
    const before = structuredClone(given.map(({ node }) => node.toMutableJSON()))
    const refined = await new CanopyPostprocessor({ encoder }).postprocessNodes(given, [
      { type: 'text', text: QUESTION },
    ])
    expect(given.map(({ node }) => node.toMutableJSON())).toEqual(before)
    const [tower, ferry, blank, image] = refined as [NodeWithScore, NodeWithScore, NodeWithScore, NodeWithScore]
    for (const { node } of [tower, ferry]) {
      const { canopy: _, ...rest } = node.metadata
      expect(rest).toEqual({ file: 'a.txt', page: 2 })
      expect(node.sourceNode?.nodeId).toBe('source')
      expect(node.getContent(MetadataMode.LLM)).toContain('file: a.txt')
      expect(node.getContent(MetadataMode.LLM)).not.toMatch(/canopy|page/)
      expect(node.getContent(MetadataMode.EMBED)).not.toContain('canopy')
      expect(node.hash).toBe(node.generateHash())
      expect(JSON.parse(JSON.stringify(node.metadata.canopy))).toEqual(node.metadata.canopy)
    }
    expect(ferry.node.hash).not.toBe(given[1]?.node.hash)
    expect(blank).toBe(given[2])
    expect(image).toBe(given[3])
  })

  it('gives offsets into the node and into its source that cut the text out exactly', async () => {
    const postprocessor = new CanopyPostprocessor({ encoder, output: 'range' })
    const refined = await postprocessor.postprocessNodes(nodes().slice(0, 2), QUESTION)
    for (const scored of refined) {
      const { node } = scored as { node: TextNode }
      const [id, place] = node.id_.split('#') as [string, string]
      const original = id === 'tower' ? TOWER : FERRY
      const [only] = refinementOf(scored).ranges
      expect(place).toBe(`${only?.start}-${only?.end}`)
      expect(original.slice(only?.start, only?.end)).toBe(node.text)
      expect(SOURCE.slice(node.startCharIdx, node.endCharIdx)).toBe(node.text)
    }
    // joined ranges lie between the first and the last one
    for (const scored of await new CanopyPostprocessor({ encoder }).postprocessNodes(nodes().slice(0, 2), QUESTION)) {
      const { node } = scored as { node: TextNode }
      const original = node.id_ === 'tower' ? TOWER : FERRY
      const { ranges } = refinementOf(scored)
      const at = SOURCE.indexOf(original)
      expect([node.startCharIdx, node.endCharIdx]).toEqual([
        at + (ranges[0]?.start ?? 0),
        at + (ranges.at(-1)?.end ?? 0),
      ])
    }
    // a node at the very beginning, whose start of 0 the class forgets, and one whose places are not its own
    const first = new TextNode({ text: TOWER, startCharIdx: 0, endCharIdx: TOWER.length })
    const wrong = new TextNode({ text: TOWER, startCharIdx: 5, endCharIdx: 6 })
    const [begun] = await postprocessor.postprocessNodes([{ node: first }], 'Who wound the clock?')
    const { text, startCharIdx, endCharIdx } = (begun as { node: TextNode }).node
    expect(TOWER.slice(startCharIdx, endCharIdx)).toBe(text)
    const [last] = await postprocessor.postprocessNodes([{ node: wrong }], 'Who wound the clock?')
    const { node } = last as { node: TextNode }
    expect([node.startCharIdx, node.endCharIdx]).toEqual([5, 6])
  })

  it('answers overlapping calls, each with its own', async () => {
    const postprocessor = new CanopyPostprocessor({ encoder })
    const questions = ['What about winter?', 'Who wound the clock?', QUESTION]
    const texts = (found: NodeWithScore[]): string[] => found.map(textOf)
    const alone = []
    for (const question of questions) alone.push(texts(await postprocessor.postprocessNodes(nodes(), question)))
    const together = await Promise.all(questions.map((question) => postprocessor.postprocessNodes(nodes(), question)))
    expect(together.map(texts)).toEqual(alone)
  })

  it('passes the nodes on as they came when refinement fails, takes too long or has no question, and reports it', async () => {
    const failures: RefinementFailure[] = []
    const options = { timeout: 20, onError: (failure: RefinementFailure) => failures.push(failure) }
    const failing = async (): Promise<RefinedItem[]> => {
      throw new Error('the GPU fell out')
    }
    const silent = (): Promise<RefinedItem[]> => new Promise(() => {})
    const given = nodes()
    for (const [refine, question] of [
      [failing, QUESTION],
      [silent, QUESTION],
      [encoder.refine, undefined],
    ] as const) {
      const found = await new CanopyPostprocessor({ ...options, encoder: { refine } }).postprocessNodes(given, question)
      for (const [i, node] of found.entries()) expect(node).toBe(given[i])
    }
    expect(failures.map(({ error, documents }) => [String(error), documents])).toEqual([
      ['Error: the GPU fell out', 5],
      ['TimeoutError: Refinement took longer than its timeout of 20 ms.', 5],
      ['InputError: The question is empty.', 5],
    ])
  })

  it('reports a node that cannot be copied, and passes all on', async () => {
    const onError = vi.fn()
    const odd = new TextNode({ text: FERRY, metadata: { parse: () => 1 } })
    const given = [{ node: odd }, ...nodes()]
    const found = await new CanopyPostprocessor({ encoder, onError }).postprocessNodes(given, QUESTION)
    for (const [i, node] of found.entries()) expect(node).toBe(given[i])
    expect(onError).toHaveBeenCalledOnce()
  })

  it('is aborted by a signal, with its reason', async () => {
    const controller = new AbortController()
    const silent = (): Promise<RefinedItem[]> => new Promise(() => {})
    const postprocessor = new CanopyPostprocessor({ encoder: { refine: silent } })
    const running = postprocessor.postprocessNodes(nodes(), QUESTION, { signal: controller.signal })
    controller.abort(new Error('the user left'))
    await expect(running).rejects.toThrow('the user left')
  })
})
