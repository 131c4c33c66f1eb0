import { existsSync, readdirSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { encodeToFile, mergeShards, openEmbeddings, partialOf, verifyEmbeddings } from '../../src/encode/index.ts'
import { lines, snapshot, temporaryFolder } from '../support/temporary.ts'
import { COMPUTING, encodeSmall, type Opened, openTiny, SETTINGS, testItems, writeDataset } from './world.ts'

let tiny: Opened
beforeAll(async () => {
  tiny = await openTiny()
})
afterAll(() => tiny.embedder.close())

async function contents(folder: string): Promise<Record<string, string>> {
  const found = Object.entries(await snapshot(folder))
  return Object.fromEntries(found.map(([path, content]) => [path.slice(folder.length), content]))
}

/** A data set, encoded as a whole and in two shards. */
async function world() {
  const folder = temporaryFolder()
  const at = (name: string): string => join(folder, name)
  const dataset = writeDataset(at('data'))
  await encodeSmall(tiny, dataset, at('whole'))
  for (const index of [1, 2]) await encodeSmall(tiny, dataset, at(`${index}`), { shard: { index, of: 2 } })
  return { at, dataset, shards: [at('1'), at('2')] }
}

/** Encodes until some rows are there, and stops. */
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

describe('a merge and a run under the same name', () => {
  it('are not taken for each other: a merge leaves an unfinished run alone', async () => {
    const { at, dataset, shards } = await world()
    await stopAt(dataset, at('out'), 60)
    const merged = mergeShards({ shards, output: at('out'), format: 'safetensors' })
    await expect(merged).rejects.toThrow(/unfinished run left .*out\.partial/)
    const { resumed } = await encodeSmall(tiny, dataset, at('out'), { resume: true })
    expect(resumed).toBeGreaterThan(1)
    expect(await contents(at('out'))).toEqual(await contents(at('whole')))
  })

  it('are not taken for each other: a run begins anew where a merge was stopped, and so does a merge', async () => {
    const { at, dataset, shards } = await world()
    for (const goOn of [
      () => encodeSmall(tiny, dataset, at('out.parquet'), { resume: true, format: 'parquet' }),
      () => mergeShards({ shards, output: at('out.parquet'), format: 'parquet' }),
    ]) {
      // stopped when all was joined: the folder that Parquet goes to cannot be written
      const merged = mergeShards({
        ...{ shards, output: at('out.parquet'), format: 'parquet' },
        onProgress: ({ phase, done }) => {
          if (phase === 'merging' && done === 1) writeFileSync(at('out.parquet'), 'in the way')
        },
      })
      await expect(merged).rejects.toThrow(/is there already/)
      expect(existsSync(partialOf(at('out.parquet')))).toBe(true)
      const { unlink } = await import('node:fs/promises')
      await unlink(at('out.parquet'))
      await goOn()
      const { counts } = await verifyEmbeddings(at('out.parquet'))
      expect(counts.units).toBe(42)
      await unlink(at('out.parquet'))
    }
  })
})

describe('data that change while they are encoded', () => {
  it('are noticed, and nothing is written of them', async () => {
    const folder = temporaryFolder()
    const items = testItems(260)
    const dataset = writeDataset(join(folder, 'data'), items)
    const output = join(folder, 'out')
    const changed = items.map((item) => (item.id === 'item 33' ? { ...item, text: 'Another text.' } : item))
    const encoded = encodeSmall(tiny, dataset, output, {
      // the first look has read its one chunk by then; the second one sees another file
      onProgress: ({ phase }) => {
        if (phase === 'reading') writeFileSync(join(dataset, 'items.jsonl'), lines(...changed))
      },
    })
    await expect(encoded).rejects.toThrow(/changed while .*encoded/)
    expect(existsSync(output)).toBe(false)
  })
})

describe('two processes on one output', () => {
  it('the second one is told of the first, also where it does not ask to go on', async () => {
    const folder = temporaryFolder()
    const dataset = writeDataset(join(folder, 'data'))
    const output = join(folder, 'out')
    let second: Promise<unknown> | undefined
    await encodeSmall(tiny, dataset, output, {
      onProgress({ phase, done }) {
        if (phase !== 'encoding nodes' || done === 0) return
        second ??= encodeSmall(tiny, dataset, output).catch((error) => error.message)
      },
    })
    expect(await second).toMatch(/is encoding in this folder/)
  })
})

describe('a link that leads nowhere under the name of the output', () => {
  it('is refused before anything is computed', async () => {
    const folder = temporaryFolder()
    symlinkSync(join(folder, 'nowhere'), join(folder, 'out'))
    const encoded = encodeSmall(tiny, writeDataset(join(folder, 'data')), join(folder, 'out'))
    await expect(encoded).rejects.toThrow(/out: is there already/)
    expect(existsSync(partialOf(join(folder, 'out')))).toBe(false)
  })
})

describe('a Parquet file', () => {
  it('is written inside of the unfinished output, so that a killed run leaves nothing beside it', async () => {
    const folder = temporaryFolder()
    const dataset = writeDataset(join(folder, 'data'))
    const output = join(folder, 'out.parquet')
    const seen = new Set<string>()
    await encodeSmall(tiny, dataset, output, {
      format: 'parquet',
      onProgress: ({ phase }) => {
        if (phase === 'writing Parquet') for (const name of readdirSync(folder)) seen.add(name)
      },
    })
    expect([...seen].sort()).toEqual(['data', 'out.parquet.partial'])
  })
})

describe('questions', () => {
  it('of one name are encoded once, and with two contents are an error', async () => {
    const folder = temporaryFolder()
    const dataset = writeDataset(join(folder, 'data'))
    const other = writeDataset(join(folder, 'other'))
    const encode = (output: string, splits?: string[]) =>
      encodeToFile({
        ...{ ...tiny, side: 'query', settings: SETTINGS, output: join(folder, output), format: 'safetensors' },
        ...{ dtype: 'float32', computing: COMPUTING, resume: false },
        selection: { datasets: [dataset, other], itemFiles: [], splits },
      })
    expect((await encode('once', ['train', 'dev', 'train'])).encoded.counts.units).toBe(10)
    await verifyEmbeddings(join(folder, 'once'))
    const embeddings = await openEmbeddings(join(folder, 'once'))
    expect(embeddings.question('test', 'dev', 'q7')).toBeDefined()
    embeddings.close()
    writeFileSync(
      join(other, 'questions.jsonl'),
      lines({
        id: 'q7',
        benchmark: 'test',
        split: 'dev',
        question: 'What else?',
        answers: [],
        gold: [{ item: 'item 7', whole: true }],
      }),
    )
    await expect(encode('two')).rejects.toThrow(/question "q7" is there twice, with two contents/)
  })
})

describe('items that have another name than their file', () => {
  it('are named so in errors', async () => {
    const folder = temporaryFolder()
    const file = join(folder, 'spool')
    const encode = (text: string) => {
      writeFileSync(file, text)
      const itemFiles = [{ path: file, name: 'input', called: 'standard input', folder }]
      return encodeSmall(tiny, '', join(folder, 'out'), { selection: { datasets: [], itemFiles, splits: undefined } })
    }
    const [item] = testItems()
    await expect(encode(`${lines(item as object)}{"id":`)).rejects.toThrow(/^standard input:2: not valid JSON/)
    await expect(encode(lines(item as object, { id: 'x' }))).rejects.toThrow(/^standard input:2: /)
  })
})
