import { rotaryFrequencies } from '../qwen3/index.ts'
import type { VisionConfig } from './config.ts'

/** Patches of a picture in height and in width. */
export type Grid = readonly [height: number, width: number]

/** Where the patches of one picture lie, in the order of the patches, which goes by blocks that the merger makes one. */
interface PatchPositions {
  /** int32 [patches, 4]: the rows of the learned position grid around a patch. */
  rows: Int32Array
  /** float32 [patches, 4]: their shares, bilinear. */
  shares: Float32Array
  /** float32 [patches, width of a head / 2]: cosine and sine of the rotary angles, those of the height first. */
  cos: Float32Array
  sin: Float32Array
}

/**
 * Positions of the patches of a picture, computed in double precision; transformers' `vision_utils` computes the same in single.
 *
 * Learned: a grid of side² vectors is stretched over the picture, corner upon corner, so that patch i of n along an axis lies at
 * i (side - 1) / (n - 1) and takes its vector from the neighbours. Rotary: angle j of an axis is i · theta^(-4 j / width).
 */
export function patchPositions([height, width]: Grid, config: VisionConfig): PatchPositions {
  const merge = config.spatial_merge_size
  const side = Math.sqrt(config.num_position_embeddings)
  const along = { rows: neighbours(height, side), columns: neighbours(width, side) }
  const frequencies = axisFrequencies(config)
  const angles = 2 * frequencies.length
  const patches = height * width
  const rows = new Int32Array(4 * patches)
  const shares = new Float32Array(4 * patches)
  const cos = new Float32Array(angles * patches)
  const sin = new Float32Array(angles * patches)
  for (let patch = 0; patch < patches; patch++) {
    const [row, column] = placeOf(patch, width, merge)
    const [above, left] = [along.rows[row] as Neighbours, along.columns[column] as Neighbours]
    ;[above.low, above.high].forEach((y, i) => {
      ;[left.low, left.high].forEach((x, j) => {
        rows[4 * patch + 2 * i + j] = y * side + x
        shares[4 * patch + 2 * i + j] =
          (i === 0 ? 1 - above.share : above.share) * (j === 0 ? 1 - left.share : left.share)
      })
    })
    frequencies.forEach((frequency, j) => {
      ;[row, column].forEach((place, axis) => {
        const at = patch * angles + axis * frequencies.length + j
        cos[at] = Math.cos(place * frequency)
        sin[at] = Math.sin(place * frequency)
      })
    })
  }
  return { rows, shares, cos, sin }
}

/** The frequencies of the angles of one axis, which turns half of a head's width. */
export function axisFrequencies(config: VisionConfig): number[] {
  return rotaryFrequencies(config.rope_theta, config.hidden_size / config.num_heads / 2)
}

/** Row and column of a patch: patches go block by block, and row by row within a block of merge × merge. */
function placeOf(patch: number, width: number, merge: number): [number, number] {
  const [block, inside] = [Math.floor(patch / merge ** 2), patch % merge ** 2]
  const blocks = width / merge
  return [Math.floor(block / blocks) * merge + Math.floor(inside / merge), (block % blocks) * merge + (inside % merge)]
}

interface Neighbours {
  low: number
  high: number
  /** The share of `high`. */
  share: number
}

function neighbours(size: number, side: number): Neighbours[] {
  return Array.from({ length: size }, (_, i) => {
    const place = (i * (side - 1)) / Math.max(size - 1, 1)
    const low = Math.floor(place)
    return { low, high: Math.min(low + 1, side - 1), share: place - low }
  })
}
