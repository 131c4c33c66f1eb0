import { InputError } from '../support/errors.ts'
import { bertConfig } from './bert/config.ts'
import { type Qwen3Config, qwen3Config } from './qwen3/index.ts'
import { qwen3VlConfig, type VisionConfig } from './qwen3-vl/config.ts'

/** Names and shapes of tensors. */
type Shapes = Map<string, number[]>

const tensorsOf: Record<string, (config: Record<string, unknown>, file: string) => Shapes> = {
  bert: bertTensors,
  qwen3: (config, file) => languageTensors(qwen3Config(config, file)),
  qwen3_vl: (config, file) =>
    new Map([
      ...languageTensors(qwen3Config(config, file)),
      ...visionTensors(qwen3VlConfig(config, file).vision_config),
    ]),
}

/**
 * The tensors that a checkpoint of a configuration has: those of the class that AutoModel of Hugging Face transformers builds, by
 * their names there, with their shapes. No weights need to be at hand.
 *
 * @throws InputError for an architecture that is not supported, and for a configuration that isn't
 */
export function checkpointTensors(config: Record<string, unknown>, file: string): Shapes {
  const name = String(config.model_type)
  const list = Object.hasOwn(tensorsOf, name) ? tensorsOf[name] : undefined
  if (list === undefined)
    throw new InputError(
      `"model_type" is ${JSON.stringify(config.model_type)}; the architectures whose checkpoints are supported are ${Object.keys(tensorsOf).join(', ')}.`,
      { file },
    )
  return list(config, file)
}

/** Adds linear maps and normalisations by their module paths. */
function collector() {
  const tensors: Shapes = new Map()
  const add = (name: string, ...shape: number[]): void => {
    tensors.set(name, shape)
  }
  return {
    tensors,
    add,
    linear(module: string, inputs: number, outputs: number, bias = true): void {
      add(`${module}.weight`, outputs, inputs)
      if (bias) add(`${module}.bias`, outputs)
    },
    layerNorm(module: string, width: number): void {
      add(`${module}.weight`, width)
      add(`${module}.bias`, width)
    },
  }
}

function bertTensors(config: Record<string, unknown>, file: string): Shapes {
  const c = bertConfig(config, file)
  const { hidden_size: hidden, intermediate_size: wide } = c
  const { tensors, add, linear, layerNorm } = collector()
  add('embeddings.word_embeddings.weight', c.vocab_size, hidden)
  add('embeddings.position_embeddings.weight', c.max_position_embeddings, hidden)
  add('embeddings.token_type_embeddings.weight', c.type_vocab_size, hidden)
  layerNorm('embeddings.LayerNorm', hidden)
  for (let layer = 0; layer < c.num_hidden_layers; layer++) {
    const at = `encoder.layer.${layer}`
    for (const part of ['query', 'key', 'value']) linear(`${at}.attention.self.${part}`, hidden, hidden)
    linear(`${at}.attention.output.dense`, hidden, hidden)
    layerNorm(`${at}.attention.output.LayerNorm`, hidden)
    linear(`${at}.intermediate.dense`, hidden, wide)
    linear(`${at}.output.dense`, wide, hidden)
    layerNorm(`${at}.output.LayerNorm`, hidden)
  }
  linear('pooler.dense', hidden, hidden)
  return tensors
}

function languageTensors(c: Qwen3Config): Shapes {
  const { root, hidden, intermediate, headWidth, attentionBias: bias } = c
  const [queries, keys] = [c.heads * headWidth, c.kvHeads * headWidth]
  const { tensors, add, linear } = collector()
  add(`${root}embed_tokens.weight`, c.vocabulary, hidden)
  for (let layer = 0; layer < c.layers; layer++) {
    const at = `${root}layers.${layer}`
    add(`${at}.input_layernorm.weight`, hidden)
    linear(`${at}.self_attn.q_proj`, hidden, queries, bias)
    linear(`${at}.self_attn.k_proj`, hidden, keys, bias)
    linear(`${at}.self_attn.v_proj`, hidden, keys, bias)
    linear(`${at}.self_attn.o_proj`, queries, hidden, bias)
    add(`${at}.self_attn.q_norm.weight`, headWidth)
    add(`${at}.self_attn.k_norm.weight`, headWidth)
    add(`${at}.post_attention_layernorm.weight`, hidden)
    linear(`${at}.mlp.gate_proj`, hidden, intermediate, false)
    linear(`${at}.mlp.up_proj`, hidden, intermediate, false)
    linear(`${at}.mlp.down_proj`, intermediate, hidden, false)
  }
  add(`${root}norm.weight`, hidden)
  return tensors
}

function visionTensors(c: VisionConfig): Shapes {
  const { hidden_size: hidden, intermediate_size: wide, in_channels: channels, patch_size: patch } = c
  const { tensors, add, linear, layerNorm } = collector()
  add('visual.patch_embed.proj.weight', hidden, channels, c.temporal_patch_size, patch, patch)
  add('visual.patch_embed.proj.bias', hidden)
  add('visual.pos_embed.weight', c.num_position_embeddings, hidden)
  for (let block = 0; block < c.depth; block++) {
    const at = `visual.blocks.${block}`
    layerNorm(`${at}.norm1`, hidden)
    layerNorm(`${at}.norm2`, hidden)
    linear(`${at}.attn.qkv`, hidden, 3 * hidden)
    linear(`${at}.attn.proj`, hidden, hidden)
    linear(`${at}.mlp.linear_fc1`, hidden, wide)
    linear(`${at}.mlp.linear_fc2`, wide, hidden)
  }
  const joined = hidden * c.spatial_merge_size ** 2
  const merger = (module: string, normWidth: number): void => {
    layerNorm(`${module}.norm`, normWidth)
    linear(`${module}.linear_fc1`, joined, joined)
    linear(`${module}.linear_fc2`, joined, c.out_hidden_size)
  }
  merger('visual.merger', hidden)
  c.deepstack_visual_indexes.forEach((_, level) => {
    merger(`visual.deepstack_merger_list.${level}`, joined)
  })
  return tensors
}
