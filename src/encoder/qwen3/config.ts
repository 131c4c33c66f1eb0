import { z } from 'zod'
import { InputError } from '../../support/errors.ts'
import { checkModelConfig } from '../folder/model-config.ts'

const size = z.number().int().positive()

/** Rotary settings, as transformers writes them since 5.0 (`rope_parameters`) and wrote them before (`rope_scaling`). */
const rope = z.looseObject({
  rope_theta: z.number().positive().optional(),
  rope_type: z.literal('default').optional(),
  type: z.enum(['default', 'mrope']).optional(),
  mrope_section: z.tuple([z.number().int(), z.number().int(), z.number().int()]).optional(),
  mrope_interleaved: z.literal(true).optional(),
})

const language = z
  .looseObject({
    vocab_size: size,
    hidden_size: size,
    intermediate_size: size,
    num_hidden_layers: size,
    num_attention_heads: size,
    num_key_value_heads: size.nullish(),
    head_dim: size.multipleOf(2).default(128),
    max_position_embeddings: size.optional(),
    hidden_act: z.literal('silu').default('silu'),
    rms_norm_eps: z.number().positive().default(1e-6),
    attention_bias: z.boolean().default(false),
    use_sliding_window: z.literal(false, { error: 'sliding-window attention is not supported' }).nullish(),
    layer_types: z.array(z.literal('full_attention')).nullish(),
    rope_theta: z.number().positive().optional(),
    rope_parameters: rope.nullish(),
    rope_scaling: rope.nullish(),
    tie_word_embeddings: z.boolean().default(false),
  })
  .refine((c) => c.num_attention_heads % (c.num_key_value_heads ?? c.num_attention_heads) === 0, {
    path: ['num_attention_heads'],
    message: 'is no multiple of num_key_value_heads',
  })

const visionLanguage = z.looseObject({
  text_config: language,
  tie_word_embeddings: z.boolean().default(false),
  vision_config: z.looseObject({ deepstack_visual_indexes: z.array(z.number().int()).default([8, 16, 24]) }),
})

/** The sizes and variants of a Qwen3 language model. */
export interface Qwen3Config {
  /** What stands before the module paths in the class that AutoModel builds: nothing, or `language_model.`. */
  root: string
  vocabulary: number
  hidden: number
  /** Width of the feed-forward part. */
  intermediate: number
  layers: number
  heads: number
  /** Heads of keys and values, each shared by heads / kvHeads heads of queries. */
  kvHeads: number
  /** Width of a head; heads · width may differ from `hidden`. */
  headWidth: number
  epsilon: number
  /** Whether the maps of attention have biases. */
  attentionBias: boolean
  /** Whether the head's matrix is the table of token vectors, which then may go by the head's name. */
  tied: boolean
  /** Base of the rotary frequencies. */
  theta: number
  /**
   * Interleaved M-RoPE: how many of the rotary frequencies turn by the time, height and width position. Undefined where there is
   * one position.
   */
  sections: [number, number, number] | undefined
  /** How many of the first layers visual features are added after. */
  deepstack: number
}

/** Bases of the rotary frequencies where config.json has none: transformers' defaults. */
const THETA = { qwen3: 10_000, qwen3_vl: 500_000 }

/**
 * Checks the config.json of a Qwen3 (`Qwen3Config` of transformers) or a Qwen3-VL model (`Qwen3VLConfig`, of which this reads
 * the language part) and fills in the defaults of those classes.
 *
 * @throws InputError naming the field that is missing or asks for a variant that isn't supported
 */
export function qwen3Config(config: Record<string, unknown>, file: string): Qwen3Config {
  switch (config.model_type) {
    case 'qwen3':
      return {
        ...sizes(checkModelConfig(language, config, file), THETA.qwen3),
        root: '',
        sections: undefined,
        deepstack: 0,
      }
    case 'qwen3_vl': {
      const { text_config: text, vision_config: vision, ...whole } = checkModelConfig(visionLanguage, config, file)
      return {
        ...sizes(text, THETA.qwen3_vl),
        root: 'language_model.',
        tied: whole.tie_word_embeddings,
        sections: (text.rope_parameters ?? text.rope_scaling)?.mrope_section ?? [24, 20, 20],
        deepstack: vision.deepstack_visual_indexes.length,
      }
    }
    default:
      throw new InputError(`"model_type" is ${JSON.stringify(config.model_type)}, not qwen3 or qwen3_vl.`, { file })
  }
}

function sizes(config: z.output<typeof language>, theta: number): Omit<Qwen3Config, 'root' | 'sections' | 'deepstack'> {
  return {
    vocabulary: config.vocab_size,
    hidden: config.hidden_size,
    intermediate: config.intermediate_size,
    layers: config.num_hidden_layers,
    heads: config.num_attention_heads,
    kvHeads: config.num_key_value_heads ?? config.num_attention_heads,
    headWidth: config.head_dim,
    epsilon: config.rms_norm_eps,
    attentionBias: config.attention_bias,
    tied: config.tie_word_embeddings,
    theta: (config.rope_parameters ?? config.rope_scaling)?.rope_theta ?? config.rope_theta ?? theta,
  }
}
