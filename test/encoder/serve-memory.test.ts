import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Embedder, EncoderInput, RefineInput } from '../../src/encoder/index.ts'
import { type AskedQuestion, openMemory } from '../../src/encoder/serve/memory.ts'
import { cosines, squaresOf, unpackRefined } from '../../src/encoder/serve/packed.ts'
import { contentKey, withoutOthers } from '../../src/encoder/serve/refine-input.ts'
import { type Encoders, prepareItems, refineItems, refinePacked } from '../../src/encoder/serve/refine-items.ts'
import { refineWith } from '../../src/refine/index.ts'
import { createRandom } from '../../src/support/random.ts'
import { ITEMS, LONG, QUESTION, refineHere, serving, TABLE } from './serving.ts'

const DIMENSION = 7
const SETTINGS = { title: true, tableFormat: 'markdown', branching: 2 } as const

const vectorOf = (text: string): Float32Array => {
  const random = createRandom(text)
  return Float32Array.from({ length: DIMENSION }, () => random.normal())
}

/** Encoders whose embeddings are made up from the text, and how many texts they were given. */
function madeUp(): Encoders & { embedded: string[] } {
  const embedded: string[] = []
  const embedder = {
    dimension: DIMENSION,
    profile: { id: 'made-up' },
    reader: { multimodal: false },
    async embed(inputs: readonly EncoderInput[], side: string) {
      const embeddings = new Float32Array(inputs.length * DIMENSION)
      for (const [i, { text }] of inputs.entries()) {
        embedded.push(text)
        embeddings.set(vectorOf(`${side} ${text}`), i * DIMENSION)
      }
      return { embeddings, truncated: inputs.map(({ text }) => text.length > 40) }
    },
  } as unknown as Embedder
  return { query: embedder, node: embedder, embedded }
}

/** Cosine of `a` and the row of `b` that starts at `at`. */
function cosine(a: Float32Array, b: Float32Array, at: number): number {
  let [dot, aa, bb] = [0, 0, 0]
  for (const [k, x] of a.entries()) {
    const y = b[at + k] as number
    dot += x * y
    aa += x * x
    bb += y * y
  }
  return dot / Math.max(Math.sqrt(aa * bb), 1e-24)
}

const word = fc.constantFrom('Ada', 'rye', '4', '"', ' ', '|', ']', '\\')
const words = fc.array(word, { maxLength: 4 }).map((parts) => parts.join(' '))
const sentence = fc.array(word, { minLength: 1, maxLength: 5 }).map((parts) => `The ${parts.join(' ')} stood. `)
const text = fc.array(sentence, { minLength: 1, maxLength: 6 }).map((sentences) => sentences.join(''))
const titled = { id: fc.string(), title: words }
const row = fc.array(words, { maxLength: 3 })
const input: fc.Arbitrary<RefineInput> = fc.oneof(
  text,
  fc.record({ ...titled, text }, { requiredKeys: ['text'] }),
  fc.record({ text, at: fc.nat() }).map(({ text: whole, at }) => {
    const end = 1 + (at % whole.length)
    const sentences: [number, number][] = [
      [0, end],
      [end, whole.length],
    ]
    return { text: whole, sentences }
  }),
  fc.record(
    { ...titled, caption: words, header: row, rows: fc.array(row, { minLength: 1, maxLength: 4 }) },
    { requiredKeys: ['header', 'rows'] },
  ),
)

describe('the memory', () => {
  it('changes no number, whatever was asked before and however little it holds', async () => {
    const call = fc.record({ question: fc.constantFrom('Who?', 'Where?', 'What?'), items: fc.array(fc.nat(9)) })
    await fc.assert(
      fc.asyncProperty(
        fc.array(input, { minLength: 10, maxLength: 10 }),
        fc.array(call, { minLength: 1, maxLength: 8 }),
        fc.constantFrom(0, 3_000, 10_000, 1e6),
        async (pool, calls, bytes) => {
          const memory = openMemory(bytes)
          for (const { question, items } of calls) {
            const asked = items.map((i) => pool[i] as RefineInput)
            const remembered = await refineItems(madeUp(), SETTINGS, question, asked, { memory })
            expect(remembered).toEqual(await refineItems(madeUp(), SETTINGS, question, asked))
          }
        },
      ),
      { numRuns: 60 },
    )
  })

  it('knows an item by its content: another id is the same, another title, caption, sentence or cell is not', async () => {
    const encoders = madeUp()
    const memory = openMemory(1e6)
    const computed = async (item: RefineInput): Promise<number> => {
      encoders.embedded.length = 0
      const [refined] = await refineItems(encoders, SETTINGS, QUESTION, [item], { memory })
      expect(refined).toEqual((await refineItems(madeUp(), SETTINGS, QUESTION, [item]))[0])
      return encoders.embedded.length
    }
    const table = TABLE as Extract<RefineInput, { rows: string[][] }>
    expect(await computed({ text: 'A mill. A tower.' })).toBe(1 + 3)
    expect(await computed('A mill. A tower.')).toBe(0)
    expect(await computed({ id: 'x', title: '', text: 'A mill. A tower.' })).toBe(0)
    expect(await computed({ id: 'x', title: 'T', text: 'A mill. A tower.' })).toBe(3)
    expect(await computed({ text: 'A mill. A tower.', sentences: [[0, 16]] })).toBe(1)
    expect(await computed({ text: 'A mill. A tower.', sentences: [[0, 9], [9, 16]] })).toBe(3) // biome-ignore format: spans
    expect(await computed(table)).toBe(5)
    expect(await computed({ ...table, id: 'y', rows: table.rows.map((cells) => [...cells]) })).toBe(0)
    expect(await computed({ ...table, caption: 'By the sea' })).toBe(5)
    expect(await computed({ ...table, rows: [...table.rows.slice(0, 2), ['Wind mill', 'oats']] })).toBe(5)
  })

  it('lets go of what was used longest ago where it is full', async () => {
    const encoders = madeUp()
    const items = Array.from({ length: 40 }, (_, i) => `The ${i}th mill. The ${i}th tower.`)
    // about 850 bytes an item
    const memory = openMemory(16_000)
    await prepareItems(encoders, SETTINGS, items, { memory })
    const computed = async (item: string): Promise<number> => {
      encoders.embedded.length = 0
      await prepareItems(encoders, SETTINGS, [item], { memory })
      return encoders.embedded.length
    }
    expect(await computed(items[39]!)).toBe(0)
    expect(await computed(items[38]!)).toBe(0)
    expect(await computed(items[0]!)).toBe(3)
    expect(await computed(items[0]!)).toBe(0)
    const kept = await Promise.all(items.map((item) => memory.items.get(`text 0 ${item}`)))
    const bytes = kept.reduce((sum, item) => sum + (item?.bytes ?? 0), 0)
    expect(bytes).toBeGreaterThan(8_000)
    expect(bytes).toBeLessThanOrEqual(15_000)
  })

  it('does not take in what failed, what may change, and fields that are not read', async () => {
    const memory = openMemory(1e6)
    const bad: unknown[] = [' ', { text: 'A mill.', sentences: [['0', '7']] }, { header: [], rows: [['a', 3]] }]
    for (const item of bad)
      for (let time = 0; time < 2; time++)
        await expect(refineItems(madeUp(), SETTINGS, QUESTION, [item as RefineInput], { memory })).rejects.toThrow()
    expect(contentKey({ image: 'a.png' })).toBeUndefined()
    expect(contentKey({ video: 'a.mp4', start: 0, end: 9 })).toBeUndefined()
    expect(contentKey({ text: 'A mill.', rows: [['a']], header: [] })).toBeUndefined()
    expect(contentKey({ text: 'A mill.', title: 5 })).toBeUndefined()
    const hit = { id: 'a', text: 'A mill.', metadata: { of: 'the retriever' }, embed: () => {} }
    expect(withoutOthers(hit)).toEqual({ id: 'a', text: 'A mill.' })
    await refineItems(madeUp(), SETTINGS, QUESTION, [hit], { memory })
    expect(memory.items.get(contentKey(hit) as string)?.item).toEqual({ id: 'a', modality: 'text', text: 'A mill.' })
  })

  it('has a key of its own for each content', () => {
    fc.assert(
      fc.property(input, input, (a, b) => {
        const content = (item: RefineInput): string => {
          const { id: _, ...rest } = typeof item === 'string' ? { id: '', text: item } : item
          return JSON.stringify(Object.entries({ title: '', caption: 'rows' in rest ? '' : undefined, ...rest }).sort())
        }
        expect(contentKey(a) === contentKey(b)).toBe(content(a) === content(b))
      }),
    )
  })
})

describe('results', () => {
  it('of more nodes than become objects at once are whole, and let the event loop turn meanwhile', async () => {
    const text = Array.from({ length: 9000 }, (_, i) => `Mill ${i}. `).join('')
    const packed = await refinePacked(madeUp(), SETTINGS, QUESTION, [{ id: 'a', text }, 'A mill.'])
    let turns = 0
    const timer = setInterval(() => turns++, 0)
    const [refined, other] = await unpackRefined(packed)
    clearInterval(timer)
    expect(turns).toBeGreaterThan(0)
    expect(refined!.nodes).toHaveLength(17_999)
    expect(refined).toMatchObject({ id: 'a', leaves: 9000 })
    expect(refined!.nodes[0]).toMatchObject({ from: 0, to: 9000, start: 0, end: text.length })
    expect(refined!.nodes.at(-1)).toMatchObject({ from: 8999, to: 9000, end: text.length })
    expect(other!.nodes).toMatchObject([{ from: 0, to: 1, start: 0, end: 7 }])
  })
})

describe('scores', () => {
  it('are cosines whose sums are added up in order, to the last bit', () => {
    const value = fc.float({ noNaN: true, noDefaultInfinity: true, min: -1e3, max: 1e3 })
    const shape = fc.tuple(fc.integer({ min: 1, max: 9 }), fc.integer({ min: 0, max: 11 }))
    fc.assert(
      fc.property(
        shape.chain(([dimension, nodes]) =>
          fc.tuple(
            fc.array(value, { minLength: dimension, maxLength: dimension }),
            fc.array(value, { minLength: dimension * nodes, maxLength: dimension * nodes }),
          ),
        ),
        ([query, rows]) => {
          const embedding = Float32Array.from(query)
          const embeddings = Float32Array.from(rows)
          const asked: AskedQuestion = {
            question: '',
            embedding,
            square: squaresOf(embedding, embedding.length)[0] as number,
          }
          const found = cosines(asked, embeddings, squaresOf(embeddings, embedding.length))
          const expected = Float64Array.from(found, (_, n) => cosine(embedding, embeddings, n * embedding.length))
          expect(found).toEqual(expected)
        },
      ),
    )
  })

  it('and what is kept by them are those of refineWith, the same without threads and files', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(input, { minLength: 1, maxLength: 4 }),
        fc.constantFrom(0, 0.3),
        async (items, margin) => {
          const settings = { ...SETTINGS, margin }
          const textItems = items as Parameters<typeof refineWith>[2]
          const functions = {
            embedQuery: async (question: string) => vectorOf(`query ${question}`),
            async embedNodes(texts: string[]) {
              const embeddings = new Float32Array(texts.length * DIMENSION)
              for (const [i, each] of texts.entries()) embeddings.set(vectorOf(`node ${each}`), i * DIMENSION)
              return { embeddings, truncated: texts.map(({ length }) => length > 40) }
            },
            settings,
          }
          expect(await refineItems(madeUp(), settings, QUESTION, items)).toEqual(
            await refineWith(functions, QUESTION, textItems),
          )
        },
      ),
      { numRuns: 50 },
    )
  })
})

describe('openEncoder', () => {
  const shared = serving()

  it('gives the numbers of an encoder without memory, in any company and when asked again', async () => {
    const items = [...ITEMS, TABLE, ...LONG.slice(0, 3)]
    const expected = await refineHere(shared.checkpoint, {}, items)
    const forgetful = await shared.open(shared.checkpoint, { memory: 0 })
    const encoder = await shared.open()
    expect(await encoder.refine(QUESTION, items.slice(2, 4))).toEqual(expected.slice(2, 4))
    expect(await encoder.refine(QUESTION, [items[6]!])).toEqual([expected[6]])
    expect(await encoder.refine(QUESTION, items)).toEqual(expected)
    expect(await encoder.refine(QUESTION, items)).toEqual(expected)
    expect(await forgetful.refine(QUESTION, [...items].reverse())).toEqual([...expected].reverse())
  })

  it('has nothing of an item left to do that was prepared', async () => {
    const asked: number[] = []
    const store = {
      async getMany(_: unknown, keys: readonly Uint8Array[]) {
        asked.push(keys.length)
        return keys.map(() => undefined)
      },
      async putMany() {},
    }
    const encoder = await shared.open(shared.checkpoint, { store })
    expect(await encoder.prepare([...ITEMS, TABLE])).toBeUndefined()
    expect(asked.reduce((sum, keys) => sum + keys, 0)).toBeGreaterThan(10)
    asked.length = 0
    await encoder.refine(QUESTION, [...ITEMS, TABLE])
    expect(asked).toEqual([])
    const many: RefineInput[] = Array.from({ length: 70 }, () => 'A mill.')
    await expect(encoder.prepare([...many, { id: 'last', text: '' }])).rejects.toThrow('Item 71 ("last") has no text')
    await expect(encoder.prepare(ITEMS, { signal: AbortSignal.abort() })).rejects.toMatchObject({ name: 'AbortError' })
  })
})
