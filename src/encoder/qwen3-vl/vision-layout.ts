import type { Dim, GraphBuilder } from '../../onnx/index.ts'
import type { VisionConfig } from './config.ts'
import { axisFrequencies } from './vision-positions.ts'

/** Values of a graph that say where patches lie. A segment is what sees itself: a picture, or a pair of a video's frames. */
interface PatchLayout {
  /** float32 [patches, hidden]: the learned positions. */
  learned: string
  /** float32 [patches, width of a head / 2]: cosine and sine of the rotary angles, those of the height first. */
  cos: string
  sin: string
  /** int64 [segments, longest]: the patch at each place of each segment; its last one again behind the end. */
  patchOf: string
  /** bool [segments, longest]: whether the place is before the segment's end. */
  filled: string
  /** int64 [patches]: the place of each patch among segments · longest. */
  slotOf: string
}

/**
 * Works out inside the graph what `patchPositions` works out beside it, for any number of grids at once.
 *
 * @param grids int64 [pictures, 3]: pairs of frames, height and width, in patches
 * @param table the learned position grid, float32 [side², hidden]
 */
export function patchLayout(g: GraphBuilder, config: VisionConfig, grids: string, table: string): PatchLayout {
  const merge = config.spatial_merge_size
  const side = Math.sqrt(config.num_position_embeddings)
  const int = (value: number): string => g.scalar(value, 'int64')
  const integer = (op: string, a: string, b: string): string => g.one(op, [a, b])
  const div = (a: string, b: string): string => integer('Div', a, b)
  const mod = (a: string, b: string): string => integer('Mod', a, b)
  const sums = (x: string): string => g.one('CumSum', [x, int(0)], { types: [g.type(x)] })
  /** 0, 1, ... below `count`, an int64 scalar. */
  const range = (count: string, symbol: Dim): string =>
    g.one('Range', [int(0), count, int(1)], { types: [{ dtype: 'int64', shape: [symbol] }] })
  /** For each of `xs`, how many of the rising `ends` it has reached: the number of the interval that it is in. */
  const interval = (xs: string, ends: string): string => {
    const reached = g.one('GreaterOrEqual', [g.unsqueeze(xs, [1]), g.unsqueeze(ends, [0])])
    return g.reduceSum(g.cast(reached, 'int64'), [1])
  }

  const [pairs, heights, widths] = [0, 1, 2].map((i) => g.gather(grids, int(i), 1)) as [string, string, string]
  const areas = g.mul(heights, widths)
  const counts = g.mul(pairs, areas)
  const [patchEnds, segmentEnds] = [sums(counts), sums(pairs)]
  const [patchStarts, segmentStarts] = [g.sub(patchEnds, counts), g.sub(segmentEnds, pairs)]

  // each patch: its picture, its segment, its place in the segment, and from that its row and column
  const patch = range(g.squeeze(g.sizeOf('patches'), [0]), 'patches')
  const picture = interval(patch, patchEnds)
  const [height, width, area] = [heights, widths, areas].map((x) => g.gather(x, picture)) as [string, string, string]
  const inPicture = g.sub(patch, g.gather(patchStarts, picture))
  const segment = g.add(g.gather(segmentStarts, picture), div(inPicture, area))
  const place = mod(inPicture, area)
  const [block, inside] = [div(place, int(merge ** 2)), mod(place, int(merge ** 2))]
  const blocks = div(width, int(merge))
  const row = g.add(g.mul(div(block, blocks), int(merge)), div(inside, int(merge)))
  const column = g.add(g.mul(mod(block, blocks), int(merge)), mod(inside, int(merge)))

  // i (side - 1) / (n - 1) in whole numbers and a remainder
  const neighbours = (index: string, size: string) => {
    const parts = g.max(g.sub(size, int(1)), int(1))
    const stretched = g.mul(index, int(side - 1))
    const low = div(stretched, parts)
    const share = g.div(g.cast(mod(stretched, parts), 'float32'), g.cast(parts, 'float32'))
    return { low, high: integer('Min', g.add(low, int(1)), int(side - 1)), share, rest: g.sub(g.scalar(1), share) }
  }
  const [y, x] = [neighbours(row, height), neighbours(column, width)]
  const corner = (top: string, left: string, a: string, b: string): string =>
    g.mul(g.gather(table, g.add(g.mul(top, int(side)), left)), g.unsqueeze(g.mul(a, b), [1]))
  const learned = [
    corner(y.low, x.low, y.rest, x.rest),
    corner(y.low, x.high, y.rest, x.share),
    corner(y.high, x.low, y.share, x.rest),
    corner(y.high, x.high, y.share, x.share),
  ].reduce((sum, next) => g.add(sum, next))

  const frequencies = axisFrequencies(config)
  const frequency = g.constant(frequencies, 'float32', [1, frequencies.length])
  const ofAxis = (index: string): string => g.mul(g.unsqueeze(g.cast(index, 'float32'), [1]), frequency)
  const angles = g.concat([ofAxis(row), ofAxis(column)], 1)

  // each place of each segment: its patch
  const longest = g.reduceMax(areas, [0])
  const places = range(longest, 'longest')
  const segments = range(g.reduceSum(pairs, [0]), 'segments')
  const owner = interval(segments, segmentEnds)
  const segmentArea = g.gather(areas, owner)
  const before = g.mul(g.sub(segments, g.gather(segmentStarts, owner)), segmentArea)
  const start = g.add(g.gather(patchStarts, owner), before)
  const last = g.unsqueeze(g.sub(segmentArea, int(1)), [1])
  const kept = integer('Min', g.unsqueeze(places, [0]), last)
  return {
    learned,
    cos: g.one('Cos', [angles]),
    sin: g.one('Sin', [angles]),
    patchOf: g.add(g.unsqueeze(start, [1]), kept),
    filled: g.one('LessOrEqual', [g.unsqueeze(places, [0]), last]),
    slotOf: g.add(g.mul(segment, longest), place),
  }
}
