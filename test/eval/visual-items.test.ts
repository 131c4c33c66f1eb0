import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { importJsonl } from '../../src/data/index.ts'
import { textSequence, UnreadableError } from '../../src/encoder/index.ts'
import { evaluate, type NodeEmbedder } from '../../src/eval/index.ts'
import { InputError } from '../../src/support/errors.ts'
import { mixedRecords } from '../support/mixed-media.ts'
import { fineTuned, frozen, optionsFor } from './bag.ts'

let folder: string
let data: string
beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'canopy-visual-items-'))
  data = join(folder, 'data')
  writeFileSync(join(folder, 'in.jsonl'), mixedRecords('dev'))
  await importJsonl({ inputs: [join(folder, 'in.jsonl')], split: 'dev', output: data })
})
afterAll(() => rmSync(folder, { recursive: true, force: true }))

/** Reads the names of files as if they were words, but of `clip-1.mp4` nothing. */
const named = (base: NodeEmbedder): NodeEmbedder => ({
  ...base,
  reader: {
    multimodal: true,
    async encode(inputs) {
      const bad = inputs.find(({ video }) => video?.path.endsWith('clip-1.mp4'))
      if (bad !== undefined) throw new UnreadableError('the video cannot be read', { file: bad.video!.path })
      return inputs.map(() => ({ sequence: textSequence(Int32Array.of(1)), truncated: false }))
    },
  },
  embed: (inputs, side, options) =>
    base.embed(
      inputs.map(({ text, images, video }) => ({ text: `${text} ${images ?? ''} ${video?.frames.length ?? ''}` })),
      side,
      options,
    ),
})
const multimodal = { query: named(fineTuned), frozen: named(frozen), fineTuned: named(fineTuned) }

describe('images and videos in an evaluation', () => {
  it('are scored by encoders that read them, an image as one node without a decision', async () => {
    const output = join(folder, 'all')
    const readable = { ...multimodal.frozen, reader: { ...multimodal.frozen.reader, encode: async () => [] } }
    const { evaluation } = await evaluate(optionsFor([data], output, { ...multimodal, frozen: readable }))
    const [counts] = Object.values(evaluation.counts)
    expect(counts).toMatchObject({ goldItems: 10, oneLeafItems: 2, goldItemsNotText: 0, goldItemsUnreadable: 0 })
    const items = readFileSync(join(output, 'decisions.jsonl'), 'utf8')
    expect(items).toContain('"dev-video-1"')
    expect(items).not.toContain('"dev-image-0"')
    expect(evaluation.notes.join()).toContain('each frame of a video, count as 256 tokens')
  })

  it('are left out where one of the encoders reads text alone', async () => {
    const { evaluation } = await evaluate(optionsFor([data], join(folder, 'text'), { ...multimodal, frozen }))
    const [counts] = Object.values(evaluation.counts)
    expect(counts).toMatchObject({ goldItems: 6, goldItemsNotText: 4, goldItemsUnreadable: 0 })
  })

  it('stop it where they cannot be read, or are left out and counted with the reason', async () => {
    const output = join(folder, 'broken')
    await expect(evaluate(optionsFor([data], output, multimodal))).rejects.toThrow(
      /clip-1\.mp4: the video cannot be read\. Repair it, or leave out its item \("dev-video-1"\).*--on-error skip/,
    )
    const { evaluation } = await evaluate(optionsFor([data], output, { ...multimodal, onError: 'skip' }))
    const [counts] = Object.values(evaluation.counts)
    expect(counts).toMatchObject({ goldItems: 9, goldItemsNotText: 0, goldItemsUnreadable: 1 })
    expect(evaluation.notes.join()).toMatch(/1 items are left out of every figure.*"dev-video-1".*cannot be read/)
  })

  it('stop it, skipping or not, where something else than their own file is at fault', async () => {
    const full = async (): Promise<never> => {
      throw new InputError('cannot write the visual features: the disk is full', { file: 'cache' })
    }
    const encoders = { ...multimodal, frozen: { ...multimodal.frozen, reader: { multimodal: true, encode: full } } }
    const evaluation = evaluate(optionsFor([data], join(folder, 'full'), { ...encoders, onError: 'skip' }))
    await expect(evaluation).rejects.toThrow(/the disk is full/)
  })
})
