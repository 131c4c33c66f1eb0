import { join } from 'node:path'
import type { Grid } from '../../src/encoder/qwen3-vl/vision-positions.ts'
import { openSafetensors, type Tensor } from '../../src/onnx/index.ts'

/** A checkpoint with a small random vision tower; see bench/peers/make_qwen3_fixtures.py. */
export const tinyVision = join(import.meta.dirname, '..', 'fixtures', 'qwen3-vl')

/** Numbers of a patch: three channels of two frames of 16 × 16 pixels. */
export const VALUES = 1536

/** Pictures and videos with the features that transformers computes of them all at once; see bench/peers/vision_reference.py. */
export interface KnownVision {
  name: string
  /** int64 [pictures, 3]: pairs of frames, height and width, in patches. */
  grids: Tensor
  pixels: Float32Array
  /** float32 [1 + levels, rows, width]. */
  features: Tensor
  /** The size of every picture and every pair of frames, in order. */
  pairs: Grid[]
}

export async function knownVision(): Promise<KnownVision[]> {
  const file = join(import.meta.dirname, '..', 'fixtures', 'qwen3-vl-vision', 'expected.safetensors')
  const stored = await openSafetensors(file)
  const names = [...stored.tensors.keys()].filter((name) => name.endsWith('.grids')).map((name) => name.slice(0, -6))
  return Promise.all(
    names.map(async (name) => {
      const grids = await stored.read(`${name}.grids`)
      const rows = Array.from(grids.data as BigInt64Array, Number)
      const pairs = Array.from({ length: rows.length / 3 }, (_, i) => rows.slice(3 * i, 3 * i + 3)).flatMap(
        ([times = 0, height = 0, width = 0]) => Array.from({ length: times }, (): Grid => [height, width]),
      )
      const patches = pairs.reduce((sum, [height, width]) => sum + height * width, 0)
      const features = await stored.read(`${name}.features`)
      return { name, grids, pixels: knownPixels(patches), features, pairs }
    }),
  )
}

/** The pixels of the reference: value i is ((7919 i) mod 255) / 127.5 - 1. */
export function knownPixels(patches: number): Float32Array {
  return Float32Array.from({ length: patches * VALUES }, (_, i) => ((i * 7919) % 255) / 127.5 - 1)
}

/** Features of pairs one behind the other, each [levels, rows, width], as one [levels, all rows, width]. */
export function joined(parts: Float32Array[], levels: number): Float32Array {
  const sizes = parts.map((part) => part.length / levels)
  const total = sizes.reduce((sum, size) => sum + size, 0)
  const out = new Float32Array(levels * total)
  let at = 0
  for (const [i, part] of parts.entries()) {
    const size = sizes[i] as number
    for (let level = 0; level < levels; level++)
      out.set(part.subarray(level * size, (level + 1) * size), level * total + at)
    at += size
  }
  return out
}

/** Largest difference, as a share of the largest expected number. */
export function relativeError(found: Float32Array, expected: Float32Array): number {
  if (found.length !== expected.length) return Number.POSITIVE_INFINITY
  let [worst, largest] = [0, 0]
  expected.forEach((x, i) => {
    const difference = Math.abs(x - (found[i] as number))
    worst = Math.max(worst, difference)
    largest = Math.max(largest, Math.abs(x))
  })
  return worst / largest
}
