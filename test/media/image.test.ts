import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import sharp, { type Color } from 'sharp'
import { describe, expect, it } from 'vitest'
import { decodeImage, type Picture } from '../../src/media/index.ts'
import { InputError } from '../../src/support/errors.ts'
import { sharedDir } from '../support/shared.ts'
import { temporaryFolder } from '../support/temporary.ts'

type Colour = [number, number, number]

const pixel = ({ width, data }: Picture, x: number, y: number): Colour =>
  [...data.subarray(3 * (y * width + x), 3 * (y * width + x) + 3)] as Colour

/** Two pixels wide, one high: red, then blue. */
const redBlue = () => sharp(Buffer.from([255, 0, 0, 0, 0, 255]), { raw: { width: 2, height: 1, channels: 3 } })

/** A square of one colour. */
const plain = (colour: Color, channels: 3 | 4 = 3, size = 8) =>
  sharp({ create: { width: size, height: size, channels, background: colour } })

describe('decodeImage', () => {
  it('gives red, green and blue of every pixel, row by row, from a file or from its bytes', async () => {
    const bytes = await redBlue().png().toBuffer()
    const file = join(temporaryFolder(), 'picture')
    writeFileSync(file, bytes)
    for (const source of [bytes, file]) {
      const picture = await decodeImage(source)
      expect(picture).toMatchObject({ width: 2, height: 1 })
      expect([...picture.data]).toEqual([255, 0, 0, 0, 0, 255])
    }
  })

  it('is turned as its EXIF orientation asks', async () => {
    // 6: to be turned a quarter clockwise, so that what was left is on top
    const picture = await decodeImage(await redBlue().withMetadata({ orientation: 6 }).png().toBuffer())
    expect(picture).toMatchObject({ width: 1, height: 2 })
    expect([pixel(picture, 0, 0), pixel(picture, 0, 1)]).toEqual([
      [255, 0, 0],
      [0, 0, 255],
    ])
  })

  it('is converted from its colour profile to sRGB, or left as it is stored', async () => {
    const red = await plain('#c80000').withIccProfile('p3').png().toBuffer()
    const converted = pixel(await decodeImage(red), 1, 1)
    const stored = pixel(await decodeImage(red, { ignoreProfile: true }), 1, 1)
    expect(Math.abs(converted[0] - 200)).toBeLessThan(3)
    // the primaries of Display P3 are farther out, so that a red of sRGB has a part of the other ones there
    expect(stored[0]).toBeLessThan(190)
    expect(stored[1]).toBeGreaterThan(30)
  })

  it('lies on white where it is transparent', async () => {
    const half = await decodeImage(await plain({ r: 0, g: 0, b: 0, alpha: 0.5 }, 4).png().toBuffer())
    for (const channel of pixel(half, 0, 0)) expect(Math.abs(channel - 128)).toBeLessThan(3)
    const clear = await decodeImage(await plain({ r: 9, g: 9, b: 9, alpha: 0 }, 4).webp({ lossless: true }).toBuffer())
    expect(pixel(clear, 3, 3)).toEqual([255, 255, 255])
  })

  it('has three channels of eight bits, whatever it was stored as', async () => {
    const grey = await plain('#808080').toColourspace('b-w').png().toBuffer()
    const deep = await plain('#804020').toColourspace('rgb16').png().toBuffer()
    const print = await plain('#ff0000').toColourspace('cmyk').jpeg({ quality: 100 }).toBuffer()
    expect(pixel(await decodeImage(grey), 1, 1)).toEqual([128, 128, 128])
    expect(pixel(await decodeImage(deep), 1, 1)).toEqual([128, 64, 32])
    const [red, green, blue] = pixel(await decodeImage(print), 1, 1)
    expect(red).toBeGreaterThan(180)
    expect(Math.max(green, blue)).toBeLessThan(90)
  })

  it('is the first frame of an animation', async () => {
    const frames = [await plain('#ff0000').png().toBuffer(), await plain('#0000ff').png().toBuffer()]
    const gif = await sharp(frames, { join: { animated: true } })
      .gif()
      .toBuffer()
    expect((await sharp(gif).metadata()).pages).toBe(2)
    const picture = await decodeImage(gif)
    expect(picture).toMatchObject({ width: 8, height: 8 })
    expect(pixel(picture, 4, 4)).toEqual([255, 0, 0])
  })

  it('is refused over a number of pixels, before it is decoded', async () => {
    const bomb = await plain('#000000', 3, 3000).png({ compressionLevel: 9 }).toBuffer()
    expect(bomb.length).toBeLessThan(200_000)
    await expect(decodeImage(bomb, { maxPixels: 1_000_000 })).rejects.toThrow(/more than 1000000 pixels/)
    expect((await decodeImage(bomb, { maxPixels: 9_000_000 })).width).toBe(3000)
  })

  it('that is broken is an error that names the file and says why', async () => {
    const folder = temporaryFolder()
    const jpeg = await sharp({
      create: {
        width: 64,
        height: 64,
        channels: 3,
        background: '#333',
        noise: { type: 'gaussian', mean: 128, sigma: 60 },
      },
    })
      .jpeg()
      .toBuffer()
    const broken: Record<string, string | Uint8Array> = {
      'empty.png': '',
      'text.png': 'This is no picture at all.',
      'cut.jpg': jpeg.subarray(0, jpeg.length / 2),
      'drawing.svg': '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect width="9" height="9"/></svg>',
    }
    for (const [name, content] of Object.entries(broken)) {
      const file = join(folder, name)
      writeFileSync(file, content)
      const error = await decodeImage(file).catch((e: unknown) => e)
      expect(error, name).toBeInstanceOf(InputError)
      expect((error as Error).message).toMatch(`${file}: `)
    }
    await expect(decodeImage(join(folder, 'cut.jpg'))).rejects.toThrow(/cannot be decoded/)
    await expect(decodeImage(join(folder, 'text.png'))).rejects.toThrow(
      /text\.png: the picture cannot be decoded: its format is not read; convert it/,
    )
    await expect(decodeImage(join(folder, 'drawing.svg'))).rejects.toThrow(/of the format svg is not read/)
    await expect(decodeImage(join(folder, 'none.png'))).rejects.toThrow(/no such file/)
    await expect(decodeImage(folder)).rejects.toThrow(/it is no file/)
  })
})

const shared = sharedDir()
describe.skipIf(shared === undefined)('real pictures', () => {
  it.each([
    ['astronaut.png', 512, 512],
    ['chelsea.png', 451, 300],
    ['coffee.png', 600, 400],
    ['rocket.jpg', 640, 427],
  ])('%s is %i × %i', async (name, width, height) => {
    const picture = await decodeImage(join(shared!, 'data/media', name))
    expect(picture).toMatchObject({ width, height })
    expect(picture.data.length).toBe(3 * width * height)
  })

  it('are decoded from bytes as from the file', async () => {
    const file = join(shared!, 'data/media/mmqa_0af77d205dc6673001cdd9ea753f880e.JPG')
    const [fromBytes, fromFile] = [await decodeImage(readFileSync(file)), await decodeImage(file)]
    expect(Buffer.compare(fromBytes.data, fromFile.data)).toBe(0)
  })
})
