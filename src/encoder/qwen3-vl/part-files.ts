import { basename, dirname, join } from 'node:path'

/** The graphs of an exported Qwen3-VL encoder by the names of their files, which are those that transformers.js loads. */
export const PARTS = ['vision_encoder', 'embed_tokens', 'decoder_model_merged'] as const
export type Part = (typeof PARTS)[number]

/** The part that stands for an exported encoder where one file names it. */
export const MAIN_PART = 'decoder_model_merged' satisfies Part

/**
 * The files of all parts, by the decoder's: `decoder_model_merged_fp16.onnx` has `vision_encoder_fp16.onnx` beside it.
 *
 * @returns undefined for a file that is no decoder by its name
 */
export function partFiles(decoder: string): Record<Part, string> | undefined {
  const name = basename(decoder)
  if (!name.startsWith(MAIN_PART)) return undefined
  const ending = name.slice(MAIN_PART.length)
  const beside = (part: Part): string => join(dirname(decoder), part + ending)
  return {
    vision_encoder: beside('vision_encoder'),
    embed_tokens: beside('embed_tokens'),
    decoder_model_merged: beside('decoder_model_merged'),
  }
}
