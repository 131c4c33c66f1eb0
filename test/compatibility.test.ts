import { cpSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { checkDataset, type Dataset, openDataset } from '../src/data/index.ts'
import { embeddingsStore, openEmbeddings, verifyEmbeddings } from '../src/encode/index.ts'
import { openPair, readEncoderPair, refineItems } from '../src/encoder/index.ts'
import type { TableItem, TextItem } from '../src/hierarchy/index.ts'
import { checkFresh, openPreferences } from '../src/preferences/index.ts'
import { canopy } from './support/cli.ts'

// What earlier releases wrote (scripts/make-compatibility.mjs), and what this one has to make of it.
const releases = readdirSync(join(import.meta.dirname, 'compatibility')).filter((name) => /^\d+\.\d+\.\d+$/.test(name))
const folder = mkdtempSync(join(tmpdir(), 'canopy-compatibility-test-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))

type Line = Record<string, unknown>
const lines = (path: string): Line[] =>
  readFileSync(path, 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as Line)

const refinedBefore = (written: string) =>
  lines(join(written, 'refined.jsonl')) as { question: string; item: string; kept: [number, number, number][] }[]

async function textOrTable(dataset: Dataset, id: string): Promise<TextItem | TableItem> {
  const item = await dataset.item(id)
  if (item.modality === 'text' || item.modality === 'table') return item
  throw new Error(`${id} is of neither kind`)
}

it('holds the files of a release at least', () => expect(releases).toContain('0.1.0'))

describe.each(releases)('what release %s wrote', (release) => {
  const written = join(import.meta.dirname, 'compatibility', release)
  const dataset = join(written, 'dataset')
  const encoder = join(written, 'export', 'query-encoder')
  // an evaluation is counted in its run, and the files of a release stay as they are
  const run = join(folder, `${release}.run`)
  const adapter = join(run, 'adapter')
  beforeAll(() => cpSync(join(written, 'run'), run, { recursive: true }))

  it('is a data set without a fault, and pairs that fit it', async () => {
    await checkDataset(dataset, (fault) => expect.unreachable(JSON.stringify(fault)))
    const opened = await openDataset(dataset)
    const preferences = await openPreferences(join(written, 'preferences.jsonl'))
    await checkFresh(preferences, opened)
    expect(preferences.count).toBeGreaterThan(20)
    await opened.close()
  })

  it('gives the same preference pairs again, byte for byte', async () => {
    const output = join(folder, `${release}.preferences.jsonl`)
    const made = await canopy(['preferences', '--dataset', dataset, '--split', 'train', '--output', output]).finished
    expect(made.stderr).toBe('')
    expect(readFileSync(output, 'utf8')).toBe(readFileSync(join(written, 'preferences.jsonl'), 'utf8'))
  })

  it('is an export that keeps the same regions', async () => {
    const pair = await readEncoderPair(join(written, 'export'))
    expect(pair.settings.margin ?? 0).toBe(0)
    const encoders = await openPair(pair, { threads: 1 })
    const opened = await openDataset(dataset)
    for (const expected of refinedBefore(written)) {
      const item = await textOrTable(opened, expected.item)
      const [refined] = await refineItems(encoders, pair.settings, expected.question, [item])
      const kept = refined?.kept.map(({ from, to }) => [from, to])
      expect(kept, expected.question).toEqual(expected.kept.map(([from, to]) => [from, to]))
      refined?.kept.forEach(({ score }, i) => {
        expect(score).toBeCloseTo(expected.kept[i]?.[2] ?? Number.NaN, 4)
      })
    }
    await opened.close()
    await encoders.close()
  })

  const embeddings = join(written, 'embeddings')
  // 0.1.0 could not embed ahead
  it.skipIf(!existsSync(embeddings))('is embeddings from which the same regions are kept without fθ', async () => {
    await verifyEmbeddings(embeddings)
    const store = embeddingsStore(await openEmbeddings(embeddings))
    const pair = await readEncoderPair(join(written, 'export'))
    const encoders = await openPair(pair, { threads: 1, store })
    const opened = await openDataset(dataset)
    for (const { question, item: id, kept } of refinedBefore(written)) {
      const [refined] = await refineItems(encoders, pair.settings, question, [await textOrTable(opened, id)])
      expect(refined?.kept.map(({ from, to }) => [from, to])).toEqual(kept.map(([from, to]) => [from, to]))
    }
    expect(encoders.node.loaded).toBe(false)
    await opened.close()
    await encoders.close()
    await store.close?.()
  })

  it('is a run whose adapter decides alike, and whose evaluation is compared with today’s', async () => {
    const output = join(folder, `${release}.eval`)
    const given = ['--encoder', encoder, '--adapter', adapter, '--dataset', dataset, '--split', 'dev']
    const evaluated = await canopy([
      ...['evaluate', ...given, '--no-retrieved', '--no-report', '--threads', '1', '--resamples', '100'],
      ...['--output', output],
    ]).finished
    expect(evaluated).toMatchObject({ code: 0 })
    const decided = (path: string): unknown[] =>
      lines(join(path, 'decisions.jsonl')).map(({ question, item, range, entered, correct }) => ({
        ...{ question, item, range, entered, correct },
      }))
    const before = decided(join(written, 'run', 'eval'))
    expect(before.length).toBeGreaterThan(20)
    expect(decided(output)).toEqual(before)

    const compared = await canopy(['compare', join(written, 'run', 'eval'), output, '--json']).finished
    expect(compared).toMatchObject({ code: 0, stderr: '' })
  })

  it('is a run that is exported and reported on', async () => {
    const output = join(folder, `${release}.export`)
    const exported = await canopy([
      ...['export', '--encoder', encoder, '--adapter', join(run, 'adapter'), '--bundle'],
      ...['--threads', '1', '--output', output],
    ]).finished
    expect(exported).toMatchObject({ code: 0 })
    // the weights of the graph are those that were written then
    const graph = (path: string): Buffer => readFileSync(join(path, 'onnx', 'model.onnx'))
    expect(graph(output).length).toBe(graph(join(written, 'export')).length)

    const report = join(folder, `${release}.html`)
    const made = await canopy(['report', run, '--dataset', dataset, '--output', report]).finished
    expect(made).toMatchObject({ code: 0 })
    expect(readFileSync(report, 'utf8')).toContain('<html')
  })
})
