import { z } from 'zod'
import { checkModelConfig } from '../folder/model-config.ts'

const size = z.number().int().positive()
const tokenId = z.number().int().nonnegative()

/** Rotary settings, as transformers writes them since 5.0 (`rope_parameters`) and reads them from before (`rope_scaling`). */
const rope = z.looseObject({
  rope_type: z.literal('axial').optional(),
  type: z.literal('axial').optional(),
  rope_theta: z.number().positive().optional(),
})

const vision = z
  .looseObject({
    depth: size,
    hidden_size: size,
    num_heads: size,
    intermediate_size: size,
    out_hidden_size: size,
    num_position_embeddings: size,
    deepstack_visual_indexes: z.array(z.number().int().nonnegative()).default([8, 16, 24]),
    in_channels: z.literal(3, { error: 'pictures have three channels, red, green and blue' }).default(3),
    patch_size: size.default(16),
    temporal_patch_size: size.default(2),
    spatial_merge_size: size.default(2),
    hidden_act: z.enum(['gelu', 'gelu_new', 'gelu_pytorch_tanh']).default('gelu_pytorch_tanh'),
    rope_theta: z.number().positive().optional(),
    rope_parameters: rope.nullish(),
    rope_scaling: rope.nullish(),
  })
  .refine((c) => c.hidden_size % (4 * c.num_heads) === 0, {
    path: ['hidden_size'],
    message: 'is no multiple of four times num_heads, of which rotary positions take two halves of each axis',
  })
  .refine((c) => Number.isInteger(Math.sqrt(c.num_position_embeddings)), {
    path: ['num_position_embeddings'],
    message: 'is no square, so the positions are no square grid',
  })
  .refine((c) => c.deepstack_visual_indexes.every((layer, i, all) => layer < c.depth && layer > (all[i - 1] ?? -1)), {
    path: ['deepstack_visual_indexes'],
    message: 'are no rising numbers of layers below depth',
  })
  // the order in which transformers looks for it
  .transform((c) => ({ ...c, rope_theta: (c.rope_scaling ?? c.rope_parameters)?.rope_theta ?? c.rope_theta ?? 10000 }))

const schema = z
  .looseObject({
    model_type: z.literal('qwen3_vl'),
    vision_config: vision,
    text_config: z.looseObject({ hidden_size: size, num_hidden_layers: size }),
    image_token_id: tokenId.default(151655),
    video_token_id: tokenId.default(151656),
    vision_start_token_id: tokenId.default(151652),
    vision_end_token_id: tokenId.default(151653),
  })
  .refine((c) => c.vision_config.out_hidden_size === c.text_config.hidden_size, {
    path: ['vision_config', 'out_hidden_size'],
    message: 'is not the hidden_size of text_config, so features cannot stand in for token embeddings',
  })
  .refine((c) => c.vision_config.deepstack_visual_indexes.length <= c.text_config.num_hidden_layers, {
    path: ['vision_config', 'deepstack_visual_indexes'],
    message: 'are more than the language layers that they are added in',
  })

/** The vision tower's sizes and variants, by their names in config.json; see Hugging Face transformers `Qwen3VLVisionConfig`. */
export type VisionConfig = z.output<typeof vision>

/**
 * config.json of a Qwen3-VL model. `text_config` is checked only as far as the vision tower depends on it: the rest of it is the
 * language model's.
 */
export type Qwen3VlConfig = z.output<typeof schema>

/**
 * Checks what a Qwen3-VL config.json says of the vision tower and of the tokens that stand for pictures, and fills in the
 * defaults of transformers' `Qwen3VLConfig`.
 *
 * @throws InputError naming the field that is missing or asks for a variant that isn't supported
 */
export function qwen3VlConfig(config: Record<string, unknown>, file: string): Qwen3VlConfig {
  return checkModelConfig(schema, config, file)
}

/** Numbers of one patch: the colours of its pixels, in two frames. */
export function patchValues(config: VisionConfig): number {
  return config.in_channels * config.temporal_patch_size * config.patch_size ** 2
}

/** How many matrices a picture's features are: the merged ones and those of every DeepStack level. */
export function featureLevels(config: VisionConfig): number {
  return 1 + config.deepstack_visual_indexes.length
}
