import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { importJsonl } from '../../src/data/index.ts'
import { resolveDistillSettings } from '../../src/distill/settings.ts'
import { type DatasetPart, datasetPart, fileGroups } from '../../src/distill/sources.ts'
import { collectTexts, readTexts, writeTexts } from '../../src/distill/texts.ts'
import { lines, temporaryFolder } from '../support/temporary.ts'

const defaults = await resolveDistillSettings(undefined, { heldOutShare: 0.3 })

async function files(...contents: string[]): Promise<string[]> {
  const folder = temporaryFolder()
  return Promise.all(
    contents.map(async (content, i) => {
      const file = join(folder, `${i}.txt`)
      await writeFile(file, content)
      return file
    }),
  )
}

/** A data set of one split that holds a text, a table and a question. */
async function part(split: string): Promise<DatasetPart> {
  const folder = temporaryFolder()
  const input = join(folder, 'questions.jsonl')
  const text = 'The keeper of the tower lit the lamp. It burned all night long.'
  const [header, rows] = [
    ['bridge', 'length'],
    [
      ['Old Stone Bridge', '410 m'],
      ['Marsh Bridge', '85 m'],
    ],
  ]
  await writeFile(
    input,
    lines(
      { id: 'lamp', modality: 'text', title: 'Lamp', text },
      { id: 'bridges', modality: 'table', title: 'Bridges', header, rows },
      { id: 'q1', question: 'Who lit the lamp of the tower?', gold: [{ item: 'lamp', spans: [[0, 37]] }] },
      { id: 'q2', question: 'Which bridge is the longest one?', gold: [{ item: 'bridges', rows: [0] }] },
    ),
  )
  const output = join(folder, 'set')
  await importJsonl({ inputs: [input], output, split })
  return { folder: output, split }
}

const said = (n: number): string =>
  Array.from(
    { length: n },
    (_, i) => `Sentence number ${i} is about lamps. It goes on about ${i} towers. Is it the end of ${i}?`,
  ).join('\n')

describe('the texts of a distillation', () => {
  it('none that is held out is learned, whatever is said twice', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(fc.integer({ min: 0, max: 12 }), { minLength: 12, maxLength: 60 }), async (picks) => {
        // lines share sentences with each other
        const content = picks
          .map((n, i) => `Towers stand on rock number ${n}. Line ${i % 20} follows it here.`)
          .join('\n')
        const collected = await collectTexts({
          files: await files(content),
          datasets: [],
          exclude: [],
          settings: defaults,
        }).catch((error: Error) => error)
        if (collected instanceof Error) return expect(collected.message).toContain('There is no text to')
        const held = new Set(collected.heldOut.map(({ text }) => text))
        expect(collected.training.filter(({ text }) => held.has(text))).toEqual([])
      }),
      { numRuns: 25 },
    )
  })

  it('are the same in whatever order the files come, with limits too, and never more of a kind than the limits', async () => {
    const [a, b] = (await files(said(60), said(90).replaceAll('about', 'on'))) as [string, string]
    const settings = { ...defaults, sentences: 40, passages: 10, questions: 7, heldOutTexts: 5 }
    const one = await collectTexts({ files: [a, b], datasets: [], exclude: [], settings })
    const other = await collectTexts({ files: [b, a, b], datasets: [], exclude: [], settings })
    expect(other).toEqual(one)
    const count = (texts: typeof one.training, kind: string) => texts.filter((text) => text.kind === kind).length
    // fewer where some of them are held out
    const limits = [
      ['sentence', 40],
      ['passage', 10],
      ['question', 7],
    ] as const
    for (const [kind, most] of limits) {
      expect(count(one.training, kind)).toBeLessThanOrEqual(most)
      expect(count(one.training, kind)).toBeGreaterThan(most / 2)
      expect(count(one.heldOut, kind)).toBe(5)
    }
    const seeded = await collectTexts({ files: [a, b], datasets: [], exclude: [], settings: { ...settings, seed: 2 } })
    expect(seeded.training).not.toEqual(one.training)
  })

  it('nothing that shares a sentence, a row or a question with what is excluded is learned or measured', async () => {
    const exclude = [await part('dev')]
    const content = [
      'A story of the sea. The keeper of the tower lit the lamp!',
      '“The KEEPER of the tower, lit – the lamp”',
      'who lit the lamp of the tower',
      'Old Stone Bridge: 410 m.',
      said(20),
    ].join('\r\n')
    const { training, heldOut, excluded } = await collectTexts({
      ...{ files: await files(content), datasets: [], exclude, settings: defaults },
    })
    expect(excluded).toBe(4)
    const all = [...training, ...heldOut].map(({ text }) => text).join('\n')
    expect(all).not.toMatch(/keeper|tower lit|Old Stone|story of the sea/i)
  })

  it('of a data set are the nodes of its items, its sentences and its questions', async () => {
    const { training, heldOut } = await collectTexts({
      ...{ files: await files(said(20)), datasets: [await part('train')], exclude: [], settings: defaults },
    })
    const all = [...training, ...heldOut]
    const kinds = (text: string) => all.filter((one) => one.text === text).map(({ kind }) => kind)
    expect(kinds('Which bridge is the longest one?')).toEqual(['question'])
    expect(kinds('It burned all night long.')).toEqual(['sentence'])
    expect(
      all.some(({ kind, text }) => kind === 'node' && text.startsWith('Bridges\n') && text.includes('Marsh Bridge')),
    ).toBe(true)
  })

  it('a line of many characters gives its whole first sentences, so that none is hidden from what is excluded', async () => {
    const sentence = 'Towers stand on rock by the sea. '
    const [file] = (await files(`${sentence.repeat(2000)}\nA short line follows it.`)) as [string]
    const groups = []
    for await (const group of fileGroups(file, 'seed')) groups.push(group)
    expect(groups).toHaveLength(2)
    expect(new Set(groups[0]!.parts)).toEqual(new Set([sentence.trim()]))
    expect(groups[0]!.parts.length).toBe(Math.floor(20_000 / sentence.length))
  })

  it('are asked for where there are none to learn from or to measure on', async () => {
    const options = { datasets: [], exclude: [], settings: defaults }
    await expect(collectTexts({ ...options, files: await files('', '\n\n') })).rejects.toThrow('no text to learn from')
    await expect(
      collectTexts({ ...options, files: await files(said(3)), settings: { ...defaults, heldOutShare: 1e-9 } }),
    ).rejects.toThrow('a share of 1e-9 of 3 passages, items and questions is none. Raise "heldOutShare"')
    expect(() => datasetPart('datasets/mine')).toThrow('names no part of a data set; write folder:split')
    expect(datasetPart('C:\\sets\\mine:train')).toEqual({ folder: 'C:\\sets\\mine', split: 'train' })
  })

  it('are read back as they were written, and a file that is damaged or of other texts is refused', async () => {
    const path = join(temporaryFolder(), 'texts', 'training.jsonl')
    const texts = [
      { kind: 'node' as const, text: 'Title\ncontent with \u2028 and "quotes"' },
      { kind: 'sentence' as const, text: 'a lone \ud800 surrogate' },
    ]
    await writeTexts(path, texts)
    expect(await readTexts(path, { node: 1, sentence: 1 })).toEqual(texts)
    await expect(readTexts(path, { node: 2, sentence: 1 })).rejects.toThrow(/training\.jsonl: .*other texts/)
    await writeFile(path, '["node","a"]\n["sent')
    await expect(readTexts(path, { node: 1, sentence: 1 })).rejects.toThrow(/training\.jsonl:2: not valid JSON/)
    await writeFile(path, '["nonsense","a"]\n')
    await expect(readTexts(path, { node: 1 })).rejects.toThrow(/training\.jsonl:1: A kind and a text were expected/)
  })
})
