import type { GraphBuilder } from '../../onnx/index.ts'
import type { EncoderProfile } from '../folder/profile.ts'
import { storedWeight, type Weights, weightPrefix } from '../weights.ts'
import type { Qwen3Config } from './config.ts'

/** The language model's tensors as initializers of a graph, by their names after the root (`layers.0.mlp.up_proj.weight`). */
export interface LanguageWeights {
  /**
   * A tensor as float32: one stored in half precision is cast when a session is made.
   *
   * @throws InputError for a tensor that is missing or of another shape than config.json says
   */
  float(name: string, shape: number[]): string
  /** A tensor as it is stored. */
  stored(name: string, shape: number[]): string
}

/**
 * Finds the language model in a checkpoint, whose names begin with nothing (saved as `Qwen3Model`), `model.` (with a head),
 * `language_model.` (`Qwen3VLModel`) or `model.language_model.`. In the graph, names are those of the class that AutoModel builds.
 *
 * @throws InputError for a checkpoint that holds none
 */
export function languageWeights(
  g: GraphBuilder,
  profile: EncoderProfile,
  weights: Weights,
  config: Qwen3Config,
): LanguageWeights {
  const file = profile.weights
  const prefix = weightPrefix(
    weights.keys(),
    'layers.0.input_layernorm.weight',
    file,
    'with or without "model." or "language_model." before it; the files hold no Qwen3 language model.',
  )
  const incomplete = `the files are no complete Qwen3 language model with ${config.layers} layers, as config.json describes it.`
  const stored = (name: string, shape: number[]): string => {
    const tied = config.tied && name === 'embed_tokens.weight' ? ['lm_head.weight'] : []
    const tensor = storedWeight(weights, [prefix + name, ...tied], shape, file, incomplete)
    return g.initializer(config.root + name, tensor)
  }
  return { stored, float: (name, shape) => g.cast(stored(name, shape), 'float32') }
}
