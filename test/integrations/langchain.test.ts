import { ContextualCompressionRetriever } from '@langchain/classic/retrievers/contextual_compression'
import { RecursiveCharacterTextSplitter } from '@langchain/classic/text_splitter'
import { Document, type DocumentInterface } from '@langchain/core/documents'
import { BaseDocumentCompressor } from '@langchain/core/retrievers/document_compressors'
import { FakeRetriever } from '@langchain/core/utils/testing'
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest'
import type { Encoder, RefinedItem } from '../../src/encoder/index.ts'
import { CanopyCompressor, type Refinement, type RefinementFailure } from '../../src/integrations/langchain.ts'
import { FERRY, openMini, QUESTION, TOWER } from './encoder.ts'

let encoder: Pick<Encoder, 'refine' | 'close'>
beforeAll(async () => {
  encoder = await openMini()
})
afterAll(() => encoder.close())

const documents = (): DocumentInterface[] => [
  new Document({ pageContent: TOWER, metadata: { source: 'b.txt', title: 'Brennick', page: 3 }, id: 'tower' }),
  new Document({ pageContent: FERRY, metadata: { source: 'a.txt', nested: { deep: [1, 2] } } }),
  new Document({ pageContent: ' \n', metadata: { empty: true }, id: 'blank' }),
  new Document({ pageContent: '', metadata: {} }),
  new Document({ pageContent: 'One sentence only.', metadata: { source: 'c.txt' }, id: 'one' }),
]
const refinementOf = ({ metadata }: DocumentInterface): Refinement => metadata.canopy as Refinement

/** An encoder whose answers are given. */
const answering = (refine: Encoder['refine']): Pick<Encoder, 'refine'> => ({ refine })
const failing = answering(async () => {
  throw new Error('the GPU fell out')
})
/** Never answers, and looks at no signal. */
const silent = answering(() => new Promise<RefinedItem[]>(() => {}))

describe('CanopyCompressor', () => {
  it('is a compressor of the ContextualCompressionRetriever, which gives what the encoder keeps, in order', async () => {
    const baseCompressor = new CanopyCompressor({ encoder })
    expect(BaseDocumentCompressor.isBaseDocumentCompressor(baseCompressor)).toBe(true)
    const retriever = new ContextualCompressionRetriever({
      baseCompressor,
      baseRetriever: new FakeRetriever({ output: documents() as Document[] }),
    })
    const refined = await retriever.invoke(QUESTION)
    expect(refined.map(({ id }) => id)).toEqual(['tower', undefined, 'blank', undefined, 'one'])
    const kept = await encoder.refine(QUESTION, [TOWER, FERRY, 'One sentence only.'])
    for (const [at, i] of [
      [0, 0],
      [1, 1],
      [4, 2],
    ] as const) {
      const { ranges, leaves, modality } = refinementOf(refined[at] as Document)
      expect(modality).toBe('text')
      expect(leaves).toBe(kept[i]?.leaves)
      expect(ranges.map(({ from, to, score }) => [from, to, score])).toEqual(
        kept[i]?.kept.map(({ from, to, score }) => [from, to, score]),
      )
    }
    // something was left out, and what answers the question was not
    expect(refined[1]?.pageContent.length).toBeLessThan(FERRY.length - 20)
    expect(refined[1]?.pageContent).toContain('first novel')
    expect(refined[4]?.pageContent).toBe('One sentence only.')
  })

  it('keeps metadata and does not touch the documents that came in', async () => {
    const given = documents()
    const before = structuredClone(given.map(({ pageContent, metadata }) => ({ pageContent, metadata })))
    const refined = await new CanopyCompressor({ encoder }).compressDocuments(given, QUESTION)
    expect(given.map(({ pageContent, metadata }) => ({ pageContent, metadata }))).toEqual(before)
    for (const [i, { metadata }] of refined.entries()) {
      const { canopy, ...rest } = metadata
      expect(rest).toEqual(before[i]?.metadata)
      expect(JSON.parse(JSON.stringify(canopy ?? null))).toEqual(canopy ?? null)
    }
    // what holds no words goes on as it is
    expect(refined[2]).toBe(given[2])
    expect(refined[3]).toBe(given[3])
  })

  it('gives offsets that cut the kept text out of the document exactly, as one document or one for each range', async () => {
    const text = `${TOWER}\n\n${FERRY}`
    // the clock and the captain: ranges apart from each other
    const apart = answering(async (_, items) =>
      items.map(() => ({
        ...{ modality: 'text' as const, leaves: 10, nodes: [] },
        kept: [range(text, 'For a century', 'work 🕰️.', 1, 3), range(text, ' The captain', 'novel.', 7, 8)],
      })),
    )
    const given = [new Document({ pageContent: text, metadata: { a: 1 }, id: 'x' })]
    const [joined] = await new CanopyCompressor({ encoder: apart }).compressDocuments(given, QUESTION)
    const pieces = refinementOf(joined as Document).ranges.map(({ start, end }) => text.slice(start, end))
    expect(pieces[0]).toMatch(/^For a century.*🕰️\.$/)
    expect(pieces[1]).toMatch(/^The captain.*novel\.$/)
    expect(joined?.pageContent).toBe(pieces.join(' … '))
    expect(joined?.id).toBe('x')

    const compressor = new CanopyCompressor({ encoder: apart, output: 'range', metadataKey: 'kept' })
    const ranges = await compressor.compressDocuments([...given, ...given], QUESTION)
    expect(ranges.map(({ pageContent }) => pageContent)).toEqual([...pieces, ...pieces])
    for (const document of ranges) {
      const [only, more] = (document.metadata.kept as Refinement).ranges
      expect(more).toBeUndefined()
      expect(text.slice(only?.start, only?.end)).toBe(document.pageContent)
      expect(document.id).toBe(`x#${only?.start}-${only?.end}`)
      expect(document.metadata.a).toBe(1)
    }
    const [separated] = await new CanopyCompressor({ encoder: apart, separator: '\n---\n' }).compressDocuments(
      given,
      'a',
    )
    expect(separated?.pageContent).toBe(pieces.join('\n---\n'))
  })

  it('puts nothing between ranges that stand side by side', async () => {
    const beside = answering(async () => [
      {
        ...{ modality: 'text' as const, leaves: 3, nodes: [] },
        kept: [range('A b.\n\nC d. E f.', 'A b.', 'A b.', 0, 1), range('A b.\n\nC d. E f.', '\n\nC', 'd.', 1, 2)],
      },
    ])
    const [only] = await new CanopyCompressor({ encoder: beside }).compressDocuments(
      [new Document({ pageContent: 'A b.\n\nC d. E f.' })],
      'a',
    )
    expect(only?.pageContent).toBe('A b.\n\nC d.')
  })

  it("adjusts the line numbers of LangChain's splitter to what is left", async () => {
    const source = Array.from(
      { length: 12 },
      (_, i) => `Line ${i + 1} is about the ${['post', 'cows', 'ice'][i % 3]}.`,
    ).join('\n')
    const split = await new RecursiveCharacterTextSplitter({ chunkSize: 160, chunkOverlap: 0 }).createDocuments([
      source,
    ])
    expect(split.length).toBeGreaterThan(1)
    const compressor = new CanopyCompressor({ encoder, output: 'range' })
    const refined = await compressor.compressDocuments(split, 'What is about the ice?')
    expect(refined.some(({ pageContent }) => split.every((document) => document.pageContent !== pageContent))).toBe(
      true,
    )
    for (const { pageContent, metadata } of refined) {
      const { from, to } = metadata.loc.lines as { from: number; to: number }
      expect(
        source
          .split('\n')
          .slice(from - 1, to)
          .join('\n'),
      ).toContain(pageContent)
      expect(to - from).toBe(pageContent.split('\n').length - 1)
    }
    // line numbers that are not the document's own are nobody's to change
    const foreign = new Document({ pageContent: FERRY, metadata: { loc: { lines: { from: 1, to: 90 }, page: 2 } } })
    const [kept] = await compressor.compressDocuments([foreign], QUESTION)
    expect(kept?.metadata.loc).toEqual({ lines: { from: 1, to: 90 }, page: 2 })
  })

  it('takes titles and tables from metadata', async () => {
    const refine = vi.fn(encoder.refine)
    const table = {
      header: ['Bridge', 'Built'],
      rows: ['1790', '1871', '1920', '2001'].map((year) => [`B${year}`, year]),
    }
    const compressor = new CanopyCompressor({ encoder: { refine }, titleKey: 'title', tableKey: 'table' })
    const refined = await compressor.compressDocuments(
      [
        new Document({ pageContent: TOWER, metadata: { title: 'Brennick' } }),
        new Document({ pageContent: 'see the table', metadata: { title: 7, table } }),
      ],
      'When was B1871 built?',
    )
    expect(refine.mock.calls[0]?.[1]).toEqual([{ title: 'Brennick', text: TOWER }, table])
    const { modality, leaves, ranges } = refinementOf(refined[1] as Document)
    expect([modality, leaves]).toEqual(['table', 4])
    const rows = ranges.flatMap(({ start, end }) => table.rows.slice(start, end))
    expect(refined[1]?.pageContent).toBe(
      `| Bridge | Built |\n|-|-|\n${rows.map(([a, b]) => `| ${a} | ${b} |\n`).join('')}`,
    )
    expect(refined[1]?.metadata.table).toEqual(table)
  })

  it('answers overlapping calls, each with its own', async () => {
    const compressor = new CanopyCompressor({ encoder })
    const questions = ['What about winter?', 'Who wound the clock?', 'When can one climb?', QUESTION]
    const alone = []
    for (const question of questions) alone.push(await compressor.compressDocuments(documents(), question))
    const together = await Promise.all(questions.map((question) => compressor.compressDocuments(documents(), question)))
    expect(together).toEqual(alone)
    expect(new Set(together.map((found) => JSON.stringify(found))).size).toBeGreaterThan(1)
  })

  it('passes the documents on as they came when refinement fails, and reports each failure', async () => {
    const failures: RefinementFailure[] = []
    const compressor = new CanopyCompressor({ encoder: failing, onError: (failure) => failures.push(failure) })
    const given = documents()
    const retriever = new ContextualCompressionRetriever({
      baseCompressor: compressor,
      baseRetriever: new FakeRetriever({ output: given as Document[] }),
    })
    const refined = await retriever.invoke(QUESTION)
    for (const [i, document] of refined.entries()) expect(document).toBe(given[i])
    await compressor.compressDocuments(given, 'again')
    expect(failures.map(({ question, documents: count }) => [question, count])).toEqual([
      [QUESTION, 5],
      ['again', 5],
    ])
    expect(String(failures[0]?.error)).toBe('Error: the GPU fell out')
    // an empty question is the encoder's own complaint
    const complaining = new CanopyCompressor({ encoder, onError: (failure) => failures.push(failure) })
    expect(await complaining.compressDocuments(given, ' ')).toEqual(given)
    expect(String(failures.at(-1)?.error)).toBe('InputError: The question is empty.')
  })

  it('warns once for each cause where nobody asks to be told, and throws where that is what is asked', async () => {
    const warn = vi.spyOn(console, 'warn').mockImplementation(() => {})
    try {
      const compressor = new CanopyCompressor({ encoder: failing })
      for (let i = 0; i < 3; i++) await compressor.compressDocuments(documents(), QUESTION)
      expect(warn.mock.calls.map(([text]) => text)).toEqual([
        expect.stringMatching(/^canopy-encoder: 5 documents go on unrefined\. Error: the GPU fell out/),
      ])
    } finally {
      warn.mockRestore()
    }
    const strict = new CanopyCompressor({
      encoder: failing,
      onError: ({ error }) => {
        throw error
      },
    })
    await expect(strict.compressDocuments(documents(), QUESTION)).rejects.toThrow('the GPU fell out')
  })

  it('passes the documents on as they came after a timeout, and reports it', async () => {
    const failures: RefinementFailure[] = []
    const compressor = new CanopyCompressor({
      encoder: silent,
      timeout: 20,
      onError: (failure) => failures.push(failure),
    })
    const given = documents()
    expect(await compressor.compressDocuments(given, QUESTION)).toEqual(given)
    expect(failures.map(({ error }) => String(error))).toEqual([
      'TimeoutError: Refinement took longer than its timeout of 20 ms.',
    ])
    expect(() => new CanopyCompressor({ encoder, timeout: 0 })).toThrow(RangeError)
  })

  it('waits without end where the timeout is longer than a timer can be', async () => {
    const late = answering(async (question, items) => {
      await new Promise((done) => setTimeout(done, 30))
      return encoder.refine(question, items)
    })
    for (const timeout of [Number.POSITIVE_INFINITY, 2 ** 31]) {
      const compressor = new CanopyCompressor({
        encoder: late,
        timeout,
        onError: ({ error }) => expect.unreachable(String(error)),
      })
      const [refined] = await compressor.compressDocuments([new Document({ pageContent: FERRY })], QUESTION)
      expect(refinementOf(refined as Document).leaves).toBe(5)
    }
  })

  it('passes the documents on as they came where one of them cannot be read', async () => {
    const failures: RefinementFailure[] = []
    const compressor = new CanopyCompressor({
      encoder,
      titleKey: 'title',
      onError: (failure) => void failures.push(failure),
    })
    const hostile = {
      pageContent: FERRY,
      metadata: {
        get title(): string {
          throw new Error('no title today')
        },
      },
    }
    for (const bad of [hostile, null as unknown as DocumentInterface]) {
      const given = [new Document({ pageContent: TOWER }), bad]
      const refined = await compressor.compressDocuments(given, QUESTION)
      expect(refined.every((document, i) => document === given[i])).toBe(true)
    }
    expect(failures.map(({ error }) => String(error))).toEqual([
      'Error: no title today',
      expect.stringContaining('TypeError'),
    ])
  })

  it('waits for an onError that answers later, and throws what that rejects with', async () => {
    const compressor = new CanopyCompressor({
      encoder: failing,
      onError: async ({ error }) => {
        await new Promise((done) => setTimeout(done, 1))
        throw error
      },
    })
    await expect(compressor.compressDocuments(documents(), QUESTION)).rejects.toThrow('the GPU fell out')
  })

  it('listens to its signal once however many calls run, and no more behind them', async () => {
    const controller = new AbortController()
    const added = vi.spyOn(controller.signal, 'addEventListener')
    const removed = vi.spyOn(controller.signal, 'removeEventListener')
    const compressor = new CanopyCompressor({ encoder: silent, signal: controller.signal, timeout: 30, onError() {} })
    const calls = Array.from({ length: 30 }, () => compressor.compressDocuments(documents(), QUESTION))
    await Promise.all(calls)
    expect([added.mock.calls.length, removed.mock.calls.length]).toEqual([1, 1])
    const later = compressor.compressDocuments(documents(), QUESTION)
    controller.abort(new Error('the server ends'))
    await expect(later).rejects.toThrow('the server ends')
  })

  it('tells the encoder of a timeout, so that it stops', async () => {
    const signals: AbortSignal[] = []
    const listening = answering((_, __, { signal } = {}) => {
      if (signal !== undefined) signals.push(signal)
      return new Promise((_, reject) => signal?.addEventListener('abort', () => reject(signal.reason)))
    })
    await new CanopyCompressor({ encoder: listening, timeout: 10, onError: () => {} }).compressDocuments(
      documents(),
      'a',
    )
    expect(signals.map(({ aborted }) => aborted)).toEqual([true])
  })

  it('is aborted by its signal and by that of a call, with the reason, and reports no failure', async () => {
    const onError = vi.fn()
    const [own, call] = [new AbortController(), new AbortController()]
    const compressor = new CanopyCompressor({ encoder: silent, signal: own.signal, onError })
    const first = compressor.compressDocuments(documents(), QUESTION, undefined, { signal: call.signal })
    call.abort(new Error('the user left'))
    await expect(first).rejects.toThrow('the user left')
    const second = compressor.compressDocuments(documents(), QUESTION)
    own.abort(new Error('the server ends'))
    await expect(second).rejects.toThrow('the server ends')
    await expect(compressor.compressDocuments(documents(), QUESTION)).rejects.toThrow('the server ends')
    expect(onError).not.toHaveBeenCalled()
  })

  it('asks the encoder for nothing where there is nothing to refine', async () => {
    const compressor = new CanopyCompressor({ encoder: answering(() => expect.unreachable('the encoder was asked')) })
    const strange = { pageContent: 7 as unknown as string, metadata: {} }
    expect(await compressor.compressDocuments([], QUESTION)).toEqual([])
    expect(await compressor.compressDocuments([strange, new Document({ pageContent: '' })], QUESTION)).toHaveLength(2)
  })

  it('leaves an encoder open that it was given', async () => {
    const close = vi.fn(async () => {})
    const given = { ...encoder, close }
    await new CanopyCompressor({ encoder: given }).close()
    expect(close).not.toHaveBeenCalled()
  })
})

/** A kept range as an encoder gives it, from the first words to the last ones. */
function range(text: string, first: string, last: string, from: number, to: number): RefinedItem['kept'][number] {
  const start = text.indexOf(first)
  const end = text.indexOf(last, start) + last.length
  return { from, to, start, end, text: text.slice(start, end), score: 0.5 }
}
