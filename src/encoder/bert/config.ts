import { z } from 'zod'
import { checkModelConfig } from '../folder/model-config.ts'

const size = z.number().int().positive()

const schema = z
  .looseObject({
    vocab_size: size,
    hidden_size: size,
    num_hidden_layers: size,
    num_attention_heads: size,
    intermediate_size: size,
    max_position_embeddings: size,
    type_vocab_size: size.default(2),
    hidden_act: z.enum(['gelu', 'gelu_new', 'gelu_pytorch_tanh', 'relu']).default('gelu'),
    layer_norm_eps: z.number().positive().default(1e-12),
    position_embedding_type: z.literal('absolute').nullish(),
    is_decoder: z.literal(false).nullish(),
  })
  .refine((c) => c.hidden_size % c.num_attention_heads === 0, {
    path: ['hidden_size'],
    message: 'is no multiple of num_attention_heads',
  })

/** The sizes and variants of a BERT encoder, by their names in config.json; see Hugging Face transformers `BertConfig`. */
export type BertConfig = z.output<typeof schema>

/**
 * Checks a BERT config.json and fills in the defaults of `BertConfig`.
 *
 * @throws InputError naming the field that is missing or asks for a variant that isn't supported
 */
export function bertConfig(config: Record<string, unknown>, file: string): BertConfig {
  return checkModelConfig(schema, config, file)
}
