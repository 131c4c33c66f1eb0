import type { EncoderProfile } from '../folder/profile.ts'
import type { LinearModule } from '../lora/lora.ts'
import { qwen3Config } from './config.ts'

/**
 * The linear maps of a Qwen3 or Qwen3-VL language model, by their module paths in the class that AutoModel of Hugging Face
 * transformers builds (`layers.0.self_attn.q_proj` in `Qwen3Model`, `language_model.layers.0.self_attn.q_proj` in
 * `Qwen3VLModel`), with their sizes. The vision tower's are not among them: it stays as it is.
 */
export function qwen3LinearModules(profile: EncoderProfile): LinearModule[] {
  const { root, hidden, intermediate, layers, heads, kvHeads, headWidth } = qwen3Config(profile.config, profile.folder)
  const [queries, keys] = [heads * headWidth, kvHeads * headWidth]
  return Array.from({ length: layers }, (_, layer) => {
    const at = `${root}layers.${layer}`
    return [
      { module: `${at}.self_attn.q_proj`, inputs: hidden, outputs: queries },
      { module: `${at}.self_attn.k_proj`, inputs: hidden, outputs: keys },
      { module: `${at}.self_attn.v_proj`, inputs: hidden, outputs: keys },
      { module: `${at}.self_attn.o_proj`, inputs: queries, outputs: hidden },
      { module: `${at}.mlp.gate_proj`, inputs: hidden, outputs: intermediate },
      { module: `${at}.mlp.up_proj`, inputs: hidden, outputs: intermediate },
      { module: `${at}.mlp.down_proj`, inputs: intermediate, outputs: hidden },
    ]
  }).flat()
}

/** What LoRA adapts unless the run says otherwise: the maps that Qwen3-VL-Embedding's own adapters were trained on. */
export const qwen3DefaultTargets = ['q_proj', 'k_proj', 'v_proj', 'gate_proj', 'up_proj', 'down_proj']
