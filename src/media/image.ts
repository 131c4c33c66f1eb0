import { stat } from 'node:fs/promises'
import sharp from 'sharp'
import { InputError } from '../support/errors.ts'
import { fileError } from '../support/files.ts'

/** Pixels of a picture, row by row from the top left, three bytes (red, green, blue; sRGB) each. */
export interface Picture {
  width: number
  height: number
  /** [height × width × 3]. */
  data: Uint8Array
}

export interface ImageOptions {
  /** Pictures of more pixels are refused before they are decoded; bounds memory. Default {@link MAX_PIXELS}. */
  maxPixels?: number | undefined
  /** Takes colours as the numbers in the file have them, without conversion from its colour profile to sRGB: as Pillow does. */
  ignoreProfile?: boolean | undefined
}

/** A hundred megapixels, which take 300 MB. */
export const MAX_PIXELS = 100_000_000

/** What transparent pixels show: pages are white. */
const BACKGROUND = '#ffffff'

const FORMATS = ['jpeg', 'png', 'webp', 'gif', 'tiff', 'heif', 'jp2', 'jxl']

/**
 * Decodes a picture: JPEG, PNG, WebP, GIF, TIFF or AVIF, whatever its name says. Turned as its EXIF orientation asks, laid on a
 * white background where it is transparent, eight bits a channel in sRGB; of an animation the first frame.
 *
 * @param source path of a file, or its bytes
 * @throws InputError naming the file: not there, no picture, damaged or cut off, more than `maxPixels`
 */
export async function decodeImage(source: string | Uint8Array, options: ImageOptions = {}): Promise<Picture> {
  const place = typeof source === 'string' ? { file: source } : {}
  if (typeof source === 'string') {
    const found = await stat(source).catch((error: unknown) => {
      throw fileError(error, 'cannot read the picture', source)
    })
    if (!found.isFile()) throw new InputError('cannot read the picture: it is no file', place)
  }
  const maxPixels = options.maxPixels ?? MAX_PIXELS
  const image = sharp(source, {
    limitInputPixels: maxPixels,
    failOn: 'truncated',
    pages: 1,
    ignoreIcc: options.ignoreProfile ?? false,
  })
  const fail = (error: unknown): never => {
    const reason = (error as Error).message.split('\n')[0]!.trim()
    if (/pixel limit/i.test(reason)) {
      throw new InputError(`the picture has more than ${maxPixels} pixels; scale it down`, place, error)
    }
    if (/unsupported image format/i.test(reason)) {
      throw new InputError(
        `the picture cannot be decoded: its format is not read; convert it to PNG or JPEG`,
        place,
        error,
      )
    }
    throw new InputError(`the picture cannot be decoded: ${reason}`, place, error)
  }
  // an SVG or a PDF is a program that draws, not pixels
  const { format } = await image.metadata().catch(fail)
  if (!FORMATS.includes(format)) {
    throw new InputError(`a picture of the format ${format} is not read; convert it to PNG or JPEG`, place)
  }
  const { data, info } = await image
    .autoOrient()
    .flatten({ background: BACKGROUND })
    .toColourspace('srgb')
    .raw({ depth: 'uchar' })
    .toBuffer({ resolveWithObject: true })
    .catch(fail)
  return { width: info.width, height: info.height, data: new Uint8Array(data.buffer, data.byteOffset, data.length) }
}
