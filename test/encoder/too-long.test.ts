import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { readLengthLimit } from '../../src/encoder/folder/length.ts'
import { qwen3VlConfig } from '../../src/encoder/qwen3-vl/config.ts'
import { firstScaled, scaledFrame } from '../../src/encoder/qwen3-vl/frames.ts'
import { tooLong } from '../../src/encoder/qwen3-vl/too-long.ts'
import { temporaryFolder } from '../support/temporary.ts'

const file = '/data/film.mp4'
const frames = Array.from({ length: 19 }, (_, i) => 10_000 * i)
const limit = (tokens: number, raisable = false) => ({ tokens, from: '"n" of a.json', raisable })
/** An input of so many pairs of frames, each of 40 × 22 patches times two, which are 880 tokens. */
const refused = (tokens: number, raisable = false): string => {
  const grid = [44, 80] as const
  const placed = Array.from({ length: 10 }, (_, i) => ({
    at: 900 * i,
    grid: [44, 80] as [number, number],
    length: 880,
  }))
  const seen = [{ file, grids: placed.map(() => [...grid] as [number, number]) }]
  const input = { text: '', video: { path: file, frames, start: 0, end: 190_000 } }
  return tooLong(input, seen, placed, 9000, { factor: 32, limit: limit(tokens, raisable) }).message
}

describe('what is said of a video that takes more tokens than there are', () => {
  it('names the part, its tokens, the limit with its place, and a size that fits', () => {
    const message = refused(4096)
    expect(message).toMatch(
      /^\/data\/film\.mp4: the part of the video from 0 s to 190 s \(19 frames\) takes 9000 tokens .* at most 4096 \("n" of a\.json\); scale it down to 832 × 448 pixels or less, or leave the item out$/,
    )
  })

  it('names a size that the scaling of frames leaves at no more tokens than there are', () => {
    const config = qwen3VlConfig(
      JSON.parse(readFileSync(join(import.meta.dirname, '../fixtures/qwen3-vl/config.json'), 'utf8')),
      'config.json',
    ).vision_config
    const [, width, height] = /to (\d+) × (\d+) pixels/.exec(refused(4096))!.map(Number) as [number, number, number]
    const picture = { width, height, data: new Uint8Array(3 * width * height) }
    const scaled = scaledFrame(firstScaled(picture, config, file), frames.length, config, file)
    // 200 tokens stand around the ten pairs
    expect(10 * ((scaled.width * scaled.height) / 32 ** 2) + 200).toBeLessThanOrEqual(4096)
  })

  it('says nothing that does not help', () => {
    // ten pairs take 128 tokens each, however small they are
    expect(refused(1000)).toMatch(/make it several shorter items, or leave the item out$/)
    expect(refused(1000)).not.toMatch(/scale/)
    expect(refused(4096)).not.toMatch(/raise/)
    expect(refused(4096, true)).toMatch(/raise that number, as far as the model was trained for/)
  })
})

describe('readLengthLimit', () => {
  it('says which file and key hold the limit', async () => {
    const folder = temporaryFolder()
    mkdirSync(folder, { recursive: true })
    const write = (name: string, value: object): void => writeFileSync(join(folder, name), JSON.stringify(value))
    write('tokenizer_config.json', { model_max_length: 131072 })
    const text_config = { max_position_embeddings: 4096 }
    expect(await readLengthLimit(folder, { model_type: 'qwen3_vl', text_config })).toEqual({
      ...{ tokens: 4096, from: '"max_position_embeddings" of config.json', raisable: false },
    })
    write('tokenizer_config.json', { model_max_length: 4096 })
    expect(await readLengthLimit(folder, { model_type: 'qwen3_vl', text_config })).toMatchObject({ raisable: false })
    const longer = { model_type: 'qwen3_vl', text_config: { max_position_embeddings: 262144 } }
    expect(await readLengthLimit(folder, longer)).toMatchObject({
      ...{ tokens: 4096, from: '"model_max_length" of tokenizer_config.json', raisable: true },
    })
    write('tokenizer_config.json', { model_max_length: 262144 })
    expect(await readLengthLimit(folder, longer)).toMatchObject({
      ...{ tokens: 8192, from: expect.stringMatching(/released code/), raisable: true },
    })
    write('sentence_bert_config.json', { max_seq_length: 20000 })
    expect(await readLengthLimit(folder, longer)).toMatchObject({
      ...{ tokens: 20000, from: '"max_seq_length" of sentence_bert_config.json', raisable: true },
    })
  })
})
