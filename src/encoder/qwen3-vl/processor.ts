import { join } from 'node:path'
import { z } from 'zod'
import { InputError } from '../../support/errors.ts'
import { exists } from '../../support/files.ts'
import { check, readJsonObject } from '../folder/json-files.ts'
import type { EncoderProfile } from '../folder/profile.ts'
import type { VisionConfig } from './config.ts'
import type { Normalisation } from './patches.ts'
import type { PixelLimits } from './smart-resize.ts'

/*
 * The released code (QwenLM/Qwen3-VL-Embedding, qwen3_vl_embedding.py) scales pictures itself, with qwen_vl_utils 0.0.14, and tells the
 * processor not to: of the processor's files it uses what follows the scaling, not their "size". A token below is a block of merged
 * patches.
 */

/** Tokens of a picture: the limits that the released code hands on. */
const IMAGE_TOKENS = { min: 4, max: 1800 }
/** Tokens of a frame, where the video is short: the limits of qwen_vl_utils. */
export const FRAME_TOKENS = { min: 128, max: 768 }
/** Tokens of all frames of a video, each for itself; they share them once that leaves less than the most of one. */
const VIDEO_TOKENS = 10 * FRAME_TOKENS.max
/** Tokens of a frame when it is first scaled, see {@link firstFrameScaling}. */
const FIRST_FRAME_TOKENS = { min: 4, max: 16384 }
/** The released code leaves frames out beyond these. */
export const MAX_FRAMES = 64

/** Pixels that become one token, along an axis. */
export const factorOf = (config: VisionConfig): number => config.patch_size * config.spatial_merge_size

const pixels = ({ min, max }: PixelLimits, factor: number): PixelLimits => ({
  min: min * factor ** 2,
  max: max * factor ** 2,
})

/** How many pixels a picture is scaled to. */
export function imageLimits(config: VisionConfig): PixelLimits {
  return pixels(IMAGE_TOKENS, factorOf(config))
}

/** What frames are scaled to: sides that are multiples of `factor`, and their number of pixels. */
interface Scaling {
  factor: number
  limits: PixelLimits
}

/**
 * How each frame of a video is scaled first. qwen_vl_utils 0.0.14 treats each of a list of frames as a picture, and hands on the factor
 * where the size of a patch is wanted, so that the sides become multiples of twice the factor.
 */
export function firstFrameScaling(config: VisionConfig): Scaling {
  const factor = 2 * factorOf(config)
  return { factor, limits: pixels(FIRST_FRAME_TOKENS, factor) }
}

/**
 * How all frames of a video are scaled after that: to what their number leaves for each.
 *
 * @param frames how many, their number made even
 */
export function frameScaling(config: VisionConfig, frames: number): Scaling {
  const factor = factorOf(config)
  const { min, max } = pixels(FRAME_TOKENS, factor)
  const share = ((VIDEO_TOKENS * factor ** 2) / frames) * config.temporal_patch_size
  return { factor, limits: { min, max: Math.max(Math.min(max, share), Math.trunc(min * 1.05)) } }
}

const channels = z.array(z.number()).length(3)

const settings = z.looseObject({
  image_mean: channels,
  image_std: channels.refine((values) => values.every((v) => v > 0), 'a deviation is no positive number'),
  rescale_factor: z
    .number()
    .positive()
    .default(1 / 255),
  do_rescale: z.boolean().default(true),
  do_normalize: z.boolean().default(true),
  patch_size: z.number().optional(),
  temporal_patch_size: z.number().optional(),
  merge_size: z.number().optional(),
})

/** How the pixels of pictures and of frames become numbers. */
export interface Processor {
  image: Normalisation
  video: Normalisation
}

/**
 * Reads what a model's files say of pixels: processor_config.json, or preprocessor_config.json and video_preprocessor_config.json.
 *
 * @throws InputError for a file that is missing or malformed, and for patches of another size than the vision tower's
 */
export async function readProcessor({ modelFolder }: EncoderProfile, config: VisionConfig): Promise<Processor> {
  const nested = join(modelFolder, 'processor_config.json')
  const whole = (await exists(nested)) ? await readJsonObject(nested, '') : {}
  const read = async (section: string, names: string[]): Promise<Normalisation> => {
    if (whole[section] !== undefined) return normalisation(whole[section], config, nested)
    for (const name of names) {
      const file = join(modelFolder, name)
      if (await exists(file)) return normalisation(await readJsonObject(file, ''), config, file)
    }
    throw new InputError(
      `No ${names[0]} in ${modelFolder}: pictures cannot be read without it. Take it from the model's repository.`,
      { file: join(modelFolder, names[0]!) },
    )
  }
  return {
    image: await read('image_processor', ['preprocessor_config.json']),
    video: await read('video_processor', ['video_preprocessor_config.json', 'preprocessor_config.json']),
  }
}

function normalisation(value: unknown, config: VisionConfig, file: string): Normalisation {
  const found = check(settings, value, file)
  const sizes = {
    patch_size: config.patch_size,
    temporal_patch_size: config.temporal_patch_size,
    merge_size: config.spatial_merge_size,
  }
  for (const [name, size] of Object.entries(sizes))
    if (found[name] !== undefined && found[name] !== size)
      throw new InputError(`"${name}" is ${found[name]}, but the vision tower's is ${size} (config.json).`, { file })
  return {
    mean: found.do_normalize ? found.image_mean : [0, 0, 0],
    std: found.do_normalize ? found.image_std : [1, 1, 1],
    rescale: found.do_rescale ? found.rescale_factor : 1,
  }
}
