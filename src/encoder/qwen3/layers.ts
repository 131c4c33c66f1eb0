import { type Dim, type GraphBuilder, multiplyDims } from '../../onnx/index.ts'
import type { EncoderProfile } from '../folder/profile.ts'
import { linearMaps } from '../lora/linear.ts'
import type { LoraOptions } from '../lora/lora.ts'
import { maskBias } from '../mask.ts'
import type { Weights } from '../weights.ts'
import { type Qwen3Config, qwen3Config } from './config.ts'
import { type Angles, plainRotated, rotated } from './rotary.ts'
import { languageWeights } from './weights.ts'

/** Who attends to whom: in each of `rows` rows, `queries` tokens to those of `keys` tokens for which the bias is 0. */
interface Attention {
  rows: Dim
  queries: Dim
  keys: Dim
  /** float32 [rows, 1, group · queries, keys], as {@link attentionBias} makes it; `group` heads of queries share a head of keys. */
  bias: string
  /** Angles of the tokens that attend. */
  queryAngles: Angles
  keyAngles: Angles
}

/**
 * What is added to the scores of attention.
 *
 * @param visible bool [rows, queries, keys]
 */
export function attentionBias(g: GraphBuilder, { heads, kvHeads }: Qwen3Config, visible: string): string {
  const bias = g.unsqueeze(maskBias(g, visible), [1])
  const group = heads / kvHeads
  return group === 1 ? bias : g.concat(Array<string>(group).fill(bias), 2)
}

/**
 * The layers of a Qwen3 language model (Yang et al. 2025, arXiv 2505.09388) as Hugging Face transformers' `Qwen3Model` and
 * `Qwen3VLTextModel` compute them. Activations are matrices [tokens, hidden].
 *
 * @param style `packed`: with ONNX Runtime's operators, for the toolkit's own sessions; `plain`: standard operators only
 * @throws InputError for a tensor that is missing or of another shape than config.json says
 */
export function languageLayers(
  g: GraphBuilder,
  profile: EncoderProfile,
  weights: Weights,
  style: 'packed' | 'plain',
  options: LoraOptions = {},
) {
  const config = qwen3Config(profile.config, profile.folder)
  const { root, hidden, intermediate, heads, kvHeads, headWidth: width, epsilon } = config
  const { float, stored } = languageWeights(g, profile, weights, config)

  const adapted = linearMaps(g, options)
  /**
   * c + x Wᵀ + b, with the map's LoRA update.
   *
   * @param c a sum that goes on, [tokens, outputs]
   */
  const linear = (x: string, at: string, inputs: number, outputs: number, { bias = false, c = '' } = {}): string => {
    const weight = float(`${at}.weight`, [outputs, inputs])
    const offset = bias ? float(`${at}.bias`, [outputs]) : undefined
    const terms = c === '' ? offset : offset === undefined ? c : g.add(c, offset)
    return adapted(x, { module: root + at, weight, c: terms })
  }

  /** x / √(mean x² + ε) ∘ w over the last axis, times `scale`. */
  const norm = (x: string, module: string, size: number, scale = 1): string => {
    const own = float(`${module}.weight`, [size])
    const weight = scale === 1 ? own : g.mul(own, g.scalar(scale))
    return g.again(() => {
      if (style === 'packed')
        return g.one('SimplifiedLayerNormalization', [x, weight], {
          name: root + module,
          attributes: { axis: { i: -1 }, epsilon: { f: epsilon }, stash_type: { i: 1 } },
        })
      const mean = g.reduceMean(g.pow(x, g.scalar(2)), [-1], true)
      return g.mul(g.div(x, g.sqrt(g.add(mean, g.scalar(epsilon)))), weight)
    })
  }

  const turn = style === 'packed' ? rotated : plainRotated

  /** [tokens, count · width] -> [tokens, count, width] */
  const perHead = (x: string, count: number): string => g.reshape(x, [g.shape(x)[0] as Dim, count, width])

  /**
   * softmax(q kᵀ / √width + bias) v, the scale folded into the norm of q. Heads of queries that share one of keys are stacked:
   * q is [rows, kvHeads, group · queries, width], and nothing is repeated.
   *
   * @param x the tokens that attend, normalised, [rows · queries, hidden]; `seen`, those attended to; `c`, what is added
   */
  const attention = (x: string, seen: string, c: string, at: string, who: Attention): string => {
    const { rows, queries, keys, bias, queryAngles, keyAngles } = who
    const group = heads / kvHeads
    const stacked = multiplyDims(group, queries) as Dim
    const map = (from: string, name: string, count: number): string =>
      perHead(linear(from, `${at}.${name}`, hidden, count * width, { bias: config.attentionBias }), count)

    const normedQ = norm(map(x, 'q_proj', heads), `${at}.q_norm`, width, width ** -0.5)
    const normedK = norm(map(seen, 'k_proj', kvHeads), `${at}.k_norm`, width)
    const v = map(seen, 'v_proj', kvHeads)
    const shared = (value: string, perm: number[]) => g.transpose(g.reshape(value, [rows, keys, kvHeads, width]), perm)
    const weights = g.again(() => {
      const [q, k] = [turn(g, normedQ, queryAngles), turn(g, normedK, keyAngles)]
      const split = g.transpose(g.reshape(q, [rows, queries, kvHeads, group, width]), [0, 2, 3, 1, 4])
      const stack = g.reshape(split, [rows, kvHeads, stacked, width])
      const scores =
        style === 'packed'
          ? g.fusedMatmul(stack, shared(k, [0, 2, 1, 3]), { transB: true })
          : g.matmul(stack, shared(k, [0, 2, 3, 1]))
      return g.softmax(g.add(scores, bias))
    })
    const context = g.matmul(weights, shared(v, [0, 2, 1, 3]))
    const apart = g.transpose(g.reshape(context, [rows, kvHeads, group, queries, width]), [0, 3, 1, 2, 4])
    const merged = g.reshape(apart, [g.shape(x)[0] as Dim, heads * width])
    return linear(merged, `${at}.o_proj`, heads * width, hidden, { bias: config.attentionBias, c })
  }

  /** c + W_down (silu(W_gate x) ∘ W_up x) */
  const feedForward = (x: string, c: string, at: string): string => {
    const gate = linear(x, `${at}.gate_proj`, hidden, intermediate)
    const up = linear(x, `${at}.up_proj`, hidden, intermediate)
    const inner = g.again(() => {
      const open =
        style === 'packed'
          ? g.one('QuickGelu', [gate], { domain: 'com.microsoft', attributes: { alpha: { f: 1 } } })
          : g.mul(gate, g.sigmoid(gate))
      return g.mul(open, up)
    })
    return linear(inner, `${at}.down_proj`, intermediate, hidden, { c })
  }

  return {
    config,
    /** Token numbers of any shape to their vectors, float32: rows of the table are cast after they are picked. */
    embed: (ids: string): string =>
      g.cast(g.gather(stored('embed_tokens.weight', [config.vocabulary, hidden]), ids), 'float32'),
    /**
     * One layer.
     *
     * @param x states [tokens, hidden]
     * @param chosen int32 [queries]: the tokens whose new states are wanted; all where absent
     */
    layer(x: string, index: number, who: Attention, chosen?: string): string {
      const at = `layers.${index}`
      const pick = (value: string) => (chosen === undefined ? value : g.gather(value, chosen))
      const seen = norm(x, `${at}.input_layernorm`, hidden)
      const attended = attention(pick(seen), seen, pick(x), `${at}.self_attn`, who)
      const normed = norm(attended, `${at}.post_attention_layernorm`, hidden)
      return feedForward(normed, attended, `${at}.mlp`)
    },
    /** The norm after the last layer. */
    finalNorm: (x: string): string => norm(x, 'norm', hidden),
  }
}

/** int64 [length]: 0, 1, ... */
export function counted(g: GraphBuilder, length: string): string {
  const scalar = (n: number) => g.constant([n], 'int64', [])
  return g.one('Range', [scalar(0), g.reshape(g.sizeOf(length), []), scalar(1)], {
    types: [{ dtype: 'int64', shape: [length] }],
  })
}
