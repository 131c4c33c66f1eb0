import { type Graph, GraphBuilder } from '../../onnx/index.ts'
import { activation } from '../activation.ts'
import type { EncoderProfile } from '../folder/profile.ts'
import { linearMaps } from '../lora/linear.ts'
import type { LinearModule, LoraOptions } from '../lora/lora.ts'
import { maskBias } from '../mask.ts'
import { pooledEmbeddings } from '../rows/pooling.ts'
import { storedWeight, type Weights, weightPrefix } from '../weights.ts'
import { type BertConfig, bertConfig } from './config.ts'

/** The linear maps of a BERT encoder by their module paths in Hugging Face transformers' `BertModel`, with their sizes. */
export function bertLinearModules(config: BertConfig): LinearModule[] {
  const { hidden_size: hidden, intermediate_size: wide } = config
  return Array.from({ length: config.num_hidden_layers }, (_, layer) => {
    const at = `encoder.layer.${layer}`
    return [
      { module: `${at}.attention.self.query`, inputs: hidden, outputs: hidden },
      { module: `${at}.attention.self.key`, inputs: hidden, outputs: hidden },
      { module: `${at}.attention.self.value`, inputs: hidden, outputs: hidden },
      { module: `${at}.attention.output.dense`, inputs: hidden, outputs: hidden },
      { module: `${at}.intermediate.dense`, inputs: hidden, outputs: wide },
      { module: `${at}.output.dense`, inputs: wide, outputs: hidden },
    ]
  }).flat()
}

/**
 * The encoder over packed rows: several texts share a row, each with its own positions, and attend only to themselves.
 *
 * Inputs: `input_ids`, `position_ids` and `segments`, int32 [rows, length] (`segments` numbers the batch's texts from 1; 0 is
 * padding, which attends to padding alone); `pool`, float32 [nodes, tokens] with tokens = rows · length, whose rows sum to 1
 * and pick the tokens that make an embedding; and for every LoRA target its two matrices under PEFT's names.
 * Output: `embeddings`, float32 [nodes, hidden], of length 1 if the profile says so.
 *
 * Architecture: Devlin et al. 2019 (arXiv 1810.04805) as Hugging Face transformers' `BertModel` computes it, token type 0
 * everywhere. Activations are matrices [tokens, hidden]; biases and LoRA sums go into Gemm's C.
 *
 * @throws InputError for a tensor that is missing or of another shape than config.json says
 */
export function bertEncoder(profile: EncoderProfile, weights: Weights, options: LoraOptions = {}): Graph {
  const g = new GraphBuilder()
  const bert = bertParts(g, profile, weights, 'packed', options)
  const ids = g.input('input_ids', 'int32', ['rows', 'length'])
  const positions = g.input('position_ids', 'int32', ['rows', 'length'])
  const segments = g.input('segments', 'int32', ['rows', 'length'])
  const pool = g.input('pool', 'float32', ['nodes', 'tokens'])

  // bias[row, 0, i, j] = 0 where i and j belong to the same text
  const same = g.equal(g.unsqueeze(segments, [2]), g.unsqueeze(segments, [1]))
  const bias = g.unsqueeze(maskBias(g, same), [1])
  const hidden = bert.layers(bert.embed(g.reshape(ids, ['tokens']), g.reshape(positions, ['tokens'])), bias, [
    'rows',
    'length',
  ])
  const pooled = g.gemm(pool, hidden, null, { name: 'pooling' })
  g.output(pooledEmbeddings(g, profile, pooled), 'embeddings')
  return g.build()
}

/**
 * The encoder over padded rows, for other programs: int64 `input_ids`, `attention_mask` and `token_type_ids` [batch,
 * sequence] to `last_hidden_state`, float32 [batch, sequence, hidden]. Standard operators of opset 17 only.
 *
 * @throws InputError for a tensor that is missing or of another shape than config.json says
 */
export function plainBert(profile: EncoderProfile, weights: Weights): Graph {
  const g = new GraphBuilder(17)
  const bert = bertParts(g, profile, weights, 'plain', {})
  const ids = g.input('input_ids', 'int64', ['batch', 'sequence'])
  const mask = g.input('attention_mask', 'int64', ['batch', 'sequence'])
  const types = g.input('token_type_ids', 'int64', ['batch', 'sequence'])

  const visible = g.cast(g.unsqueeze(mask, [1, 2]), 'bool')
  const bias = maskBias(g, visible)
  const hidden = bert.layers(bert.embedRows(ids, types), bias, ['batch', 'sequence'])
  g.output(g.reshape(hidden, ['batch', 'sequence', bert.config.hidden_size]), 'last_hidden_state')
  return g.build()
}

/** The parts that both graphs are made of. */
function bertParts(
  g: GraphBuilder,
  profile: EncoderProfile,
  weights: Weights,
  style: 'packed' | 'plain',
  options: LoraOptions,
) {
  const config = bertConfig(profile.config, profile.folder)
  const { hidden_size: hidden, num_attention_heads: heads, intermediate_size: wide } = config
  const width = hidden / heads
  const prefix = weightPrefix(
    weights.keys(),
    'embeddings.word_embeddings.weight',
    profile.weights,
    'with or without "bert." before it; the file is no BERT encoder.',
  )

  /** A tensor of the checkpoint as a float32 value of the graph. */
  const weight = (name: string, shape: number[]): string => {
    // checkpoints converted from TensorFlow call LayerNorm's tensors gamma and beta, which transformers renames
    const old = name.replace(/LayerNorm\.weight$/, 'LayerNorm.gamma').replace(/LayerNorm\.bias$/, 'LayerNorm.beta')
    const names = [prefix + name, prefix + old]
    const tensor = storedWeight(weights, names, shape, profile.weights, 'the file is no complete BERT encoder.')
    return g.cast(g.initializer(name, tensor), 'float32')
  }

  const adapted = linearMaps(g, options)
  /** scale · (x Wᵀ + b), with the map's LoRA update. */
  const linear = (x: string, module: string, inputs: number, outputs: number, scale = 1): string =>
    adapted(x, {
      ...{ module, scale },
      weight: weight(`${module}.weight`, [outputs, inputs]),
      c: weight(`${module}.bias`, [outputs]),
    })

  const layerNorm = (x: string, module: string): string =>
    g.layerNorm(
      x,
      weight(`${module}.weight`, [hidden]),
      weight(`${module}.bias`, [hidden]),
      config.layer_norm_eps,
      module,
    )

  /** [tokens, hidden] -> [rows, heads, length, width] */
  const split = (x: string, [rows, length]: [string, string], perm = [0, 2, 1, 3]): string =>
    g.transpose(g.reshape(x, [rows, length, heads, width]), perm)

  // softmax(q kᵀ / √width + bias) v; the scale is folded into q's projection
  const attention = (x: string, at: string, bias: string, dims: [string, string]): string => {
    const q = split(linear(x, `${at}.self.query`, hidden, hidden, 1 / Math.sqrt(width)), dims)
    const key = linear(x, `${at}.self.key`, hidden, hidden)
    const scores =
      style === 'packed'
        ? g.fusedMatmul(q, split(key, dims), { transB: true })
        : g.matmul(q, split(key, dims, [0, 2, 3, 1]))
    const v = split(linear(x, `${at}.self.value`, hidden, hidden), dims)
    const context = g.matmul(g.softmax(g.add(scores, bias)), v)
    const merged = g.reshape(g.transpose(context, [0, 2, 1, 3]), ['tokens', hidden])
    return linear(merged, `${at}.output.dense`, hidden, hidden)
  }

  const layer = (x: string, index: number, bias: string, dims: [string, string]): string => {
    const at = `encoder.layer.${index}`
    const attended = layerNorm(
      g.add(attention(x, `${at}.attention`, bias, dims), x),
      `${at}.attention.output.LayerNorm`,
    )
    const inner = activation(g, linear(attended, `${at}.intermediate.dense`, hidden, wide), config.hidden_act, style)
    return layerNorm(g.add(linear(inner, `${at}.output.dense`, wide, hidden), attended), `${at}.output.LayerNorm`)
  }

  const words = weight('embeddings.word_embeddings.weight', [config.vocab_size, hidden])
  const places = weight('embeddings.position_embeddings.weight', [config.max_position_embeddings, hidden])
  const types = weight('embeddings.token_type_embeddings.weight', [config.type_vocab_size, hidden])

  return {
    config,
    /** Token and position numbers [tokens] -> [tokens, hidden], token type 0. */
    embed(ids: string, positions: string): string {
      const placesAndType = g.add(places, g.gather(types, g.constant([0], 'int64')))
      return layerNorm(g.add(g.gather(words, ids), g.gather(placesAndType, positions)), 'embeddings.LayerNorm')
    },
    /** Token and type numbers [batch, sequence], positions counted from 0 -> [tokens, hidden]. */
    embedRows(ids: string, typeIds: string): string {
      const zero = g.constant([0], 'int64')
      const used = g.one('Slice', [places, zero, g.sizeOf('sequence'), zero], {
        types: [{ dtype: 'float32', shape: ['sequence', hidden] }],
      })
      const sum = g.add(g.add(g.gather(words, ids), g.gather(types, typeIds)), used)
      return layerNorm(g.reshape(sum, ['tokens', hidden]), 'embeddings.LayerNorm')
    },
    layers(x: string, bias: string, dims: [string, string]): string {
      let y = x
      for (let index = 0; index < config.num_hidden_layers; index++) y = layer(y, index, bias, dims)
      return y
    },
  }
}
