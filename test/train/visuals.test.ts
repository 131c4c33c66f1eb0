import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { importJsonl, openDataset } from '../../src/data/index.ts'
import { createRandomBert } from '../../src/encoder/bert/random.ts'
import { buildPreferences } from '../../src/preferences/index.ts'
import type { Progress } from '../../src/support/progress.ts'
import type { RunConfig } from '../../src/train/run/folder.ts'
import { hasFfmpeg } from '../media/ffmpeg-present.ts'
import { mixedRecords, writeMedia } from '../support/mixed-media.ts'
import type { Setup } from './command.ts'
import { trainHere } from './training.ts'

const qwen = join(import.meta.dirname, '../fixtures/qwen3-vl')
const short = { steps: 2, evaluateEvery: 2, validationShare: 0.25, tokenBudget: 2048 }

let folder: string
let setup: Setup
beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'canopy-visuals-'))
  const input = join(folder, 'in.jsonl')
  writeFileSync(input, mixedRecords('train'))
  setup = { encoder: join(folder, 'bert'), dataset: join(folder, 'data'), preferences: join(folder, 'train.jsonl') }
  await importJsonl({ inputs: [input], split: 'train', output: setup.dataset })
  const dataset = await openDataset(setup.dataset)
  await buildPreferences({ dataset, split: 'train', output: setup.preferences })
  await dataset.close()
  await createRandomBert(setup.encoder, {
    seed: 1,
    vocabularyFrom: [mixedRecords('train')],
    ...{ hidden: 16, layers: 1, heads: 2 },
  })
})
afterAll(() => rmSync(folder, { recursive: true, force: true }))

describe('videos of a training set', () => {
  it('are left out and counted by an encoder that reads text', async () => {
    const notes: string[] = []
    const note = (message: string): unknown => notes.push(message)
    const { result, warnings } = await trainHere(setup, join(folder, 'text'), short, { note })
    expect(result.instances).toMatchObject({ leftOut: 2 })
    expect(result.instances.train + result.instances.validation).toBe(6)
    expect(warnings).toContain('2 instances of videos are left out: the encoder reads only texts and tables.')
    // pictures have no pairs, whatever reads them
    expect(notes.join()).toMatch(/2 instances have no pairs and are not trained on: .*as a picture/)
    expect(warnings.join()).toMatch(/The validation part has only \d decisions?, so that chance selects/)
    expect(existsSync(join(folder, 'text', 'visual-features'))).toBe(false)
  })

  describe.skipIf(!hasFfmpeg)('whose file cannot be read', () => {
    let broken: Setup
    beforeAll(async () => {
      broken = { ...setup, encoder: qwen, dataset: join(folder, 'broken') }
      cpSync(setup.dataset, broken.dataset, { recursive: true })
      mkdirSync(join(broken.dataset, 'media'))
      await writeMedia(join(broken.dataset, 'media'))
      writeFileSync(join(broken.dataset, 'media', 'clip-1.mp4'), 'no video')
    })

    it('stop training before its first step, with the name of the file, and leave features for the next try', async () => {
      const output = join(folder, 'stopped')
      await expect(trainHere(broken, output, short)).rejects.toThrow(
        /clip-1\.mp4: the video cannot be read.*\("train-video-1"\).*--on-error skip/,
      )
      expect(existsSync(join(output, 'config.json'))).toBe(false)
      rmSync(join(broken.dataset, 'media', 'clip-1.mp4'))
      await expect(trainHere(broken, output, short)).rejects.toThrow(/clip-1\.mp4/)
      writeFileSync(join(broken.dataset, 'media', 'clip-1.mp4'), 'no video')
    })

    it('are told from a cache that cannot be written: that leaves nothing out', async () => {
      const cache = join(folder, 'no-folder')
      writeFileSync(cache, '')
      const training = trainHere(broken, join(folder, 'uncached'), { ...short, onError: 'skip' }, { cache })
      await expect(training).rejects.toThrow(/no-folder\/visual-features.*cannot make the folder/)
    })

    it('leave their items out where they may, which is part of what the run is', async () => {
      const output = join(folder, 'skipped')
      const notes = new Set<string | undefined>()
      const onProgress: Progress = ({ phase, note }) => void (phase === 'visual features' && notes.add(note))
      const { result, warnings } = await trainHere(broken, output, { ...short, onError: 'skip' }, { onProgress })
      expect(result.instances).toMatchObject({ leftOut: 1 })
      expect([...notes]).toContainEqual(expect.stringMatching(/^node (\d+) of \1$/))
      expect(warnings.join()).toMatch(/1 instance of 1 item is left out.*"train-video-1".*clip-1\.mp4/)
      const config = JSON.parse(readFileSync(join(output, 'config.json'), 'utf8')) as RunConfig
      expect(config.unreadable).toMatchObject([{ item: 'train-video-1' }])
      expect(config.instances).toMatchObject({ left_out: 1 })

      cpSync(join(broken.dataset, 'media', 'clip-0.mp4'), join(broken.dataset, 'media', 'clip-1.mp4'))
      const again = trainHere(broken, output, { ...short, onError: 'skip' }, { resume: true })
      await expect(again).rejects.toThrow(/items left out was train-video-1, is absent/)
    })
  })
})
