import {
  type EncoderProfile,
  featureLevels,
  type Part,
  plainVision,
  qwen3Decoder,
  qwen3EmbedTokens,
  qwen3VlConfig,
  type Weights,
} from '../encoder/index.ts'
import type { Dim, Graph, Node, Tensor, ValueType } from '../onnx/index.ts'

/**
 * The graphs of a Qwen3-VL encoder as transformers.js' `Qwen3VLForConditionalGeneration` calls them (4.3, `forward`):
 *
 * - `vision_encoder`: float32 `pixel_values` [patches, values], int64 `image_grid_thw` [pictures, 3] -> `image_features` [rows, wide]
 * - `embed_tokens`: int64 `input_ids` [batch, sequence] -> `inputs_embeds` [batch, sequence, wide]
 * - `decoder_model_merged`: `inputs_embeds`, int64 `attention_mask` [batch, sequence] and `position_ids` [3, batch, sequence] ->
 *   `last_hidden_state` [batch, sequence, hidden]
 *
 * transformers.js puts rows of `image_features` in the place of those of `inputs_embeds` and has no way for DeepStack's features,
 * so that these lie behind them: wide = (1 + levels) · hidden, what enters the first layer and then what is added after each of the
 * first layers, 0 at text. There is no cache of keys and values, and no `logits`: nothing is generated.
 */
export function exportedParts(profile: EncoderProfile, weights: Weights): Record<Part, Graph> {
  const config = qwen3VlConfig(profile.config, profile.folder)
  const levels = featureLevels(config.vision_config) - 1
  const hidden = config.text_config.hidden_size
  const vision = plainVision(config.vision_config, weights, profile.weights)
  const table = qwen3EmbedTokens(profile, weights)
  const decoder = qwen3Decoder(profile, weights)
  const features = wideFeatures(vision, levels, hidden)
  if (levels === 0)
    return { vision_encoder: features, embed_tokens: table, decoder_model_merged: withoutDeepstack(decoder) }
  return {
    vision_encoder: features,
    embed_tokens: wideTable(table, levels, hidden),
    decoder_model_merged: fromWide(decoder, levels, hidden),
  }
}

/** Adds nodes and constants with the types of the values that they make. */
function extended(
  graph: Graph,
  more: { before?: Node[]; after?: Node[]; constants: Record<string, number[]>; types: Record<string, ValueType> },
): Graph {
  const constants = Object.entries(more.constants).map(([name, values]): [string, Tensor] => [
    name,
    { dtype: 'int64', shape: [values.length], data: BigInt64Array.from(values, BigInt) },
  ])
  const constantTypes = constants.map(([name, { dtype, shape }]): [string, ValueType] => [name, { dtype, shape }])
  return {
    ...graph,
    nodes: [...(more.before ?? []), ...graph.nodes, ...(more.after ?? [])],
    initializers: new Map([...graph.initializers, ...constants]),
    types: new Map([...graph.types, ...constantTypes, ...Object.entries(more.types)]),
  }
}

const node = (op: string, inputs: string[], outputs: string[], attributes: Node['attributes'] = {}): Node => ({
  ...{ op, domain: '', name: `wide/${outputs[0]}`, inputs, outputs, attributes },
})

const floats = (...shape: Dim[]): ValueType => ({ dtype: 'float32', shape })

/** An output under another name, so that what comes after it can take its own. */
function renamed(graph: Graph, output: string, name: string): Graph {
  const own = (value: string): string => (value === output ? name : value)
  return {
    ...graph,
    nodes: graph.nodes.map((n) => ({ ...n, inputs: n.inputs.map(own), outputs: n.outputs.map(own) })),
    types: new Map([...graph.types].map(([value, type]) => [own(value), type])),
  }
}

/** image_features [1 + levels, rows, hidden] -> [rows, wide] */
function wideFeatures(graph: Graph, levels: number, hidden: number): Graph {
  const base = renamed(graph, 'image_features', 'wide/levels')
  const rows = base.types.get('wide/levels')?.shape[1] ?? 'rows'
  const wide = (1 + levels) * hidden
  return extended(base, {
    after: [
      node('Transpose', ['wide/levels'], ['wide/by_row'], { perm: { ints: [1, 0, 2] } }),
      node('Reshape', ['wide/by_row', 'wide/shape'], ['image_features']),
    ],
    constants: { 'wide/shape': [-1, wide] },
    types: { 'wide/by_row': floats(rows, 1 + levels, hidden), image_features: floats(rows, wide) },
  })
}

const withoutDeepstack = (graph: Graph): Graph => ({
  ...graph,
  inputs: graph.inputs.filter((name) => name !== 'deepstack'),
})

/** inputs_embeds [batch, sequence, hidden] -> [batch, sequence, wide], zeros behind */
function wideTable(graph: Graph, levels: number, hidden: number): Graph {
  const base = renamed(graph, 'inputs_embeds', 'wide/embeds')
  return extended(base, {
    after: [node('Pad', ['wide/embeds', 'wide/pads'], ['inputs_embeds'])],
    constants: { 'wide/pads': [0, 0, 0, 0, 0, levels * hidden] },
    types: { inputs_embeds: floats('batch', 'sequence', (1 + levels) * hidden) },
  })
}

/** inputs_embeds [batch, sequence, wide] -> the graph's own [batch, sequence, hidden] and deepstack [levels, batch, sequence, hidden] */
function fromWide(graph: Graph, levels: number, hidden: number): Graph {
  const base = renamed(graph, 'inputs_embeds', 'wide/embeds')
  const nodes = [
    node('Split', ['inputs_embeds', 'wide/sizes'], ['wide/embeds', 'wide/behind'], { axis: { i: 2 } }),
    node('Reshape', ['wide/behind', 'wide/shape'], ['wide/by_token']),
    node('Transpose', ['wide/by_token'], ['deepstack'], { perm: { ints: [2, 0, 1, 3] } }),
  ]
  const types = {
    inputs_embeds: floats('batch', 'sequence', (1 + levels) * hidden),
    'wide/embeds': floats('batch', 'sequence', hidden),
    'wide/behind': floats('batch', 'sequence', levels * hidden),
    'wide/by_token': floats('batch', 'sequence', levels, hidden),
    deepstack: floats(levels, 'batch', 'sequence', hidden),
  }
  const constants = { 'wide/sizes': [hidden, levels * hidden], 'wide/shape': [0, 0, levels, hidden] }
  return withoutDeepstack(extended(base, { before: nodes, constants, types }))
}
