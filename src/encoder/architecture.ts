import { type ExternalTensor, type Graph, openSafetensors, type Safetensors, type Tensor } from '../onnx/index.ts'
import { InputError } from '../support/errors.ts'
import { bertEncoder, bertLinearModules, plainBert, type Weights } from './bert.ts'
import { bertConfig } from './bert-config.ts'
import type { EncoderProfile } from './checkpoint.ts'
import type { LinearModule, LoraOptions } from './lora.ts'
import type { RowCosts } from './pack.ts'

/** What the toolkit knows of a model architecture; the key is `model_type` of config.json. */
interface Architecture {
  packed(profile: EncoderProfile, weights: Weights, options: LoraOptions): Graph
  plain(profile: EncoderProfile, weights: Weights): Graph
  linearModules(profile: EncoderProfile): LinearModule[]
  /** What LoRA adapts unless the run says otherwise; patterns of {@link selectTargets}. */
  defaultTargets: string[]
}

const architectures: Record<string, Architecture> = {
  bert: {
    packed: bertEncoder,
    plain: plainBert,
    linearModules: (profile) => bertLinearModules(bertConfig(profile.config, profile.folder)),
    defaultTargets: ['all-linear'],
  },
}

function architecture(profile: EncoderProfile): Architecture {
  const found = architectures[profile.architecture]
  if (profile.kind !== 'checkpoint' || found === undefined)
    throw new InputError(
      `The encoder "${profile.id}" is ${profile.kind === 'onnx' ? 'an ONNX graph' : `of the architecture "${profile.architecture}"`}; graphs are built from safetensors checkpoints of: ${Object.keys(architectures).join(', ')}.`,
      { file: profile.folder },
    )
  return found
}

/** The graph over packed rows (inputs and outputs as {@link bertEncoder} describes them) for the profile's architecture. */
export function packedEncoder(profile: EncoderProfile, weights: Weights, options: LoraOptions = {}): Graph {
  return architecture(profile).packed(profile, weights, options)
}

/** The graph over padded rows (as {@link plainBert} describes it) for the profile's architecture. */
export function plainEncoder(profile: EncoderProfile, weights: Weights): Graph {
  return architecture(profile).plain(profile, weights)
}

/** The linear maps of a checkpoint that LoRA can adapt. */
export function linearModules(profile: EncoderProfile): LinearModule[] {
  return architecture(profile).linearModules(profile)
}

/** Patterns of the modules of a checkpoint that LoRA adapts unless the run says otherwise. */
export function defaultTargets(profile: EncoderProfile): string[] {
  return architecture(profile).defaultTargets
}

/** A checkpoint's tensors as references into their files, with the folder that a session needs to find them. */
export async function openWeights(
  profile: EncoderProfile,
): Promise<{ weights: Map<string, Tensor | ExternalTensor>; folder: string; stored: Safetensors }> {
  architecture(profile)
  const stored = await openSafetensors(profile.modelFolder)
  const weights = new Map<string, Tensor | ExternalTensor>()
  for (const [name, { dtype }] of stored.tensors)
    if (dtype === 'F32' || dtype === 'F16' || dtype === 'BF16') weights.set(name, stored.external(name))
  return { weights, folder: stored.folder, stored }
}

/** What deciding on row lengths needs to know of the encoder, see {@link bestRowLength}. */
export function rowCosts(profile: EncoderProfile): RowCosts {
  const heads = profile.config.num_attention_heads
  return { hidden: profile.dimension, ...(typeof heads === 'number' ? { heads } : {}) }
}
