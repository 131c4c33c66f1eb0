import { createHash } from 'node:crypto'
import { cpSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import fc from 'fast-check'
import sharp from 'sharp'
import { beforeAll, describe, expect, it } from 'vitest'
import { type EncoderProfile, loadTokenizer, readEncoder } from '../../src/encoder/index.ts'
import { type Chat, openChat, readChatTemplate, systemInstruction } from '../../src/encoder/qwen3-vl/chat.ts'
import { qwen3VlConfig } from '../../src/encoder/qwen3-vl/config.ts'
import { firstScaled, scaledFrame, scaledImage } from '../../src/encoder/qwen3-vl/frames.ts'
import { cutPatches, type Normalisation } from '../../src/encoder/qwen3-vl/patches.ts'
import { factorOf, imageLimits, readProcessor } from '../../src/encoder/qwen3-vl/processor.ts'
import { IMAGE, layOut, type PromptSettings, VIDEO, visualTokens } from '../../src/encoder/qwen3-vl/prompt.ts'
import { smartResize } from '../../src/encoder/qwen3-vl/smart-resize.ts'
import { oneDecimal, pairTimes } from '../../src/encoder/qwen3-vl/times.ts'
import { decodeImage, type Picture } from '../../src/media/index.ts'
import { InputError } from '../../src/support/errors.ts'
import { temporaryFolder } from '../support/temporary.ts'
import { expectedInputs, formulaPicture } from './qwen3-vl-pictures.ts'

const folder = resolve(import.meta.dirname, '../fixtures/qwen3-vl')
const expected = expectedInputs()

let profile: EncoderProfile
let config: ReturnType<typeof qwen3VlConfig>
let settings: PromptSettings
let chat: Chat

beforeAll(async () => {
  profile = await readEncoder(folder)
  config = qwen3VlConfig(profile.config, 'config.json')
  const tokenizer = await loadTokenizer(profile)
  chat = openChat(tokenizer, await readChatTemplate(profile), '', [IMAGE, VIDEO])
  const tokens = visualTokens(tokenizer, config, 'config.json')
  settings = {
    tokenizer,
    tokens,
    merge: config.vision_config.spatial_merge_size,
    maxLength: profile.maxLength,
    patch: 16,
    limit: { from: 'a file', raisable: false },
  }
})

const vision = () => config.vision_config

describe('what the system turn says', () => {
  it.each(expected.instructions)('%j becomes %j', (given, written) => {
    expect(systemInstruction(given)).toBe(written)
  })
})

describe('the size that a picture is scaled to', () => {
  it('is that of qwen_vl_utils', () => {
    const limits = imageLimits(vision())
    for (const [height, width, toHeight, toWidth] of expected.sizes) {
      const scale = () => smartResize({ height, width }, factorOf(vision()), limits, 'wide.png')
      if (toHeight === null) expect(scale, `${height} × ${width}`).toThrow(InputError)
      else expect(scale(), `${height} × ${width}`).toEqual({ height: toHeight, width: toWidth })
    }
    expect(expected.sizes.some(([, , height]) => height === null)).toBe(true)
  })

  it('is refused where one side is more than 200 times the other, in words that name the picture', () => {
    expect(() => smartResize({ height: 3, width: 603 }, 32, imageLimits(vision()), 'wide.png')).toThrow(
      /^wide\.png: the picture is 603 × 3 pixels.*Cut it/,
    )
  })
})

describe('a scaled picture', () => {
  it.each(expected.pictures)('is Pillow’s to the bit: $width × $height', ({ width, height, seed, to, sha256 }) => {
    const scaled = scaledImage(formulaPicture(width, height, seed), vision(), 'picture.png')
    expect([scaled.height, scaled.width]).toEqual(to)
    expect(createHash('sha256').update(scaled.data).digest('hex')).toBe(sha256)
  })

  it.each(expected.frames)(
    'is a frame of qwen_vl_utils within 1/255: $width × $height, one of $count',
    ({ count, width, height, seed, to, stride, sample }) => {
      const first = firstScaled(formulaPicture(width, height, seed), vision(), 'clip.mp4')
      const scaled = scaledFrame(first, count, vision(), 'clip.mp4')
      expect([scaled.height, scaled.width]).toEqual(to)
      const wanted = Buffer.from(sample, 'base64')
      const differences = Array.from(wanted, (value, i) => Math.abs(value - scaled.data[i * stride]!))
      expect(Math.max(...differences)).toBeLessThanOrEqual(1)
      // single precision there, double here: few values lie so near a half
      expect(differences.filter((d) => d > 0).length).toBeLessThanOrEqual(wanted.length / 100)
    },
  )

  it.each(expected.colours)(
    'comes from a file of $channels channels as from Pillow, within 1/255',
    async ({ channels, width, height, seed, rgb }) => {
      const { data } = formulaPicture(width, height, seed, channels)
      const file = await sharp(data, { raw: { width, height, channels } }).png().toBuffer()
      const decoded = await decodeImage(file)
      const wanted = Buffer.from(rgb, 'base64')
      expect(decoded.data.length).toBe(wanted.length)
      expect(Math.max(...decoded.data.map((value, i) => Math.abs(value - wanted[i]!)))).toBeLessThanOrEqual(1)
    },
  )
})

describe('the patches of a picture', () => {
  const every = 137
  const close = (pixels: Float32Array, wanted: number[]): void => {
    expect(Math.ceil(pixels.length / every)).toBe(wanted.length)
    wanted.forEach((value, i) => {
      expect(pixels[i * every]).toBeCloseTo(value, 6)
    })
  }

  it('hold what the processor of transformers puts there, for a picture and for pairs of frames', async () => {
    const { image, video } = await readProcessor(profile, vision())
    const [wantedImage, wantedVideo] = expected.values
    close(cutPatches([formulaPicture(96, 64, 1)], vision(), image), wantedImage)
    const pairs = [0, 2].map((first) =>
      cutPatches([formulaPicture(64, 96, first), formulaPicture(64, 96, first + 1)], vision(), video),
    )
    close(Float32Array.from(pairs.flatMap((pair) => [...pair])), wantedVideo)
  })

  it('repeat the last frame where it has no partner', () => {
    const normalisation: Normalisation = { mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5], rescale: 1 / 255 }
    const frame: Picture = formulaPicture(32, 32, 1)
    expect(cutPatches([frame], vision(), normalisation)).toEqual(cutPatches([frame, frame], vision(), normalisation))
  })

  it('follow mean, deviation and scale of the model’s files', async () => {
    const copy = temporaryFolder()
    cpSync(folder, copy, { recursive: true })
    const file = join(copy, 'preprocessor_config.json')
    const saved = JSON.parse(readFileSync(file, 'utf8'))
    const other = { ...profile, modelFolder: copy }
    writeFileSync(file, JSON.stringify({ ...saved, image_mean: [0.1, 0.2, 0.3], image_std: [1, 2, 4] }))
    const { image, video } = await readProcessor(other, vision())
    expect(image).toEqual({ mean: [0.1, 0.2, 0.3], std: [1, 2, 4], rescale: 1 / 255 })
    expect(video.mean).toEqual(saved.image_mean)
    writeFileSync(file, JSON.stringify({ ...saved, patch_size: 14 }))
    await expect(readProcessor(other, vision())).rejects.toThrow(/preprocessor_config\.json: "patch_size" is 14.*16/)
    rmSync(file)
    await expect(readProcessor(other, vision())).rejects.toThrow(/No preprocessor_config\.json in .*repository/)
  })
})

describe('the time in front of a pair of frames', () => {
  it.each(expected.times)('of %j is %j', (milliseconds, written) => {
    expect(pairTimes(milliseconds, 0)).toEqual(written)
    // only the distance from the node's beginning counts
    expect(
      pairTimes(
        milliseconds.map((time) => time + 90_000),
        90_000,
      ),
    ).toEqual(written)
  })

  it('is rounded to the even digit in the middle of two', () => {
    expect([0.25, 0.75, 1.25, 2.5, 1234.25, 0.05, 0.15, 0].map(oneDecimal)).toEqual([
      '0.2',
      '0.8',
      '1.2',
      '2.5',
      '1234.2',
      '0.1',
      '0.1',
      '0.0',
    ])
  })
})

describe('the tokens of an input', () => {
  it.each(expected.texts)('are Python’s for the text %j', (text, ids) => {
    const laid = layOut(settings, chat, { text }, [])
    expect([...laid.ids]).toEqual(ids)
    expect(laid).toMatchObject({ placed: [], truncated: false })
    expect(laid.positions).toBeUndefined()
  })

  it.each(expected.mixtures)(
    'and their positions are Python’s: $text',
    ({ text, times, images, ids, grids, positions }) => {
      const laid = layOut(settings, chat, inputOf(text, times, images), seenOf(grids))
      expect(runsOf(laid.ids)).toEqual(ids)
      expect(createHash('sha256').update(laid.positions!).digest('hex')).toBe(positions)
    },
  )

  it('that stand for patches lie where the placeholders are, and nowhere else', () => {
    const { image, video } = settings.tokens
    for (const { text, times, images, grids } of expected.mixtures) {
      const laid = layOut(settings, chat, inputOf(text, times, images), seenOf(grids))
      const covered = laid.placed.flatMap(({ at, length }) => Array.from({ length }, (_, i) => at + i))
      const placeholders = [...laid.ids.keys()].filter((i) => laid.ids[i] === image || laid.ids[i] === video)
      expect(covered).toEqual(placeholders)
    }
  })

  it('leave a placeholder that a text spells a token like others', () => {
    const seen = [{ file: 'a.png', grids: [[4, 4]] as const }]
    const { placed, ids } = layOut(settings, chat, { text: `what is ${IMAGE}?`, images: ['a.png'] }, seen)
    expect(placed).toHaveLength(1)
    expect(ids.filter((id) => id === settings.tokens.image)).toHaveLength(5)
  })

  it('are where they are without a text, whatever special tokens it spells', () => {
    const spelled = ['<|vision_start|>', VIDEO, IMAGE, '<|vision_end|>', '<|im_end|>', '<|endoftext|>', ' a']
    const texts = fc.array(fc.constantFrom(...spelled), { minLength: 1 }).map((parts) => parts.join(''))
    const seen = seenOf({ video: [[2, 4, 6]], image: [[1, 2, 4]] })
    const { placed } = layOut(settings, chat, inputOf('', [0, 500, 1000], [1]), seen)
    expect(placed).toHaveLength(3)
    fc.assert(
      fc.property(texts, (text) => {
        expect(layOut(settings, chat, inputOf(text, [0, 500, 1000], [1]), seen).placed).toEqual(placed)
      }),
    )
  })
})

describe('an input over the limit', () => {
  const words = 'The lighthouse keeper counted the ships. '.repeat(4)

  it('loses the end of its text and keeps what the template puts behind it', () => {
    const whole = [...layOut(settings, chat, { text: words }, []).ids]
    fc.assert(
      fc.property(
        fc.integer({ min: chat.prefixLength + chat.suffix.length + 1, max: whole.length + 2 }),
        (maxLength) => {
          const { ids, truncated } = layOut({ ...settings, maxLength }, chat, { text: words }, [])
          expect(truncated).toBe(maxLength < whole.length)
          expect(ids.length).toBe(Math.min(maxLength, whole.length))
          expect([...ids]).toEqual([...whole.slice(0, ids.length - chat.suffix.length), ...chat.suffix])
        },
      ),
    )
  })

  it('keeps its pictures whole', () => {
    const input = { text: words, images: ['a.png'] }
    const seen = [{ file: 'a.png', grids: [[8, 8]] as const }]
    const whole = layOut(settings, chat, input, seen)
    const end = whole.placed[0]!.at + 16 + 1
    const cut = layOut({ ...settings, maxLength: end + chat.suffix.length }, chat, input, seen)
    expect(cut.truncated).toBe(true)
    expect([...cut.ids]).toEqual([...whole.ids.slice(0, end), ...chat.suffix])
    expect(cut.placed).toEqual(whole.placed)
    expect([...cut.positions!.slice(0, end)]).toEqual([...whole.positions!.slice(0, end)])
    expect(cut.positions).toHaveLength(3 * cut.ids.length)
  })

  it('is refused where its pictures alone are over it, in words that say how many tokens they take and what to do', () => {
    const seen = [{ file: '/data/a.png', grids: [[8, 8]] as const }]
    const small = { ...settings, maxLength: 40 }
    const refused = () => layOut(small, chat, { text: words, images: ['/data/a.png'] }, seen)
    expect(refused).toThrow(InputError)
    expect(refused).toThrow(/^\/data\/a\.png: .*takes \d+ tokens.* at most 40 \(a file\); .*leave the item out$/)
  })
})

describe('a chat template', () => {
  const withFiles = async (files: Record<string, string>) => {
    const modelFolder = temporaryFolder()
    for (const [name, content] of Object.entries(files)) writeFileSync(join(modelFolder, name), content)
    return readChatTemplate({ ...profile, modelFolder })
  }
  const several = JSON.stringify({
    chat_template: [
      { name: 'other', template: 'A' },
      { name: 'default', template: 'B' },
    ],
  })

  it('is taken from where transformers takes it', async () => {
    const json = JSON.stringify({ chat_template: 'C' })
    expect(await withFiles({ 'chat_template.jinja': 'J', 'chat_template.json': json })).toMatchObject({ template: 'C' })
    expect(await withFiles({ 'chat_template.jinja': 'J', 'tokenizer_config.json': several })).toMatchObject({
      template: 'J',
    })
    expect(await withFiles({ 'chat_template.json': json, 'tokenizer_config.json': several })).toMatchObject({
      template: 'C',
    })
    expect(await withFiles({ 'tokenizer_config.json': several })).toMatchObject({ template: 'B' })
  })

  it('that is missing is an error that says which file to get', async () => {
    await expect(withFiles({ 'tokenizer_config.json': '{}' })).rejects.toThrow(
      /No chat template in .*chat_template\.json/,
    )
  })

  it('that cannot be run, drops the text or leaves no end to it is an error that names its file', () => {
    const open = (template: string) => () =>
      openChat(settings.tokenizer, { template, file: 'chat_template.jinja' }, '', [IMAGE, VIDEO])
    expect(open('{{ raise_exception("no") }}')).toThrow(/chat_template\.jinja: The chat template cannot be run/)
    expect(open('{{ messages[0].role }}')).toThrow(/does not write the text/)
    expect(open('{{ messages[1].content[0].text }}')).toThrow(/no special token behind a text/)
  })

  it('is not given an instruction that spells a placeholder', () => {
    const template = { template: '', file: '' }
    expect(() => openChat(settings.tokenizer, template, `See ${VIDEO}`, [IMAGE, VIDEO])).toThrow(/stands for a picture/)
  })
})

function inputOf(text: string, times: number[] | undefined, images: unknown[] = []) {
  return {
    text,
    images: images.map((_, i) => `${i}.png`),
    ...(times === undefined ? {} : { video: { path: 'clip.mp4', frames: times, start: 0 } }),
  }
}

/** Pairs of frames are grids of their own. */
function seenOf({ video, image }: (typeof expected.mixtures)[number]['grids']) {
  return [...video, ...image].map(([pairs, height, width], i) => ({
    file: `${i}`,
    grids: Array.from({ length: pairs }, () => [height, width] as const),
  }))
}

function runsOf(ids: Int32Array): [number, number][] {
  const runs: [number, number][] = []
  for (const id of ids) {
    const last = runs.at(-1)
    if (last?.[0] === id) last[1]++
    else runs.push([id, 1])
  }
  return runs
}
