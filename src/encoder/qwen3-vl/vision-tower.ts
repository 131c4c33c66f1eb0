import type { ExternalTensor, GraphBuilder, Tensor } from '../../onnx/index.ts'
import { activation } from '../activation.ts'
import { storedWeight, type Weights, weightPrefix } from '../weights.ts'
import { patchValues, type VisionConfig } from './config.ts'

/** What transformers' `Qwen3VLVisionModel` adds to variances. */
const EPSILON = 1e-6

/** Queries, keys and values to what every patch takes from the patches it sees, all [patches, hidden]. */
type Attend = (query: string, key: string, value: string) => string

/**
 * The parts of the vision tower that do not depend on how pictures are laid out: transformers' `Qwen3VLVisionModel` without its
 * positions. Activations are matrices [patches, hidden].
 *
 * @param style `packed` graphs run here and take ONNX Runtime's own kernels; `plain` ones have standard operators only
 * @param file what errors about tensors name
 * @throws InputError for a tensor that is missing or of another shape than config.json says
 */
export function visionTower(
  g: GraphBuilder,
  config: VisionConfig,
  weights: Weights,
  style: 'packed' | 'plain',
  file: string,
) {
  const { hidden_size: hidden, intermediate_size: wide, out_hidden_size: out } = config
  const unit = config.spatial_merge_size ** 2
  const prefix = visionPrefix(weights.keys(), file)

  const stored = (name: string, shape: number[]): Tensor | ExternalTensor =>
    storedWeight(weights, [prefix + name], shape, file, 'the file holds no complete vision tower.')
  const weight = (name: string, shape: number[]): string => g.floatInitializer(`visual.${name}`, stored(name, shape))

  const linear = (x: string, module: string, inputs: number, outputs: number): string =>
    g.gemm(x, weight(`${module}.weight`, [outputs, inputs]), weight(`${module}.bias`, [outputs]), {
      transB: true,
      name: module,
    })

  const layerNorm = (x: string, module: string, size: number): string =>
    g.layerNorm(x, weight(`${module}.weight`, [size]), weight(`${module}.bias`, [size]), EPSILON, module)

  const block = (x: string, at: string, attend: Attend): string => {
    const qkv = linear(layerNorm(x, `${at}.norm1`, hidden), `${at}.attn.qkv`, hidden, 3 * hidden)
    const [query, key, value] = [0, 1, 2].map((i) => g.slice(qkv, 1, i * hidden, (i + 1) * hidden))
    const context = attend(query as string, key as string, value as string)
    const attended = g.add(x, linear(context, `${at}.attn.proj`, hidden, hidden))
    const inner = linear(layerNorm(attended, `${at}.norm2`, hidden), `${at}.mlp.linear_fc1`, hidden, wide)
    const outer = linear(activation(g, inner, config.hidden_act, style), `${at}.mlp.linear_fc2`, wide, hidden)
    return g.add(attended, outer)
  }

  /** [patches, hidden] -> [rows, out], each row of `unit` patches; DeepStack's mergers normalise after joining them. */
  const merge = (x: string, at: string, joinedFirst: boolean): string => {
    const join = (y: string): string => g.reshape(y, ['rows', unit * hidden])
    const joined = joinedFirst
      ? layerNorm(join(x), `${at}.norm`, unit * hidden)
      : join(layerNorm(x, `${at}.norm`, hidden))
    const inner = activation(g, linear(joined, `${at}.linear_fc1`, unit * hidden, unit * hidden), 'gelu', style)
    return linear(inner, `${at}.linear_fc2`, unit * hidden, out)
  }

  return {
    /** Pixels [patches, values of a patch] -> [patches, hidden]: a convolution whose windows do not overlap, so a product. */
    embed(pixels: string): string {
      const { in_channels: channels, temporal_patch_size: frames, patch_size: patch } = config
      const kernel = stored('patch_embed.proj.weight', [hidden, channels, frames, patch, patch])
      const matrix = { ...kernel, shape: [hidden, patchValues(config)] }
      return g.gemm(
        pixels,
        g.floatInitializer('visual.patch_embed.proj.weight', matrix),
        weight('patch_embed.proj.bias', [hidden]),
        { transB: true, name: 'patch_embed' },
      )
    },
    /** The learned position grid, [side², hidden]. */
    positionTable: (): string => weight('pos_embed.weight', [config.num_position_embeddings, hidden]),
    /** [patches, hidden] -> the merged features and those of every DeepStack level, each [rows, out]. */
    features(x: string, attend: Attend): [merged: string, ...deepstack: string[]] {
      const deepstack: string[] = []
      let y = x
      for (let layer = 0; layer < config.depth; layer++) {
        y = block(y, `blocks.${layer}`, attend)
        if (config.deepstack_visual_indexes.includes(layer))
          deepstack.push(merge(y, `deepstack_merger_list.${deepstack.length}`, true))
      }
      return [merge(y, 'merger', false), ...deepstack]
    },
  }
}

/** What stands before the tower's module paths: `visual.`, with or without the name of the model around it. */
export function visionPrefix(names: Iterable<string>, file: string): string {
  const model = weightPrefix(
    names,
    'visual.patch_embed.proj.weight',
    file,
    'with or without "model." before it; the file has no Qwen3-VL vision tower.',
  )
  return `${model}visual.`
}
