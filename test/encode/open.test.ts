import { createHash } from 'node:crypto'
import { cpSync, readFileSync, rmSync, symlinkSync, truncateSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { embeddingsStore, fillStore, openEmbeddings, verifyEmbeddings } from '../../src/encode/index.ts'
import { openPair, refineItems } from '../../src/encoder/index.ts'
import type { EmbeddingSpace, EmbeddingStore } from '../../src/store/index.ts'
import { InputError } from '../../src/support/errors.ts'
import { tinyBert } from '../encoder/fixtures.ts'
import { temporaryFolder } from '../support/temporary.ts'
import { encodeSmall, type Opened, openTiny, SETTINGS, testItems, writeDataset } from './world.ts'

let tiny: Opened
beforeAll(async () => {
  tiny = await openTiny()
})
afterAll(() => tiny.embedder.close())

/** A store in memory that counts what it is asked. */
function memoryStore(): EmbeddingStore & { kept: Map<string, Float32Array>; spaces: Set<string> } {
  const kept = new Map<string, Float32Array>()
  const spaces = new Set<string>()
  const name = ({ fingerprint }: EmbeddingSpace, key: Uint8Array) =>
    `${fingerprint} ${Buffer.from(key).toString('hex')}`
  return {
    ...{ kept, spaces },
    async getMany(space, keys) {
      return keys.map((key) => kept.get(name(space, key)))
    },
    async putMany(space, keys, embeddings) {
      spaces.add(space.fingerprint)
      keys.forEach((key, i) => {
        const at = name(space, key)
        if (!kept.has(at)) kept.set(at, embeddings.slice(i * space.dimension, (i + 1) * space.dimension))
      })
    },
  }
}

async function encoded(more: Parameters<typeof encodeSmall>[3] = {}): Promise<{ folder: string; output: string }> {
  const folder = temporaryFolder()
  const output = join(folder, 'out')
  await encodeSmall(tiny, writeDataset(join(folder, 'data')), output, more)
  return { folder, output }
}

/** Puts the hash of a file that was changed into encode.json, as somebody would who means harm. */
function rehash(output: string, name: string): void {
  const file = join(output, 'encode.json')
  const description = JSON.parse(readFileSync(file, 'utf8'))
  description.files[name] = createHash('sha256')
    .update(readFileSync(join(output, name)))
    .digest('hex')
  writeFileSync(file, JSON.stringify(description))
}

describe('refining with embeddings that were computed ahead', () => {
  const passages = testItems()
    .filter(({ modality }) => modality === 'text')
    .slice(0, 12)
    .map(({ id, title, text }) => ({ id, title: title as string, text: text as string }))
  const question = 'How many doors has the mill?'

  it('keeps what refining with computed ones keeps, and never loads the node encoder', async () => {
    const folder = temporaryFolder()
    const output = join(folder, 'out')
    const tuned = await openTiny('mean', { adapter: join(tinyBert('mean'), 'adapter') })
    const { encoded } = await encodeSmall(tuned, writeDataset(join(folder, 'data')), output)
    expect(encoded.adapter).toMatch(/^[0-9a-f]{64}$/)
    await tuned.embedder.close()
    const computing = await openPair(tuned.pair, { threads: 1 })
    const expected = await refineItems(computing, SETTINGS, question, passages)
    await computing.close()

    const store = embeddingsStore(await openEmbeddings(output))
    const reading = await openPair(tuned.pair, { threads: 1, store })
    const found = await refineItems(reading, SETTINGS, question, passages)
    expect(reading.node.counts.computed).toBe(0)
    expect(reading.node.loaded).toBe(false)
    await reading.close()
    await store.close?.()
    const ranges = (items: typeof found) => items.map(({ kept }) => kept.map(({ from, to }) => [from, to]))
    expect(ranges(found)).toEqual(ranges(expected))
    for (const [i, { nodes }] of found.entries())
      for (const [n, { score }] of nodes.entries()) expect(score).toBeCloseTo(expected[i]?.nodes[n]?.score as number, 5)
  })

  it('computes what the file does not have, and keeps that elsewhere', async () => {
    const { output } = await encoded()
    const otherwise = memoryStore()
    const store = embeddingsStore(await openEmbeddings(output), { otherwise })
    const reading = await openPair(tiny.pair, { threads: 1, store })
    const news = { id: 'new', text: 'A text that nobody has encoded. It has two sentences.' }
    const ask = () => refineItems(reading, SETTINGS, question, [passages[0] as (typeof passages)[0], news])
    const first = await ask()
    const before = reading.node.counts.computed
    expect(otherwise.kept.size).toBe(3)
    expect(await ask()).toEqual(first)
    // the question alone
    expect(reading.node.counts.computed - before).toBeLessThanOrEqual(1)
    await reading.close()
    await store.close?.()
  })

  it('refuses another encoder, and float16 unless it is meant', async () => {
    const { output } = await encoded({ dtype: 'float16' })
    const embeddings = await openEmbeddings(output)
    expect(() => embeddingsStore(embeddings)).toThrow(/stored in float16.*"rounded"/)
    const store = embeddingsStore(embeddings, { rounded: true })
    const other = await openTiny('cls')
    await expect(openPair(other.pair, { store })).rejects.toThrow(/These embeddings are of .*Encode the data/)
    await expect(openEmbeddings(output, { fingerprint: other.embedder.fingerprint })).rejects.toThrow(InputError)
    await other.embedder.close()
    await store.close?.()
    expect(() => embeddings.row(0)).toThrow(/closed/)
  })

  it('fills any store with them', async () => {
    const { output } = await encoded()
    const embeddings = await openEmbeddings(output)
    const store = memoryStore()
    await fillStore(embeddings, store)
    expect([...store.spaces]).toEqual([tiny.embedder.fingerprint])
    const { units: _, same, rows } = embeddings.encoded.counts
    expect(store.kept.size).toBeLessThanOrEqual(rows - same)
    const [found] = await store.getMany(embeddings.space, [embeddings.key(5)])
    expect(found).toEqual(embeddings.row(5))
    embeddings.close()
  })
})

describe('damaged and hostile files', () => {
  const both = async (output: string, message: RegExp): Promise<void> => {
    await expect(openEmbeddings(output).then((opened) => opened.close())).rejects.toThrow(message)
    await expect(verifyEmbeddings(output)).rejects.toThrow(InputError)
  }
  /** A copy whose file `name` was changed. */
  const changed = (output: string, name: string, change: (text: string) => string, hashed = true): string => {
    const copy = `${output} ${Math.random()}`
    cpSync(output, copy, { recursive: true })
    const file = join(copy, name)
    writeFileSync(file, change(readFileSync(file, 'latin1')), 'latin1')
    if (hashed && name !== 'encode.json') rehash(copy, name)
    return copy
  }

  it('are refused, each with its place', async () => {
    const { output } = await encoded()
    const index = (change: (lines: string[]) => void, message: RegExp): Promise<void> =>
      both(
        changed(output, 'index.jsonl', (text) => {
          const lines = text.trimEnd().split('\n')
          change(lines)
          return `${lines.join('\n')}\n`
        }),
        message,
      )
    const edit =
      (at: number, fields: object) =>
      (lines: string[]): void => {
        lines[at] = JSON.stringify({ ...JSON.parse(lines[at] as string), ...fields })
      }
    await index(edit(2, { from: -1 }), /index\.jsonl:3: .*"from"/)
    await index(edit(2, { from: 5, to: 5 }), /index\.jsonl:3: .*no range/)
    await index(edit(2, { to: 2 ** 40 }), /index\.jsonl:3: .*"to"/)
    await index(edit(2, { key: 'zz' }), /index\.jsonl:3: .*"key"/)
    await index(edit(2, { item: 7 }), /index\.jsonl:3: .*"item"/)
    await index(edit(2, { more: 1 }), /index\.jsonl:3: /)
    await index(edit(2, { truncated: 'yes' }), /index\.jsonl:3: .*"truncated"/)
    await index((lines) => lines.splice(3, 1), /cut short/)
    await index((lines) => lines.push(lines[0] as string), /a row too many/)
    await index((lines) => lines.splice(3, 0, ''), /index\.jsonl:4: .*empty/)
    await index((lines) => {
      lines[1] = '{"item":'
    }, /index\.jsonl:2: not valid JSON/)
    await index((lines) => {
      const last = lines.pop() as string
      lines.unshift(last)
    }, /do not stand together|pre-order/)

    const description = (fields: object): string =>
      changed(output, 'encode.json', (text) => JSON.stringify({ ...JSON.parse(text), ...fields }))
    const { files, counts, space } = JSON.parse(readFileSync(join(output, 'encode.json'), 'utf8'))
    await both(description({ schema: 'canopy-embeddings/9' }), /encode\.json: .*"schema"/)
    await both(description({ files: { ...files, '../../escape': files['index.jsonl'] } }), /encode\.json: .*"files"/)
    await both(description({ counts: { ...counts, rows: counts.rows + 1 } }), /the tensor is \[/)
    await both(description({ counts: { ...counts, units: counts.units + 1 } }), /contradicts itself/)
    await both(description({ space: { ...space, dimension: space.dimension * 2 } }), /the tensor is \[/)
    await both(description({ space: { ...space, fingerprint: 'a'.repeat(64) } }), /other embeddings/)
    await both(
      description({ dtype: 'float16', rounding: { leastCosine: 1, largestDifference: 0 } }),
      /the tensor is F32/,
    )
    await both(description({ dtype: 'float16' }), /contradicts itself/)
    await both(
      changed(output, 'encode.json', () => 'no JSON'),
      /not valid JSON/,
    )
    await both(
      changed(output, 'embeddings.safetensors', (text) => text.slice(0, -4)),
      /cut short/,
    )
    await both(
      changed(output, 'embeddings.safetensors', (text) => `${text}more`),
      /tensors end at byte/,
    )
    for (const name of ['encode.json', 'index.jsonl', 'embeddings.safetensors']) {
      const copy = `${output} without ${name}`
      cpSync(output, copy, { recursive: true })
      rmSync(join(copy, name))
      await both(copy, new RegExp(name.replace('.', '\\.')))
    }
  })

  it('are found by a look at every byte, where opening does not read them', async () => {
    const { output } = await encoded()
    const flipped = changed(
      output,
      'embeddings.safetensors',
      (text) => `${text.slice(0, 2000)}${text[2000] === 'a' ? 'b' : 'a'}${text.slice(2001)}`,
      false,
    )
    ;(await openEmbeddings(flipped)).close()
    await expect(verifyEmbeddings(flipped)).rejects.toThrow(/embeddings\.safetensors: is not the file/)

    const nan = changed(output, 'embeddings.safetensors', (text) => {
      const bytes = Buffer.from(text, 'latin1')
      bytes.writeFloatLE(Number.NaN, 512)
      return bytes.toString('latin1')
    })
    const embeddings = await openEmbeddings(nan)
    expect(() => embeddings.row(0)).toThrow(/row 0 .*not finite/)
    expect(embeddings.row(1)).toBeDefined()
    embeddings.close()
    await expect(verifyEmbeddings(nan)).rejects.toThrow(/not finite/)

    const stranger = changed(output, 'index.jsonl', (text) => text.replaceAll('"item 1"', '"item X"'))
    await expect(verifyEmbeddings(stranger)).rejects.toThrow(/each once and in order/)
    const uncut = changed(output, 'index.jsonl', (text) => text.replace(',"truncated":true', ''))
    await expect(verifyEmbeddings(uncut)).rejects.toThrow(/truncated rows/)
    writeFileSync(join(uncut, 'skipped.jsonl'), '')
    await expect(verifyEmbeddings(uncut)).rejects.toThrow(/does not know this file/)
  })

  it('a file that shrinks while it is open is an error, and a link to it is none', async () => {
    const { folder, output } = await encoded()
    symlinkSync(output, join(folder, 'link'))
    const embeddings = await openEmbeddings(join(folder, 'link'))
    truncateSync(join(output, 'embeddings.safetensors'), 600)
    expect(() => embeddings.row(embeddings.rows - 1)).toThrow(/cut short while it was open/)
    embeddings.close()
  })
})
