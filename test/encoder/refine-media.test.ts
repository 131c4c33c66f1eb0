import { execFileSync } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { openPair, type RefineInput, readEncoderPair, refineItems } from '../../src/encoder/index.ts'
import { hasFfmpeg } from '../media/ffmpeg-present.ts'
import { temporaryFolder } from '../support/temporary.ts'
import { type Kind, tinyQwen3 } from './qwen3-known.ts'

const picture = join(tinyQwen3('qwen3-vl'), 'pictures', 'wide.png')
const SETTINGS = { title: true, tableFormat: 'markdown', branching: 2 } as const

async function refineWith(kind: Kind, items: RefineInput[]) {
  const encoders = await openPair(await readEncoderPair(tinyQwen3(kind)), { threads: 1 })
  onTestFinished(() => encoders.close())
  return refineItems(encoders, SETTINGS, 'Where does the lamp turn?', items)
}

/** 100 seconds that grow lighter, a frame a second. */
function film(): string {
  const file = join(temporaryFolder(), 'film.mp4')
  execFileSync('ffmpeg', [
    ...['-v', 'error', '-f', 'lavfi', '-i', 'color=size=64x48:rate=1:duration=100,format=gray'],
    ...['-vf', "geq=lum='40+2*N'", '-c:v', 'libx264', '-qp', '4', '-pix_fmt', 'yuv420p', file],
  ])
  return file
}

describe('refineItems with an encoder that reads pictures', () => {
  it('scores a picture as one leaf beside a text', async () => {
    const [image, text] = await refineWith('qwen3-vl', [
      { id: 'p', title: 'Lamp', image: picture },
      'The lamp turns. The sea is dark.',
    ])
    expect(image).toMatchObject({
      ...{ id: 'p', title: 'Lamp', modality: 'image', leaves: 1 },
      kept: [{ from: 0, to: 1, start: 0, end: 1, text: '' }],
    })
    expect(Math.abs(image!.kept[0]!.score)).toBeLessThanOrEqual(1)
    expect(text).toMatchObject({ modality: 'text', leaves: 2 })
  })

  it.skipIf(!hasFfmpeg)('scores the segments of a part of a video, in seconds on its clock', async () => {
    const [item] = await refineWith('qwen3-vl', [{ title: 'Sea', video: film(), start: 5, end: 95 }])
    expect(item).toMatchObject({ modality: 'video', leaves: 3 })
    expect(item!.nodes.map(({ start, end }) => [start, end])).toEqual([
      [5, 95],
      [5, 65],
      [5, 35],
      [35, 65],
      [65, 95],
    ])
    expect(new Set(item!.nodes.map(({ score }) => score)).size).toBe(5)
    for (const { from, to, start, end } of item!.kept) expect([start, end]).toEqual([5 + 30 * from, 5 + 30 * to])
  })

  it.skipIf(!hasFfmpeg)(
    'takes a video whole where no times are given, and says where one ends before its item',
    async () => {
      const video = film()
      const [whole, given] = await refineWith('qwen3-vl', [{ video }, { video, start: 0, end: 100 }])
      expect(whole).toEqual(given)
      expect(whole!.nodes[0]).toMatchObject({ start: 0, end: 100 })
      await expect(refineWith('qwen3-vl', [{ video, start: 0, end: 400 }])).rejects.toThrow(
        /film\.mp4: there is no frame at .* s: the video ends at 100\.000 s, and its item's "end" may not lie behind that \(in the part from 0 s to 400 s\)/,
      )
    },
  )

  it('names the file that cannot be read', async () => {
    const broken = join(temporaryFolder(), 'broken.png')
    writeFileSync(broken, 'no picture')
    await expect(refineWith('qwen3-vl', [{ image: broken }])).rejects.toThrow(/broken\.png/)
    await expect(refineWith('qwen3-vl', [{ video: broken, start: 0, end: 30 }])).rejects.toThrow(/broken\.png/)
  })

  it.each<[RefineInput, RegExp]>([
    [{ image: '' }, /Item 1, "image": the path of a file was expected/],
    [{ video: picture, start: 0, end: Number.NaN }, /Item 1 is a video whose "start" and "end" are not both a time/],
    [{ video: 'https://films.test/a.mp4' }, /"https:\/\/films\.test\/a\.mp4" is a URL, and URLs are not read/],
    [{ image: 'file:///a.png', title: 'A' }, /is a URL, and URLs are not read; give the path of a file/],
    [{ id: 'v', video: picture, start: 3, end: 3 }, /"v" goes from 3 s to 3 s/],
    [{ text: 'A text.', image: picture }, /Item 1 has "text" and "image"; make it an item for each/],
    [{ title: 'x' } as RefineInput, /Item 1 has no text to refine/],
  ])('names an item that is none: %j', async (item, message) => {
    await expect(refineWith('qwen3-vl', [item])).rejects.toThrow(message)
  })
})

describe('refineItems with an encoder of texts', () => {
  it('refuses a picture and a video by their place', async () => {
    await expect(refineWith('qwen3', ['A text.', { id: 'p', image: picture }])).rejects.toThrow(
      /Item 2 \("p"\) is an image, and the encoder qwen3 reads only text; leave it out/,
    )
    await expect(refineWith('qwen3', [{ video: picture, start: 0, end: 40 }])).rejects.toThrow(/Item 1 is a video/)
  })
})
