import { type Graph, GraphBuilder } from '../../onnx/index.ts'
import type { EncoderProfile } from '../folder/profile.ts'
import type { Weights } from '../weights.ts'
import { attentionBias, counted, languageLayers } from './layers.ts'
import { rotaryAngles } from './rotary.ts'

type Layers = ReturnType<typeof languageLayers>

/**
 * The Qwen3 encoder over padded rows, for other programs: int64 `input_ids` and `attention_mask` [batch, sequence] to
 * `last_hidden_state`, float32 [batch, sequence, hidden], after the final norm. Positions count from the start of a row, padding
 * included, as transformers' `Qwen3Model` counts them. Standard operators of opset 17 only.
 *
 * @throws InputError for a tensor that is missing or of another shape than config.json says
 */
export function qwen3Plain(profile: EncoderProfile, weights: Weights): Graph {
  const g = new GraphBuilder(17)
  const language = languageLayers(g, profile, weights, 'plain')
  const ids = g.input('input_ids', 'int64', ['batch', 'sequence'])
  const mask = g.input('attention_mask', 'int64', ['batch', 'sequence'])
  const x = language.embed(g.reshape(ids, ['tokens']))
  const row = g.unsqueeze(g.cast(counted(g, 'sequence'), 'float32'), [0])
  const positions = g.reshape(g.expand(row, ['batch', 'sequence']), ['tokens', 1])
  decode(g, language, { x, mask, positions })
  return g.build()
}

/**
 * The table of token vectors by itself: int64 `input_ids` [batch, sequence] to `inputs_embeds`, float32 [batch, sequence, hidden].
 *
 * @throws InputError for a tensor that is missing or of another shape than config.json says
 */
export function qwen3EmbedTokens(profile: EncoderProfile, weights: Weights): Graph {
  const g = new GraphBuilder(17)
  const { embed } = languageLayers(g, profile, weights, 'plain')
  g.output(embed(g.input('input_ids', 'int64', ['batch', 'sequence'])), 'inputs_embeds')
  return g.build()
}

/**
 * The language model after the table: `inputs_embeds`, float32 [batch, sequence, hidden], in which visual features stand for
 * their tokens already; int64 `attention_mask` [batch, sequence] and `position_ids` [batch, sequence] (qwen3) or [3, batch,
 * sequence] (qwen3_vl: time, height, width); for qwen3_vl `deepstack`, float32 [levels, batch, sequence, hidden], what is added
 * after each of the first layers, 0 at text. Output: `last_hidden_state`, float32 [batch, sequence, hidden], after the final norm.
 * Standard operators of opset 17 only.
 *
 * @throws InputError for a tensor that is missing or of another shape than config.json says
 */
export function qwen3Decoder(profile: EncoderProfile, weights: Weights): Graph {
  const g = new GraphBuilder(17)
  const language = languageLayers(g, profile, weights, 'plain')
  const { hidden, sections, deepstack: levels } = language.config
  const embeds = g.input('inputs_embeds', 'float32', ['batch', 'sequence', hidden])
  const mask = g.input('attention_mask', 'int64', ['batch', 'sequence'])
  const axes = sections === undefined ? [] : [3]
  const positions = g.cast(g.input('position_ids', 'int64', [...axes, 'batch', 'sequence']), 'float32')
  const x = g.reshape(embeds, ['tokens', hidden])
  const deepstack =
    sections === undefined ? undefined : g.input('deepstack', 'float32', [levels, 'batch', 'sequence', hidden])
  decode(g, language, {
    x,
    mask,
    positions: g.reshape(positions, sections === undefined ? ['tokens', 1] : [3, 'tokens']),
    ...(deepstack === undefined ? {} : { deepstack: g.reshape(deepstack, [levels, 'tokens', hidden]) }),
  })
  return g.build()
}

/**
 * All layers and the final norm, to the output `last_hidden_state`.
 *
 * @param x float32 [tokens, hidden]; `mask` int64 [batch, sequence]; `positions` as {@link rotaryAngles} takes them; `deepstack`
 *   float32 [levels, tokens, hidden]
 */
function decode(
  g: GraphBuilder,
  language: Layers,
  { x, mask, positions, deepstack }: { x: string; mask: string; positions: string; deepstack?: string },
): void {
  const { config } = language
  const angles = rotaryAngles(g, config, positions)
  // token i sees token j where j ≤ i and j is no padding
  const columns = counted(g, 'sequence')
  const before = g.one('LessOrEqual', [columns, g.unsqueeze(columns, [1])])
  const visible = g.one('And', [before, g.unsqueeze(g.cast(mask, 'bool'), [1])])
  const who = {
    rows: 'batch',
    queries: 'sequence',
    keys: 'sequence',
    bias: attentionBias(g, config, visible),
    queryAngles: angles,
    keyAngles: angles,
  }
  let y = x
  for (let index = 0; index < config.layers; index++) {
    y = language.layer(y, index, who)
    if (deepstack !== undefined && index < config.deepstack)
      y = g.add(y, g.gather(deepstack, g.constant([index], 'int64', [])))
  }
  g.output(g.reshape(language.finalNorm(y), ['batch', 'sequence', config.hidden]), 'last_hidden_state')
}
