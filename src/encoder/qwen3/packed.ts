import { type Graph, GraphBuilder } from '../../onnx/index.ts'
import { InputError } from '../../support/errors.ts'
import type { EncoderProfile } from '../folder/profile.ts'
import type { LoraOptions } from '../lora/lora.ts'
import { pooledEmbeddings } from '../rows/pooling.ts'
import type { Weights } from '../weights.ts'
import { attentionBias, counted, languageLayers } from './layers.ts'
import { type Angles, rotaryAngles } from './rotary.ts'

/**
 * The Qwen3 or Qwen3-VL encoder over packed rows: several token sequences share a row, or a trie of sequences with common
 * beginnings does, laid out in pre-order.
 *
 * Inputs, int32 unless said otherwise: `input_ids` [rows, length]; `position_ids` [rows, length], for qwen3_vl [3, rows, length]
 * (time, height, width); `ends` [rows, length]: token i of a row attends to token j of it where j ≤ i < ends[j], so `ends` is the
 * column after a sequence's last token, or after the last token that continues token j's prefix, and a padding column's own
 * number + 1; `last` [nodes]: where each node's last token is, counted over rows · length. qwen3_vl alone: `visual`, float32
 * [1 + DeepStack levels, features, hidden], the merged visual features, then those added after the first layers, number 0 of
 * `features` being zeros; `visual_rows` [rows, length], which of them stands for a token, 0 for text. And for every LoRA target
 * its two matrices under PEFT's names.
 * Output: `embeddings`, float32 [nodes, dimension], the states of the last tokens after the final norm, of length 1 if the profile
 * says so.
 *
 * The last layer computes keys and values of all tokens, and everything else of the nodes' last tokens alone.
 *
 * @throws InputError for a tensor that is missing or of another shape than config.json says, and for another pooling
 */
export function qwen3Packed(profile: EncoderProfile, weights: Weights, options: LoraOptions = {}): Graph {
  if (profile.pooling !== 'last')
    throw new InputError(
      `The pooling is "${profile.pooling}"; a causal encoder is pooled at its last token, the only one that has seen the whole text (--pooling last).`,
      { file: profile.folder },
    )
  const g = new GraphBuilder()
  const language = languageLayers(g, profile, weights, 'packed', options)
  const { config } = language
  const ids = g.input('input_ids', 'int32', ['rows', 'length'])
  const axes = config.sections === undefined ? [] : [3]
  const positions = g.input('position_ids', 'int32', [...axes, 'rows', 'length'])
  const ends = g.input('ends', 'int32', ['rows', 'length'])
  const last = g.input('last', 'int32', ['nodes'])
  const visual = config.sections === undefined ? undefined : visualInputs(g, config.deepstack + 1, config.hidden)

  const flatIds = g.reshape(ids, ['tokens'])
  const perToken = g.reshape(
    g.cast(positions, 'float32'),
    config.sections === undefined ? ['tokens', 1] : [3, 'tokens'],
  )
  const angles = rotaryAngles(g, config, perToken)
  const { within, across } = visibility(g, ends, last)
  const bias = attentionBias(g, config, within)
  const everyone = { rows: 'rows', queries: 'length', keys: 'length', bias, queryAngles: angles, keyAngles: angles }

  let x = language.embed(flatIds)
  if (visual !== undefined) x = g.where(visual.isVisual, visual.level(0), x)
  for (let index = 0; index < config.layers - 1; index++) {
    x = language.layer(x, index, everyone)
    if (visual !== undefined && index < config.deepstack) x = g.add(x, visual.level(index + 1))
  }
  x = language.layer(
    x,
    config.layers - 1,
    {
      rows: 1,
      queries: 'nodes',
      keys: 'tokens',
      bias: attentionBias(g, config, across),
      queryAngles: picked(g, angles, last),
      keyAngles: angles,
    },
    last,
  )
  if (visual !== undefined && config.layers <= config.deepstack) x = g.add(x, visual.level(config.layers, last))
  g.output(pooledEmbeddings(g, profile, language.finalNorm(x)), 'embeddings')
  return g.build()
}

/** The inputs of visual features, and how tokens read them. */
function visualInputs(g: GraphBuilder, levels: number, hidden: number) {
  const visual = g.input('visual', 'float32', [levels, 'features', hidden])
  const numbers = g.reshape(g.input('visual_rows', 'int32', ['rows', 'length']), ['tokens'])
  const table = g.reshape(visual, ['visual_features', hidden])
  const row = g.cast(numbers, 'int64')
  return {
    /** bool [tokens, 1] */
    isVisual: g.unsqueeze(g.one('Greater', [numbers, g.constant([0], 'int32', [])]), [1]),
    /** A level's features of all tokens, or of those chosen: [tokens, hidden], 0 for text. */
    level(index: number, chosen?: string): string {
      const rows = chosen === undefined ? row : g.gather(row, chosen)
      const start = g.mul(g.sizeOf('features'), g.constant([index], 'int64'))
      return g.gather(table, g.add(rows, start))
    },
  }
}

/**
 * Who sees whom: `within`, bool [rows, length, length], tokens of a row each other; `across`, bool [1, nodes, tokens], the last
 * tokens of nodes all tokens, which are counted over the rows there, so that ends do not leave their row.
 */
function visibility(g: GraphBuilder, ends: string, last: string): { within: string; across: string } {
  const columns = g.cast(counted(g, 'length'), 'int32')
  const starts = g.unsqueeze(g.mul(counted(g, 'rows'), g.reshape(g.sizeOf('length'), [])), [1])
  const absolute = g.reshape(g.add(ends, g.cast(starts, 'int32')), ['tokens'])
  return {
    within: between(g, { from: columns, at: g.unsqueeze(columns, [1]), end: g.unsqueeze(ends, [1]) }),
    across: g.unsqueeze(
      between(g, { from: g.cast(counted(g, 'tokens'), 'int32'), at: g.unsqueeze(last, [1]), end: absolute }),
      [0],
    ),
  }
}

/** from ≤ at < end */
function between(g: GraphBuilder, { from, at, end }: { from: string; at: string; end: string }): string {
  return g.one('And', [g.one('LessOrEqual', [from, at]), g.one('Less', [at, end])])
}

function picked(g: GraphBuilder, { cos, sin }: Angles, chosen: string): Angles {
  return { cos: g.gather(cos, chosen), sin: g.gather(sin, chosen) }
}
