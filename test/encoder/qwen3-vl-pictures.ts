import { readFileSync } from 'node:fs'
import { resolve } from 'node:path'
import type { Picture } from '../../src/media/index.ts'

/** A picture of a formula: that of bench/peers/qwen3_vl_inputs.py, with three channels unless told otherwise. */
export function formulaPicture(width: number, height: number, seed: number, channels = 3): Picture {
  const data = new Uint8Array(channels * width * height)
  let at = 0
  for (let y = 0; y < height; y++)
    for (let x = 0; x < width; x++)
      for (let c = 0; c < channels; c++) data[at++] = (3 * x * x + 5 * y * y + 7 * x * y + 37 * c + 11 * seed) % 256
  return { width, height, data }
}

type Run = [id: number, times: number]

export interface ExpectedInputs {
  /** Height, width; what they are scaled to, null where that is refused. */
  sizes: [number, number, number | null, number | null][]
  pictures: { width: number; height: number; seed: number; to: [number, number]; sha256: string }[]
  frames: {
    count: number
    width: number
    height: number
    seed: number
    to: [number, number]
    stride: number
    sample: string
  }[]
  colours: { channels: 1 | 4; width: number; height: number; seed: number; rgb: string }[]
  values: [image: number[], video: number[]]
  instructions: [given: string, written: string][]
  times: [milliseconds: number[], written: string[]][]
  texts: [text: string, ids: number[]][]
  mixtures: {
    text: string
    times?: number[]
    images?: [number, number][]
    ids: Run[]
    grids: { video: [number, number, number][]; image: [number, number, number][] }
    positions: string
  }[]
}

/** What the released code and the libraries that it calls made of them: test/fixtures/qwen3-vl-inputs. */
export function expectedInputs(): ExpectedInputs {
  return JSON.parse(readFileSync(resolve(import.meta.dirname, '../fixtures/qwen3-vl-inputs/expected.json'), 'utf8'))
}
