import { appendFileSync, copyFileSync, readFileSync, truncateSync, writeFileSync } from 'node:fs'
import { readdir, readFile, rename } from 'node:fs/promises'
import { join } from 'node:path'
import fc from 'fast-check'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { openDataset } from '../../src/data/index.ts'
import {
  encodeToStore,
  type Format,
  mergeShards,
  openEmbeddings,
  parseShard,
  partialOf,
  shardBlocks,
  verifyEmbeddings,
} from '../../src/encode/index.ts'
import { encoderInput, openEmbedder, readEncoderPair } from '../../src/encoder/index.ts'
import { buildHierarchy } from '../../src/hierarchy/index.ts'
import { openDiskStore } from '../../src/store/index.ts'
import { UsageError } from '../../src/support/errors.ts'
import { exists } from '../../src/support/files.ts'
import { tinyQwen3 } from '../encoder/qwen3-known.ts'
import { lines, snapshot, temporaryFolder } from '../support/temporary.ts'
import { encodeSmall, type Opened, openTiny, SETTINGS, testItems, writeDataset } from './world.ts'

let tiny: Opened
beforeAll(async () => {
  tiny = await openTiny()
})
afterAll(() => tiny.embedder.close())

/** The files of a folder with their content, by name. */
async function contents(folder: string): Promise<Record<string, string>> {
  const found = Object.entries(await snapshot(folder))
  return Object.fromEntries(found.map(([path, content]) => [path.slice(folder.length), content]))
}

describe('encoding a data set', () => {
  it('writes every node of every item, in pre-order, with the embeddings that the encoder gives', async () => {
    const folder = temporaryFolder()
    const dataset = writeDataset(join(folder, 'data'))
    const { encoded, work } = await encodeSmall(tiny, dataset, join(folder, 'out'))
    expect(encoded.counts).toMatchObject({ units: 42, skipped: 0, rows: work.rows })
    expect(encoded.counts.truncated).toBeGreaterThan(0)
    expect(encoded.counts.same).toBeGreaterThan(0)
    expect(work.computed).toBe(work.rows - work.same)

    const embeddings = await openEmbeddings(join(folder, 'out'), { fingerprint: tiny.embedder.fingerprint })
    const opened = await openDataset(dataset)
    let rows = 0
    for await (const { item } of opened.items()) {
      const tree = buildHierarchy(item, 2)
      const inputs = tree.nodes.map((node) => encoderInput(tree, node, SETTINGS, dataset))
      const expected = await tiny.embedder.embed(inputs, 'node')
      const keys = await tiny.embedder.keys(inputs, 'node')
      const found = embeddings.item(item.id)
      expect(found?.map(({ from, to }) => [from, to])).toEqual(tree.nodes.map(({ from, to }) => [from, to]))
      expect(found?.map(({ truncated }) => truncated)).toEqual(expected.truncated)
      found?.forEach(({ from, to, start, end, row }, n) => {
        if (item.modality === 'text') expect([start, end]).toEqual([tree.leaves[from]?.[0], tree.leaves[to - 1]?.[1]])
        const embedding = expected.embeddings.subarray(
          n * embeddings.space.dimension,
          (n + 1) * embeddings.space.dimension,
        )
        const written = embeddings.row(row)
        for (const [i, x] of written.entries()) expect(Math.abs(x - (embedding[i] as number))).toBeLessThan(1e-6)
        expect(embeddings.node(item.id, from, to)).toEqual(written)
        expect(Buffer.from(embeddings.key(row))).toEqual(Buffer.from(keys[n] as Uint8Array))
        expect(embeddings.byKey(keys[n] as Uint8Array)).toBeDefined()
      })
      rows += inputs.length
    }
    await opened.close()
    expect(embeddings.rows).toBe(rows)
    expect(embeddings.node('item 3', 0, 99)).toBeUndefined()
    expect(embeddings.node('no such item', 0, 1)).toBeUndefined()
    expect(embeddings.item('no such item')).toBeUndefined()
    expect(embeddings.byKey(new Uint8Array(16))).toBeUndefined()
    embeddings.close()
    expect((await verifyEmbeddings(join(folder, 'out'))).counts.rows).toBe(rows)
  })

  it('takes the items that the questions of a split name, and questions on the query side', async () => {
    const folder = temporaryFolder()
    const dataset = writeDataset(join(folder, 'data'))
    const selection = { datasets: [dataset], itemFiles: [], splits: ['dev'] }
    const nodes = await encodeSmall(tiny, dataset, join(folder, 'nodes'), { selection })
    expect(nodes.encoded.counts.units).toBe(5)
    const { encoded } = await encodeSmall(tiny, dataset, join(folder, 'questions'), { selection, side: 'query' })
    expect(encoded.counts).toMatchObject({ units: 5, rows: 5 })
    const embeddings = await openEmbeddings(join(folder, 'questions'))
    const expected = await tiny.embedder.embedTexts(['How many doors, 7?'], 'query')
    const found = embeddings.question('test', 'dev', 'q7')
    for (const [i, x] of (found ?? []).entries()) expect(x).toBeCloseTo(expected.embeddings[i] as number, 5)
    expect(found).toHaveLength(embeddings.space.dimension)
    expect(embeddings.question('test', 'train', 'q7')).toBeUndefined()
    expect(embeddings.item('item 7')).toBeUndefined()
    embeddings.close()
    await verifyEmbeddings(join(folder, 'questions'))
    const missing = encodeSmall(tiny, dataset, join(folder, 'x'), { selection: { ...selection, splits: ['test'] } })
    await expect(missing).rejects.toThrow(/no split "test"; it has "train", "dev"/)
  })

  it('names an item that a question names and nobody has, and an id with two contents', async () => {
    const folder = temporaryFolder()
    const dataset = writeDataset(join(folder, 'data'))
    const file = join(dataset, 'items.jsonl')
    writeFileSync(file, lines(...testItems().filter(({ id }) => id !== 'item 6')))
    const selection = { datasets: [dataset], itemFiles: [], splits: ['dev'] }
    await expect(encodeSmall(tiny, dataset, join(folder, 'out'), { selection })).rejects.toThrow(
      /questions.jsonl:7: .*"item 6"/,
    )
    const [first] = testItems() as [{ id: string }]
    writeFileSync(file, lines(first, first, { ...first, text: 'Another text.' }))
    await expect(encodeSmall(tiny, dataset, join(folder, 'out'))).rejects.toThrow(/"item 0" is there twice/)
    writeFileSync(file, lines(first, first))
    expect((await encodeSmall(tiny, dataset, join(folder, 'out'))).encoded.counts.units).toBe(1)
    writeFileSync(file, '')
    await expect(encodeSmall(tiny, dataset, join(folder, 'none'))).rejects.toThrow(/nothing to encode/)
  })

  it('computes an item of many times a block in pieces', async () => {
    const folder = temporaryFolder()
    const text = Array.from({ length: 90 }, (_, i) => `Line ${i} is here.`).join(' ')
    const dataset = writeDataset(join(folder, 'data'), [{ id: 'huge', modality: 'text', text }, ...testItems(3)])
    const { encoded } = await encodeSmall(tiny, dataset, join(folder, 'out'))
    const embeddings = await openEmbeddings(join(folder, 'out'))
    expect(embeddings.item('huge')).toHaveLength(179)
    expect(encoded.counts.rows).toBeGreaterThan(179)
    const expected = await tiny.embedder.embedTexts(['Line 0 is here.'], 'node')
    const found = embeddings.node('huge', 0, 1) as Float32Array
    for (const [i, x] of found.entries()) expect(x).toBeCloseTo(expected.embeddings[i] as number, 5)
    embeddings.close()
  })

  it('refuses pictures for an encoder of texts, before anything is written, or leaves them out and lists them', async () => {
    const folder = temporaryFolder()
    const picture = { id: 'picture', modality: 'image', image: 'a.png' }
    const film = { id: 'film', modality: 'video', start: 0, end: 60 }
    const [first, ...others] = testItems(20)
    const dataset = writeDataset(join(folder, 'data'), [picture, first as object, film, ...others])
    const output = join(folder, 'out')
    await expect(encodeSmall(tiny, dataset, output)).rejects.toThrow(/"picture" is an image.*--on-error skip/)
    expect(await readdir(folder)).toEqual(['data'])
    const told: string[] = []
    const onSkip = (label: string): void => {
      told.push(label)
    }
    const { encoded } = await encodeSmall(tiny, dataset, output, { onError: 'skip', onSkip })
    expect(encoded.counts).toMatchObject({ units: 22, skipped: 2 })
    expect(told).toEqual(['the item "picture"', 'the item "film"'])
    const skipped = (await readFile(join(output, 'skipped.jsonl'), 'utf8')).trim().split('\n')
    expect(skipped.map((line) => JSON.parse(line))).toMatchObject(
      [
        { name: '"picture"', number: 0, reason: /an image/ },
        { name: '"film"', number: 2, reason: /a video/ },
      ].map(({ reason, ...rest }) => ({ ...rest, reason: expect.stringMatching(reason) })),
    )
    await verifyEmbeddings(output)
    // shards and merging have to agree on what was left out, too
    for (const index of [1, 2])
      await encodeSmall(tiny, dataset, join(folder, `s${index}`), { onError: 'skip', shard: { index, of: 2 } })
    await merge(folder, ['s2', 's1'], 'merged')
    expect(await contents(join(folder, 'merged'))).toEqual(await contents(output))
  })

  it('embeds pictures with an encoder that reads them; one that cannot be read stops it, or is left out', async () => {
    const folder = temporaryFolder()
    const pair = await readEncoderPair(tinyQwen3('qwen3-vl'))
    const embedder = await openEmbedder(pair.encoder, { threads: 1 })
    onTestFinished(() => embedder.close())
    const items = [
      { id: 'text', modality: 'text', text: 'The lamp turns. The sea is dark.' },
      { id: 'broken', modality: 'image', image: 'broken.png' },
      { id: 'wide', modality: 'image', title: 'Lamp', image: 'wide.png' },
    ]
    const dataset = writeDataset(join(folder, 'data'), items)
    copyFileSync(join(tinyQwen3('qwen3-vl'), 'pictures', 'wide.png'), join(dataset, 'wide.png'))
    writeFileSync(join(dataset, 'broken.png'), 'no picture')
    const output = join(folder, 'out')
    const stopped = encodeSmall({ pair, embedder }, dataset, output)
    await expect(stopped).rejects.toThrow(/broken\.png.*leave out its item \("broken"\)/)
    const { encoded } = await encodeSmall({ pair, embedder }, dataset, output, { onError: 'skip', resume: true })
    expect(encoded.counts).toMatchObject({ units: 2, skipped: 1, rows: 4 })
    expect(readFileSync(join(output, 'skipped.jsonl'), 'utf8')).toMatch(/"number":1,"reason":".*broken\.png/)
    await verifyEmbeddings(output)
    const embeddings = await openEmbeddings(output)
    const image = join(dataset, 'wide.png')
    const expected = await embedder.embed([{ text: 'Lamp', images: [image] }], 'node')
    for (const [i, x] of (embeddings.node('wide', 0, 1) as Float32Array).entries())
      expect(x).toBeCloseTo(expected.embeddings[i] as number, 5)
    embeddings.close()
  })

  it('stores float16 at half the size and says what that loses', async () => {
    const folder = temporaryFolder()
    const dataset = writeDataset(join(folder, 'data'))
    await encodeSmall(tiny, dataset, join(folder, 'full'))
    const { encoded } = await encodeSmall(tiny, dataset, join(folder, 'half'), { dtype: 'float16' })
    const [full, half] = [await openEmbeddings(join(folder, 'full')), await openEmbeddings(join(folder, 'half'))]
    let worst = 0
    for (let row = 0; row < full.rows; row++) {
      const [a, b] = [full.row(row), half.row(row)]
      for (const [i, x] of a.entries()) worst = Math.max(worst, Math.abs(x - (b[i] as number)))
    }
    expect(encoded.rounding?.largestDifference).toBe(worst)
    expect(encoded.rounding?.leastCosine).toBeGreaterThan(0.99999)
    expect(worst).toBeGreaterThan(0)
    full.close()
    half.close()
    await verifyEmbeddings(join(folder, 'half'))
  })

  it('fills the store of an embedder, and computes nothing the second time', async () => {
    const folder = temporaryFolder()
    const dataset = writeDataset(join(folder, 'data'))
    const selection = { datasets: [dataset], itemFiles: [], splits: undefined }
    const fill = async () => {
      const store = openDiskStore(join(folder, 'store'))
      const embedder = await openEmbedder(tiny.pair.encoder, { store, threads: 1 })
      const result = await encodeToStore({ pair: tiny.pair, embedder, side: 'node', selection, settings: SETTINGS })
      const { loaded } = embedder
      await embedder.close()
      await store.close()
      return { ...result, loaded }
    }
    const first = await fill()
    expect(first.work.computed).toBeGreaterThan(100)
    const second = await fill()
    expect(second).toMatchObject({ loaded: false, work: { computed: 0, rows: first.work.rows } })
  })
})

const merge = (folder: string, names: string[], output: string, format: Format = 'safetensors') =>
  mergeShards({ shards: names.map((name) => join(folder, name)), output: join(folder, output), format })

describe('going on after an interruption', () => {
  it('gives the same bytes, wherever it was stopped and whatever the last block left behind', async () => {
    const folder = temporaryFolder()
    const dataset = writeDataset(join(folder, 'data'))
    const whole = join(folder, 'whole')
    const { encoded } = await encodeSmall(tiny, dataset, whole)
    expect(encoded.data.blocks).toBeGreaterThan(6)
    const wanted = await contents(whole)
    for (const [i, stopAt] of [1, 17, 40, 90, 150].entries()) {
      const output = join(folder, `out ${i}`)
      const controller = new AbortController()
      const stopped = encodeSmall(tiny, dataset, output, {
        signal: controller.signal,
        onProgress: ({ phase, done }) => {
          if (phase === 'encoding nodes' && done >= stopAt) controller.abort()
        },
      })
      await expect(stopped).rejects.toThrow(/abort/)
      expect(await exists(output)).toBe(false)
      const partial = partialOf(output)
      if (i % 2 === 0) {
        // what a killed process was writing
        appendFileSync(join(partial, 'files', 'embeddings.safetensors'), Buffer.alloc(100))
        appendFileSync(join(partial, 'files', 'index.jsonl'), '{"item":"half a li')
        appendFileSync(join(partial, 'progress.jsonl'), '{"block":99,"by')
      } else {
        // a block whose bytes were lost with the power
        const file = join(partial, 'files', 'embeddings.safetensors')
        truncateSync(file, readFileSync(file).length - 8)
      }
      await expect(encodeSmall(tiny, dataset, output)).rejects.toThrow(/unfinished run.*--resume/)
      const { resumed } = await encodeSmall(tiny, dataset, output, { resume: true })
      expect(resumed).toBeLessThan(encoded.data.blocks)
      if (stopAt > 60) expect(resumed).toBeGreaterThan(1)
      expect(await contents(output)).toEqual(wanted)
      expect(await exists(partial)).toBe(false)
      const again = await encodeSmall(tiny, dataset, output, { resume: true })
      expect(again.encoded).toEqual(encoded)
      expect(again.work.rows).toBe(0)
    }
  })

  it('computes a block again whose bytes are not those it wrote', async () => {
    const folder = temporaryFolder()
    const dataset = writeDataset(join(folder, 'data'))
    await encodeSmall(tiny, dataset, join(folder, 'whole'))
    const output = join(folder, 'out')
    await stopAt(dataset, output, 120)
    const file = join(partialOf(output), 'files', 'embeddings.safetensors')
    const bytes = readFileSync(file)
    bytes[700] = (bytes[700] as number) ^ 1
    writeFileSync(file, bytes)
    expect((await encodeSmall(tiny, dataset, output, { resume: true })).resumed).toBe(0)
    expect(await contents(output)).toEqual(await contents(join(folder, 'whole')))
  })

  it('refuses other settings and other data by their names', async () => {
    const folder = temporaryFolder()
    const dataset = writeDataset(join(folder, 'data'))
    const output = join(folder, 'out')
    await stopAt(dataset, output, 60)
    const resume = (more: object) => encodeSmall(tiny, dataset, output, { resume: true, ...more })
    await expect(resume({ settings: { ...SETTINGS, title: false } })).rejects.toThrow(
      /settings\.title was true, is false/,
    )
    await expect(resume({ dtype: 'float16' })).rejects.toThrow(/dtype was "float32", is "float16"/)
    await expect(resume({ shard: { index: 1, of: 2 } })).rejects.toThrow(/shard was null/)
    const other = await openTiny('cls')
    await expect(resume(other)).rejects.toThrow(/encoder\.fingerprint was [0-9a-f]{12}…, is [0-9a-f]{12}…/)
    await other.embedder.close()
    writeFileSync(join(dataset, 'items.jsonl'), lines(...testItems(39)))
    await expect(resume({})).rejects.toThrow(/data\.hash was/)
    writeFileSync(join(dataset, 'items.jsonl'), lines(...testItems()))
    await resume({})
    await expect(resume({ dtype: 'float16' })).rejects.toThrow(/is there already.*dtype/)
    await expect(encodeSmall(tiny, dataset, output)).rejects.toThrow(/is there already/)
  })

  it('is done by one process at a time', async () => {
    const folder = temporaryFolder()
    const dataset = writeDataset(join(folder, 'data'))
    const output = join(folder, 'out')
    let second: Promise<unknown> | undefined
    await encodeSmall(tiny, dataset, output, {
      onProgress({ phase, done }) {
        if (phase !== 'encoding nodes' || done === 0 || second !== undefined) return
        second = encodeSmall(tiny, dataset, output, { resume: true }).then(
          () => 'went on',
          (error) => error.message,
        )
      },
    })
    expect(await second).toMatch(/is encoding in this folder/)
  })

  async function stopAt(dataset: string, output: string, rows: number): Promise<void> {
    const controller = new AbortController()
    const stopped = encodeSmall(tiny, dataset, output, {
      signal: controller.signal,
      onProgress: ({ phase, done }) => {
        if (phase === 'encoding nodes' && done >= rows) controller.abort()
      },
    })
    await expect(stopped).rejects.toThrow(/abort/)
  }
})

describe('shards', () => {
  it('are consecutive, cover every block once, and differ in cost by a block at most', () => {
    fc.assert(
      fc.property(
        fc.array(fc.record({ cost: fc.nat(1e9) }), { maxLength: 60 }),
        fc.integer({ min: 1, max: 80 }),
        (blocks, of) => {
          let next = 0
          const costs: number[] = []
          for (let index = 1; index <= of; index++) {
            const [from, to] = shardBlocks(blocks, { index, of })
            expect(from).toBe(next)
            expect(to).toBeGreaterThanOrEqual(from)
            next = to
            costs.push(blocks.slice(from, to).reduce((sum, { cost }) => sum + cost + 1, 0))
          }
          expect(next).toBe(blocks.length)
          const total = costs.reduce((sum, cost) => sum + cost, 0)
          const largest = Math.max(0, ...blocks.map(({ cost }) => cost + 1))
          for (const cost of costs) expect(cost).toBeLessThanOrEqual(total / of + largest + 1e-6 * total)
        },
      ),
    )
  })

  it('are named i/n', () => {
    expect(parseShard('3/7')).toEqual({ index: 3, of: 7 })
    for (const wrong of ['3/2', '0/2', '1/0', '-1/2', '1', '1/2/3', '1.5/2', '', 'a/b', '1/ 2', '1/9999999'])
      expect(() => parseShard(wrong), wrong).toThrow(UsageError)
  })

  it.each([1, 2, 3, 7])('%i of them merged are the bytes of one run', async (of) => {
    const folder = temporaryFolder()
    const dataset = writeDataset(join(folder, 'data'))
    await encodeSmall(tiny, dataset, join(folder, 'whole'))
    const indexes = Array.from({ length: of }, (_, i) => i + 1).reverse()
    for (const index of indexes) {
      await encodeSmall(tiny, dataset, join(folder, `shard ${index}`), { shard: { index, of } })
      await verifyEmbeddings(join(folder, `shard ${index}`))
    }
    await merge(
      folder,
      indexes.map((index) => `shard ${index}`),
      'merged',
    )
    expect(await contents(join(folder, 'merged'))).toEqual(await contents(join(folder, 'whole')))
  })

  it('may be more than there are blocks: some are empty', async () => {
    const folder = temporaryFolder()
    const dataset = writeDataset(join(folder, 'data'), testItems(3))
    await encodeSmall(tiny, dataset, join(folder, 'whole'), { blockRows: 4096 })
    const counts: number[] = []
    for (const index of [1, 2, 3]) {
      const shard = { index, of: 3 }
      const { encoded } = await encodeSmall(tiny, dataset, join(folder, `${index}`), { shard, blockRows: 4096 })
      counts.push(encoded.counts.rows)
      await verifyEmbeddings(join(folder, `${index}`))
      ;(await openEmbeddings(join(folder, `${index}`))).close()
    }
    expect(counts.filter((rows) => rows === 0)).toHaveLength(2)
    await merge(folder, ['1', '2', '3'], 'merged')
    expect(await contents(join(folder, 'merged'))).toEqual(await contents(join(folder, 'whole')))
  })

  it('are refused where one is missing, twice, foreign, damaged or the whole', async () => {
    const folder = temporaryFolder()
    const dataset = writeDataset(join(folder, 'data'))
    const at = (name: string): string => join(folder, name)
    for (const index of [1, 2, 3]) await encodeSmall(tiny, dataset, at(`${index}`), { shard: { index, of: 3 } })
    await encodeSmall(tiny, dataset, at('2 again'), { shard: { index: 2, of: 3 } })
    await encodeSmall(tiny, dataset, at('1of2'), { shard: { index: 1, of: 2 } })
    await encodeSmall(tiny, dataset, at('whole'))
    const other = await openTiny('cls')
    await encodeSmall(other, dataset, at('foreign'), { shard: { index: 2, of: 3 } })
    await other.embedder.close()
    await encodeSmall(tiny, dataset, at('untitled'), {
      shard: { index: 2, of: 3 },
      settings: { ...SETTINGS, title: false },
    })
    writeDataset(at('data'), testItems(38))
    await encodeSmall(tiny, dataset, at('less'), { shard: { index: 2, of: 3 } })

    await expect(merge(folder, ['1', '3'], 'm')).rejects.toThrow(/Of 3 shards 2 are there; missing: 2\/3/)
    await expect(merge(folder, ['1', '2', '2 again', '3'], 'm')).rejects.toThrow(/is shard 2 of 3, as .*is\./)
    await expect(merge(folder, ['1', '1', '2', '3'], 'm')).rejects.toThrow(/named twice/)
    await expect(merge(folder, ['1', '2', '3', '1of2'], 'm')).rejects.toThrow(/one of 2 shards, not of 3/)
    await expect(merge(folder, ['1', 'whole', '3'], 'm')).rejects.toThrow(/is no shard/)
    await expect(merge(folder, ['1', 'foreign', '3'], 'm')).rejects.toThrow(/encoder\.fingerprint/)
    await expect(merge(folder, ['1', 'untitled', '3'], 'm')).rejects.toThrow(/settings\.title was true, is false/)
    await expect(merge(folder, ['1', 'less', '3'], 'm')).rejects.toThrow(/data\.hash/)
    await expect(merge(folder, ['1', 'nowhere', '3'], 'm')).rejects.toThrow(/encode\.json: no such file/)

    // two items in each other's place, with hashes that fit
    const { createHash } = await import('node:crypto')
    const rows = readFileSync(join(at('2'), 'index.jsonl'), 'utf8').split('\n')
    const items = [...new Set(rows.filter((line) => line !== '').map((line) => JSON.parse(line).item as string))]
    const [a, b] = [JSON.stringify(items[0]), JSON.stringify('another')]
    const swapped = rows.map((line) => line.replace(`"item":${a}`, `"item":${b}`)).join('\n')
    writeFileSync(join(at('2'), 'index.jsonl'), swapped)
    await expect(merge(folder, ['1', '2', '3'], 'm')).rejects.toThrow(/is not the file that encode.json describes/)
    const description = JSON.parse(readFileSync(join(at('2'), 'encode.json'), 'utf8'))
    description.files['index.jsonl'] = createHash('sha256').update(swapped).digest('hex')
    writeFileSync(join(at('2'), 'encode.json'), JSON.stringify(description))
    await expect(merge(folder, ['1', '2', '3'], 'm')).rejects.toThrow(/each once and in order/)
    await rename(at('2 again'), at('two'))
    await merge(folder, ['3', 'two', '1'], 'm')
    expect(await contents(at('m'))).toEqual(await contents(at('whole')))
    expect((await readdir(folder)).filter((name) => name.includes('partial'))).toEqual([])
  })
})

describe('Parquet', () => {
  it('is one table with the same content, the same for a merge, and verified in every byte', async () => {
    const folder = temporaryFolder()
    const dataset = writeDataset(join(folder, 'data'))
    const at = (name: string): string => join(folder, name)
    const { encoded } = await encodeSmall(tiny, dataset, at('one.parquet'), { format: 'parquet' })
    expect(await verifyEmbeddings(at('one.parquet'))).toEqual(encoded)
    for (const index of [1, 2]) await encodeSmall(tiny, dataset, at(`${index}`), { shard: { index, of: 2 } })
    await merge(folder, ['1', '2'], 'merged.parquet', 'parquet')
    expect(readFileSync(at('merged.parquet')).equals(readFileSync(at('one.parquet')))).toBe(true)
    expect((await readdir(folder)).sort()).toEqual(['1', '2', 'data', 'merged.parquet', 'one.parquet'])

    const { readRecords } = await import('../../src/data/index.ts')
    await encodeSmall(tiny, dataset, at('folder'))
    const embeddings = await openEmbeddings(at('folder'))
    for await (const { value, line } of readRecords(at('one.parquet'))) {
      const row = value as { item: string; from: number; to: number; embedding: number[] }
      expect(Float32Array.from(row.embedding)).toEqual(embeddings.node(row.item, row.from, row.to))
      expect(Float32Array.from(row.embedding)).toEqual(embeddings.row(line - 1))
    }
    embeddings.close()

    const again = await encodeSmall(tiny, dataset, at('one.parquet'), { format: 'parquet', resume: true })
    expect(again.work.rows).toBe(0)
    const bytes = readFileSync(at('one.parquet'))
    const place = bytes.length >> 1
    bytes[place] = (bytes[place] as number) ^ 0x10
    writeFileSync(at('one.parquet'), bytes)
    await expect(verifyEmbeddings(at('one.parquet'))).rejects.toThrow(/one\.parquet.*(damaged|finite)/)
  })

  it('holds float16 and what was left out', async () => {
    const folder = temporaryFolder()
    const items = [...testItems(4), { id: 'picture', modality: 'image', image: 'a.png' }]
    const dataset = writeDataset(join(folder, 'data'), items)
    const output = join(folder, 'half.parquet')
    await encodeSmall(tiny, dataset, output, { format: 'parquet', dtype: 'float16', onError: 'skip' })
    expect((await verifyEmbeddings(output)).counts.skipped).toBe(1)
  })
})
