import { InputError } from '../../support/errors.ts'

/** Height and width, in pixels or in patches. */
export interface Size {
  height: number
  width: number
}

/** Larger ratios of the sides are refused. */
const MAX_RATIO = 200

/** Numbers of pixels between which a picture is brought. */
export interface PixelLimits {
  min: number
  max: number
}

/**
 * The size that a picture is scaled to: sides that are multiples of `factor`, the number of pixels within the limits, the ratio of
 * the sides kept as far as that allows (`smart_resize` of qwen_vl_utils 0.0.14).
 *
 * @param file the picture's, for the error
 * @throws InputError for a ratio of the sides over 200, or so large that nothing is left of the shorter one
 */
export function smartResize({ height, width }: Size, factor: number, { min, max }: PixelLimits, file: string): Size {
  const ratio = Math.max(height, width) / Math.min(height, width)
  const to = (round: (value: number) => number, value: number): number => round(value / factor) * factor
  let size: Size = {
    height: Math.max(factor, to(roundHalfEven, height)),
    width: Math.max(factor, to(roundHalfEven, width)),
  }
  if (size.height * size.width > max) {
    const beta = Math.sqrt((height * width) / max)
    size = { height: to(Math.floor, height / beta), width: to(Math.floor, width / beta) }
  } else if (size.height * size.width < min) {
    const beta = Math.sqrt(min / (height * width))
    size = { height: to(Math.ceil, height * beta), width: to(Math.ceil, width * beta) }
  }
  if (ratio > MAX_RATIO || size.height === 0 || size.width === 0)
    throw new InputError(
      `the picture is ${width} × ${height} pixels; one side is too long for the other (at most ${MAX_RATIO} times). Cut it into pieces, or leave it out`,
      { file },
    )
  return size
}

/** Python's `round`: halves go to the even neighbour. */
export function roundHalfEven(value: number): number {
  const below = Math.floor(value)
  const rest = value - below
  if (rest !== 0.5) return rest < 0.5 ? below : below + 1
  return below % 2 === 0 ? below : below + 1
}
