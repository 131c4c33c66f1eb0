import type { Picture } from '../../media/index.ts'
import { roundHalfEven, type Size } from './smart-resize.ts'

const CHANNELS = 3

/*
 * Antialiased bicubic scaling, as Pillow and PyTorch have it. Along an axis, output pixel i is centred at c = (i + ½) s, s = from/to;
 * with the kernel stretched by m = max(s, 1), source pixel j has the weight k((j + ½ - c)/m), normalised over the pixels within 2m
 * of the centre. The kernel is Keys' cubic convolution with a = -1/2:
 *
 *     k(x) = (a + 2)|x|³ - (a + 3)|x|² + 1        |x| < 1
 *            a|x|³ - 5a|x|² + 8a|x| - 4a      1 ≤ |x| < 2
 *
 * They differ in how they round, which is why each has its own weights here.
 */

/** How the pixels along one axis come from those of the source. */
interface Taps {
  /** First source pixel of each output pixel. */
  first: Int32Array
  /** How many source pixels. */
  count: Int32Array
  /** [outputs × most]: the weights of each. */
  weights: Float64Array
  most: number
}

/** Numbers of bits behind the point of Pillow's weights: 32, less 8 for the pixel and 2 for overshoot. */
const PRECISION_BITS = 22

/**
 * Scales a picture as Pillow's `Image.resize(size, Image.BICUBIC)` does, to the bit: eight bits between the passes, weights in fixed
 * point (libImaging/Resample.c). Pillow 13 scales the height first where it shrinks by more than twice as many pixels as the width;
 * earlier ones scale the width first always.
 */
export function resizeLikePillow(picture: Picture, { height, width }: Size): Picture {
  const half = 1 << (PRECISION_BITS - 1)
  const store = (sum: number): number => (sum + half) >> PRECISION_BITS
  const scaled = (from: Picture, side: 'height' | 'width', to: number): Picture => {
    if (from[side] === to) return from
    const size = { height: from.height, width: from.width, [side]: to }
    const data = new Uint8ClampedArray(size.height * size.width * CHANNELS)
    const pass = side === 'width' ? acrossRows : downColumns
    pass(from.data, from.width, data, pillowTaps(from[side], to), false, store)
    return { ...size, data: bytesOf(data) }
  }
  const shrinks = picture.height - height
  return shrinks > 0 && shrinks > 2 * (picture.width - width)
    ? scaled(scaled(picture, 'height', height), 'width', width)
    : scaled(scaled(picture, 'width', width), 'height', height)
}

/** Weights in double precision, then in fixed point. */
function pillowTaps(from: number, to: number): Taps {
  const a = -0.5
  const kernel = (at: number): number => {
    const x = Math.abs(at)
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0
  }
  const scale = from / to
  const stretch = Math.max(scale, 1)
  const support = 2 * stretch
  const inverse = 1 / stretch
  const most = 2 * Math.ceil(support) + 1
  const taps = { first: new Int32Array(to), count: new Int32Array(to), weights: new Float64Array(to * most), most }
  const exact = new Float64Array(most)
  for (let i = 0; i < to; i++) {
    const centre = (i + 0.5) * scale
    const begin = Math.max(0, Math.trunc(centre - support + 0.5))
    const end = Math.min(from, Math.trunc(centre + support + 0.5))
    let sum = 0
    for (let j = begin; j < end; j++) sum += exact[j - begin] = kernel((j - centre + 0.5) * inverse)
    for (let t = 0; t < end - begin; t++) {
      const weight = exact[t]! / sum
      // C's conversion to an integer drops what is behind the point
      taps.weights[i * most + t] = Math.trunc(weight * (1 << PRECISION_BITS) + (weight < 0 ? -0.5 : 0.5))
    }
    taps.first[i] = begin
    taps.count[i] = end - begin
  }
  return taps
}

/**
 * Scales a picture as torchvision's `resize(uint8 tensor, BICUBIC, antialias=True)` does: the width first, in single precision, rounded to
 * eight bits at the end (halves to even). PyTorch's kernels are compiled to fused multiply-adds, which is how sums are rounded here; where
 * they are not, or where the compiler put a step otherwise, a value next to a half comes out 1/255 away (3 of a million).
 */
export function resizeLikeTorch(picture: Picture, { height, width }: Size): Picture {
  if (picture.height === height && picture.width === width) return picture
  const rows = new Float32Array(picture.height * width * CHANNELS)
  acrossRows(picture.data, picture.width, rows, torchTaps(picture.width, width), true, (sum) => sum)
  const data = new Uint8ClampedArray(height * width * CHANNELS)
  downColumns(rows, width, data, torchTaps(picture.height, height), true, roundHalfEven)
  return { height, width, data: bytesOf(data) }
}

/** Weights in single precision (ATen/native/cpu/UpSampleKernel.cpp, `_compute_indices_min_size_weights_aa`). */
function torchTaps(from: number, to: number): Taps {
  const single = Math.fround
  const a = -0.5
  /** x·y + z, rounded once: the product of two single numbers is exact in double precision. */
  const fused = (x: number, y: number, z: number): number => single(x * y + z)
  const kernel = (at: number): number => {
    const x = Math.abs(at)
    if (x < 1) return fused(single(fused(a + 2, x, -(a + 3)) * x), x, 1)
    return x < 2 ? fused(fused(fused(a, x, -5 * a), x, 8 * a), x, -4 * a) : 0
  }
  const scale = single(from / to)
  const support = single(2 * Math.max(scale, 1))
  const inverse = single(1 / Math.max(scale, 1))
  const most = 2 * Math.ceil(support) + 1
  const taps = { first: new Int32Array(to), count: new Int32Array(to), weights: new Float64Array(to * most), most }
  for (let i = 0; i < to; i++) {
    const centre = single(scale * (i + 0.5))
    const begin = Math.max(0, Math.trunc(centre - support + 0.5))
    const end = Math.min(from, Math.trunc(centre + support + 0.5))
    const weights = taps.weights.subarray(i * most, i * most + end - begin)
    let sum = 0
    for (let j = begin; j < end; j++) {
      const weight = kernel(single((j - centre + 0.5) * inverse))
      weights[j - begin] = weight
      sum = single(sum + weight)
    }
    for (let t = 0; t < weights.length; t++) weights[t] = single(weights[t]! / sum)
    taps.first[i] = begin
    taps.count[i] = end - begin
  }
  return taps
}

const bytesOf = ({ buffer, byteOffset, length }: Uint8ClampedArray): Uint8Array =>
  new Uint8Array(buffer, byteOffset, length)

type Samples = Uint8Array | Uint8ClampedArray | Float32Array

/** Scales every row. `single`: whether sums are rounded to single precision at every step. */
function acrossRows(
  from: Uint8Array,
  fromWidth: number,
  out: Samples,
  { first, count, weights, most }: Taps,
  single: boolean,
  store: (sum: number) => number,
): void {
  const width = first.length
  const height = out.length / (width * CHANNELS)
  const round = Math.fround
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      let [red, green, blue] = [0, 0, 0]
      let source = (y * fromWidth + first[x]!) * CHANNELS
      const end = x * most + count[x]!
      if (single)
        for (let tap = x * most; tap < end; tap++, source += CHANNELS) {
          const weight = weights[tap]!
          red = round(red + weight * from[source]!)
          green = round(green + weight * from[source + 1]!)
          blue = round(blue + weight * from[source + 2]!)
        }
      else
        for (let tap = x * most; tap < end; tap++, source += CHANNELS) {
          const weight = weights[tap]!
          red += weight * from[source]!
          green += weight * from[source + 1]!
          blue += weight * from[source + 2]!
        }
      const at = (y * width + x) * CHANNELS
      out[at] = store(red)
      out[at + 1] = store(green)
      out[at + 2] = store(blue)
    }
  }
}

/** Scales every column; as {@link acrossRows}. */
function downColumns(
  from: Samples,
  width: number,
  out: Uint8ClampedArray,
  { first, count, weights, most }: Taps,
  single: boolean,
  store: (sum: number) => number,
): void {
  const length = width * CHANNELS
  const sums = new Float64Array(length)
  const round = Math.fround
  for (let y = 0; y < first.length; y++) {
    sums.fill(0)
    for (let tap = 0; tap < count[y]!; tap++) {
      const weight = weights[y * most + tap]!
      const source = (first[y]! + tap) * length
      if (single) for (let x = 0; x < length; x++) sums[x] = round(sums[x]! + weight * from[source + x]!)
      else for (let x = 0; x < length; x++) sums[x]! += weight * from[source + x]!
    }
    for (let x = 0; x < length; x++) out[y * length + x] = store(sums[x]!)
  }
}
