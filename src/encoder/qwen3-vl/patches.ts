import type { Picture } from '../../media/index.ts'
import { patchValues, type VisionConfig } from './config.ts'

const CHANNELS = 3

/** How eight-bit pixels become numbers: (value · rescale - mean)/std for each channel. */
export interface Normalisation {
  mean: number[]
  std: number[]
  rescale: number
}

/**
 * Cuts a picture into patches in the order in which the vision tower merges them: blocks of merge × merge patches row by row, in a
 * block row by row; in a patch channel by channel, frame by frame, row by row (`patchify` of transformers' Qwen2VLImageProcessor and
 * Qwen3VLVideoProcessor).
 *
 * @param frames as many as the tower takes at once, of one size; the last one stands in for those that are missing
 * @returns float32 [patches, channels × frames × patch × patch]
 */
export function cutPatches(frames: Picture[], config: VisionConfig, normalisation: Normalisation): Float32Array {
  const { patch_size: patch, spatial_merge_size: merge, temporal_patch_size: times } = config
  const { height, width } = frames[0]!
  const [rows, columns] = [height / patch, width / patch]
  const values = patchValues(config)
  const pixels = new Float32Array(rows * columns * values)
  const numbers = tables(normalisation)
  let at = 0
  for (let blockRow = 0; blockRow < rows; blockRow += merge)
    for (let blockColumn = 0; blockColumn < columns; blockColumn += merge)
      for (let row = blockRow; row < blockRow + merge; row++)
        for (let column = blockColumn; column < blockColumn + merge; column++) {
          for (let channel = 0; channel < CHANNELS; channel++) {
            const table = numbers[channel]!
            for (let time = 0; time < times; time++) {
              const { data } = frames[Math.min(time, frames.length - 1)]!
              for (let y = row * patch; y < (row + 1) * patch; y++) {
                let source = (y * width + column * patch) * CHANNELS + channel
                for (let x = 0; x < patch; x++, source += CHANNELS) pixels[at++] = table[data[source]!]!
              }
            }
          }
        }
  return pixels
}

/** What each of the 256 values becomes, for each channel: in float32, with mean and deviation scaled instead of the pixels. */
function tables({ mean, std, rescale }: Normalisation): Float32Array[] {
  return mean.map((m, channel) => {
    const shift = Math.fround(Math.fround(m) * Math.fround(1 / rescale))
    const scale = Math.fround(Math.fround(std[channel]!) * Math.fround(1 / rescale))
    return Float32Array.from({ length: 256 }, (_, value) => Math.fround(value - shift) / scale)
  })
}
