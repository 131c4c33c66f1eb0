import { type Graph, GraphBuilder } from '../../onnx/index.ts'
import { maskBias } from '../mask.ts'
import { plainRotated } from '../qwen3/index.ts'
import type { Weights } from '../weights.ts'
import { patchValues, type VisionConfig } from './config.ts'
import { patchLayout } from './vision-layout.ts'
import { visionTower } from './vision-tower.ts'

/**
 * The vision tower over pictures, or pairs of frames, of one size, for running here.
 *
 * Inputs: `pixels`, float32 [pictures, patches of one, values of a patch]; and what `patchPositions` says of the patches of one:
 * `rows`, int32 [patches of one, 4], `shares`, float32 [patches of one, 4], `cos` and `sin`, float32 [patches of one, width / 2].
 * Output: `features`, float32 [pictures, 1 + DeepStack levels, rows, out_hidden_size], the merged ones first.
 *
 * Patches see the patches of their own picture or pair, as in the reference, where only the two frames of a pair are joined.
 * Attention is ONNX Runtime's MultiHeadAttention, which on the CPU goes block by block and never holds all scores: a picture of
 * 7 200 patches would have 3 GB of them in each layer.
 *
 * @throws InputError for a tensor that is missing or of another shape than config.json says
 */
export function packedVision(config: VisionConfig, weights: Weights, file: string): Graph {
  const g = new GraphBuilder()
  const tower = visionTower(g, config, weights, 'packed', file)
  const { hidden_size: hidden, num_heads: heads, out_hidden_size: out } = config
  const half = hidden / heads / 2
  const pixels = g.input('pixels', 'float32', ['pictures', 'area', patchValues(config)])
  const rows = g.input('rows', 'int32', ['area', 4])
  const shares = g.input('shares', 'float32', ['area', 4])
  const cos = g.input('cos', 'float32', ['area', half])
  const sin = g.input('sin', 'float32', ['area', half])

  const learned = g.reduceSum(g.mul(g.gather(tower.positionTable(), rows), g.unsqueeze(shares, [2])), [1])
  const embedded = tower.embed(g.reshape(pixels, ['patches', patchValues(config)]))
  const x = g.reshape(g.add(g.reshape(embedded, ['pictures', 'area', hidden]), learned), ['patches', hidden])

  const split = (y: string): string => g.reshape(y, ['pictures', 'area', hidden])
  const first = g.constant([0], 'int64')
  const rotate = (y: string): string =>
    g.one('RotaryEmbedding', [split(y), first, cos, sin], { domain: 'com.microsoft' })
  const levels = tower.features(x, (query, key, value) => {
    const context = g.one('MultiHeadAttention', [rotate(query), rotate(key), split(value)], {
      domain: 'com.microsoft',
      attributes: { num_heads: { i: heads } },
    })
    return g.reshape(context, ['patches', hidden])
  })
  const byPicture = levels.map((level) => g.reshape(level, ['pictures', 1, 'rowsOfOne', out]))
  g.output(g.concat(byPicture, 1), 'features')
  return g.build()
}

/**
 * The vision tower for other programs, over any number of pictures and videos of any size: float32 `pixel_values` [patches,
 * values of a patch] and int64 `image_grid_thw` [pictures, 3] to `image_features`, float32 [1 + DeepStack levels, rows,
 * out_hidden_size], the merged ones first. Standard operators of opset 17 only. Attention holds the scores of all pairs of patches
 * of a picture, heads · patches² numbers.
 *
 * @throws InputError for a tensor that is missing or of another shape than config.json says
 */
export function plainVision(config: VisionConfig, weights: Weights, file: string): Graph {
  const g = new GraphBuilder(17)
  const tower = visionTower(g, config, weights, 'plain', file)
  const { hidden_size: hidden, num_heads: heads } = config
  const width = hidden / heads
  const pixels = g.input('pixel_values', 'float32', ['patches', patchValues(config)])
  const grids = g.input('image_grid_thw', 'int64', ['pictures', 3])

  const layout = patchLayout(g, config, grids, tower.positionTable())
  const x = g.add(tower.embed(pixels), layout.learned)

  const byHead = (y: string): string => g.reshape(y, ['patches', heads, width])
  // one segment, padded to the longest, is one batch of the products: [segments, heads, longest, width]
  const padded = (y: string, perm: number[]): string => g.transpose(g.gather(y, layout.patchOf), perm)
  const bias = g.unsqueeze(maskBias(g, layout.filled), [1, 2])
  const levels = tower.features(x, (query, key, value) => {
    const scale = g.scalar(1 / Math.sqrt(width))
    const q = padded(plainRotated(g, byHead(g.mul(query, scale)), layout), [0, 2, 1, 3])
    const k = padded(plainRotated(g, byHead(key), layout), [0, 2, 3, 1])
    const context = g.matmul(g.softmax(g.add(g.matmul(q, k), bias)), padded(byHead(value), [0, 2, 1, 3]))
    const flat = g.reshape(g.transpose(context, [0, 2, 1, 3]), ['slots', hidden])
    return g.gather(flat, layout.slotOf)
  })
  const stacked = levels.map((level) => g.unsqueeze(level, [0]))
  g.output(g.concat(stacked, 0), 'image_features')
  return g.build()
}
