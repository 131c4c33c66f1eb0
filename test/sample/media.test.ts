import { readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { beforeAll, describe, expect, it } from 'vitest'
import { parse } from 'yaml'
import type { Item } from '../../src/hierarchy/index.ts'
import { decodeImage, extractFrames, probeVideo } from '../../src/media/index.ts'
import { hasFfmpeg } from '../media/ffmpeg-present.ts'
import { folder, readSample, root } from './sample.ts'

interface Medium {
  title: string
  image?: string
  video?: string
  seconds?: number
  scenes?: { from: number; ground: string }[]
}

const media = parse(readFileSync(join(root, 'scripts', 'sample', 'media.yaml'), 'utf8')) as Medium[]
const pictures = media.filter(({ image }) => image !== undefined)
const clips = media.filter(({ video }) => video !== undefined)

/** Red, green and blue of `#rrggbb`. */
const colourOf = (ground: string): number[] => [1, 3, 5].map((i) => Number.parseInt(ground.slice(i, i + 2), 16))

describe('the pictures and clips of datasets/sample', () => {
  let items: Item[]
  beforeAll(async () => {
    items = [...(await readSample()).items.values()]
  })

  it('are named by items, each by a path inside the folder', () => {
    const named = items.flatMap((item) =>
      item.modality === 'image' ? [item.image] : item.modality === 'video' ? [item.video] : [],
    )
    expect(named.sort()).toEqual(media.map(({ image, video }) => image ?? video).sort())
    for (const path of named) expect(path).toMatch(/^media\/[a-z-]+\.(png|mp4)$/)
  })

  it('are small', () => {
    const sizes = media.map(({ image, video }) => statSync(join(folder, image ?? video!)).size)
    for (const size of sizes) expect(size).toBeLessThanOrEqual(60_000)
    expect(sizes.reduce((a, b) => a + b)).toBeLessThanOrEqual(700_000)
  })

  it.each(pictures)('$title: the picture shows something', async ({ image }) => {
    const { width, height, data } = await decodeImage(join(folder, image!))
    expect([width, height]).toEqual([384, 256])
    const colours = new Set<number>()
    for (let i = 0; i < data.length; i += 3) colours.add((data[i]! << 16) | (data[i + 1]! << 8) | data[i + 2]!)
    expect(colours.size).toBeGreaterThan(8)
  })

  describe.skipIf(!hasFfmpeg)('as films', () => {
    it.each(clips)('$title: the clip lasts as long as its item', async ({ title, video, seconds }) => {
      const item = items.find((other) => other.modality === 'video' && other.video === video)
      expect(item).toMatchObject({ title, start: 0, end: seconds })
      expect(seconds).toBeGreaterThanOrEqual(60)
      expect(seconds).toBeLessThanOrEqual(190)
      const index = await probeVideo(join(folder, video!))
      expect(Math.abs(index.duration - 1000 * seconds!)).toBeLessThan(100)
      expect([index.width, index.height, index.cutOff]).toEqual([256, 144, false])
    })

    it.each(clips)('$title: every scene begins and ends when it should', async ({ video, seconds, scenes }) => {
      const ends = scenes!.map((_, i) => scenes![i + 1]?.from ?? seconds!)
      const times = scenes!.flatMap(({ from }, i) => [1000 * from, 1000 * ends[i]! - 500])
      const frames = await extractFrames(join(folder, video!), times)
      for (const [i, { data, width }] of frames.entries()) {
        const { ground } = scenes![Math.floor(i / 2)]!
        const corner = 3 * (6 * width + 6)
        for (const [channel, level] of colourOf(ground).entries())
          expect(Math.abs(data[corner + channel]! - level), `at ${times[i]} ms`).toBeLessThan(14)
      }
    })
  })
})
