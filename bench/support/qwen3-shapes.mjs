// Configurations of Qwen3 and Qwen3-VL encoders of growing size, as their config.json has them. `0.6b` is the shape of
// Qwen3-Embedding-0.6B and `2b` that of Qwen3-VL-Embedding-2B; the smaller ones keep their proportions. `0.2b-vl` and `2b` read pictures.

const text = (values) => ({
  attention_bias: false,
  hidden_act: 'silu',
  initializer_range: 0.02,
  rms_norm_eps: 1e-6,
  ...values,
})

const qwen3 = (values) => ({
  architectures: ['Qwen3Model'],
  model_type: 'qwen3',
  max_position_embeddings: 32768,
  rope_theta: 1000000,
  tie_word_embeddings: true,
  ...text(values),
})

const qwen3Vl = (textValues, visionValues) => ({
  architectures: ['Qwen3VLForConditionalGeneration'],
  model_type: 'qwen3_vl',
  tie_word_embeddings: true,
  image_token_id: 151655,
  video_token_id: 151656,
  vision_start_token_id: 151652,
  vision_end_token_id: 151653,
  text_config: text({
    model_type: 'qwen3_vl_text',
    max_position_embeddings: 262144,
    rope_theta: 5000000,
    rope_scaling: { rope_type: 'default', mrope_interleaved: true, mrope_section: [24, 20, 20] },
    ...textValues,
  }),
  vision_config: {
    model_type: 'qwen3_vl',
    hidden_act: 'gelu_pytorch_tanh',
    in_channels: 3,
    patch_size: 16,
    spatial_merge_size: 2,
    temporal_patch_size: 2,
    num_position_embeddings: 2304,
    initializer_range: 0.02,
    ...visionValues,
  },
})

export const qwen3Shapes = {
  '0.05b': qwen3({
    hidden_size: 512,
    num_hidden_layers: 8,
    num_attention_heads: 8,
    num_key_value_heads: 4,
    head_dim: 64,
    intermediate_size: 1536,
    vocab_size: 40000,
  }),
  '0.2b': qwen3({
    hidden_size: 1024,
    num_hidden_layers: 10,
    num_attention_heads: 8,
    num_key_value_heads: 4,
    head_dim: 128,
    intermediate_size: 3072,
    vocab_size: 64000,
  }),
  '0.6b': qwen3({
    hidden_size: 1024,
    num_hidden_layers: 28,
    num_attention_heads: 16,
    num_key_value_heads: 8,
    head_dim: 128,
    intermediate_size: 3072,
    vocab_size: 151669,
  }),
  '0.2b-vl': qwen3Vl(
    {
      hidden_size: 768,
      num_hidden_layers: 12,
      num_attention_heads: 8,
      num_key_value_heads: 4,
      head_dim: 128,
      intermediate_size: 2304,
      vocab_size: 64000,
    },
    {
      depth: 12,
      hidden_size: 512,
      num_heads: 8,
      intermediate_size: 2048,
      out_hidden_size: 768,
      deepstack_visual_indexes: [2, 5, 8],
    },
  ),
  '2b': qwen3Vl(
    {
      hidden_size: 2048,
      num_hidden_layers: 28,
      num_attention_heads: 16,
      num_key_value_heads: 8,
      head_dim: 128,
      intermediate_size: 6144,
      vocab_size: 151936,
    },
    {
      depth: 24,
      hidden_size: 1024,
      num_heads: 16,
      intermediate_size: 4096,
      out_hidden_size: 2048,
      deepstack_visual_indexes: [5, 11, 17],
    },
  ),
}
