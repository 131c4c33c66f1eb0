import { type ExternalTensor, type Graph, openSafetensors, type Safetensors, type Tensor } from '../onnx/index.ts'
import { InputError } from '../support/errors.ts'
import { bertEncoder, bertLinearModules, plainBert } from './bert/bert.ts'
import { bertConfig } from './bert/config.ts'
import { languageConfig } from './folder/language-config.ts'
import type { EncoderProfile, Pooling } from './folder/profile.ts'
import type { LinearModule, LoraOptions } from './lora/lora.ts'
import { qwen3Config, qwen3DefaultTargets, qwen3LinearModules, qwen3Packed, qwen3Plain } from './qwen3/index.ts'
import { DEFAULT_INSTRUCTION } from './qwen3-vl/chat.ts'
import { qwen3VlConfig } from './qwen3-vl/config.ts'
import type { RowCosts } from './rows/pack.ts'
import type { Weights } from './weights.ts'

/** What the code that was released with an architecture's encoders does, for folders without sentence-transformers' files. */
export interface Standards {
  pooling: Pooling
  normalize: boolean
  maxLength: number
  /** What a conversation's system turn says unless the user does. */
  instruction: string
}

/** What the toolkit knows of a model architecture; the key is `model_type` of config.json. */
interface Architecture {
  /** Whether a token sees the whole text (several texts share a row as blocks), or what comes before it (as branches of a tree). */
  layout: 'bidirectional' | 'causal'
  /** Whether images and videos are read, too. */
  readsPictures: boolean
  standards?: Standards
  /** @throws InputError for a configuration whose graph cannot be built */
  check(config: Record<string, unknown>, file: string): void
  packed(profile: EncoderProfile, weights: Weights, options: LoraOptions): Graph
  /** Absent where an encoder is no single graph. */
  plain?(profile: EncoderProfile, weights: Weights): Graph
  linearModules(profile: EncoderProfile): LinearModule[]
  /** What LoRA adapts unless the run says otherwise; patterns of {@link selectTargets}. */
  defaultTargets: string[]
}

const architectures: Record<string, Architecture> = {
  bert: {
    layout: 'bidirectional',
    readsPictures: false,
    check: bertConfig,
    packed: bertEncoder,
    plain: plainBert,
    linearModules: (profile) => bertLinearModules(bertConfig(profile.config, profile.folder)),
    defaultTargets: ['all-linear'],
  },
  qwen3: {
    layout: 'causal',
    readsPictures: false,
    check: qwen3Config,
    packed: qwen3Packed,
    plain: qwen3Plain,
    linearModules: qwen3LinearModules,
    defaultTargets: qwen3DefaultTargets,
  },
  qwen3_vl: {
    layout: 'causal',
    readsPictures: true,
    // QwenLM/Qwen3-VL-Embedding, src/models/qwen3_vl_embedding.py
    standards: {
      pooling: 'last',
      normalize: true,
      maxLength: 8192,
      instruction: DEFAULT_INSTRUCTION,
    },
    check(config, file) {
      qwen3Config(config, file)
      qwen3VlConfig(config, file)
    },
    packed: qwen3Packed,
    linearModules: qwen3LinearModules,
    defaultTargets: qwen3DefaultTargets,
  },
}

const found = (name: string): Architecture | undefined =>
  Object.hasOwn(architectures, name) ? architectures[name] : undefined

/**
 * Refuses a checkpoint over which no graph can be built.
 *
 * @throws InputError naming the architectures that are supported, or the field of config.json that is not
 */
export function checkArchitecture(name: string, config: Record<string, unknown>, file: string): void {
  const architecture = found(name)
  if (architecture === undefined)
    throw new InputError(
      `Checkpoints of the architecture "${name}" are not supported (supported: ${Object.keys(architectures).join(', ')}). A model exported to ONNX can be used instead: a folder with onnx/model.onnx.`,
      { file },
    )
  architecture.check(config, file)
}

/** What an architecture's own code does where files say nothing; undefined where that is not settled. */
export function standardsOf(name: string): Standards | undefined {
  return found(name)?.standards
}

/** Whether an encoder reads images and videos, too. */
export function readsPictures({ architecture }: Pick<EncoderProfile, 'architecture'>): boolean {
  return found(architecture)?.readsPictures ?? false
}

/** Whether a checkpoint's tokens see what comes after them. */
export function layoutOf(profile: EncoderProfile): Architecture['layout'] {
  return architecture(profile).layout
}

function architecture(profile: EncoderProfile): Architecture {
  const known = found(profile.architecture)
  if (profile.kind !== 'checkpoint' || known === undefined)
    throw new InputError(
      `The encoder "${profile.id}" is ${profile.kind === 'onnx' ? 'an ONNX graph' : `of the architecture "${profile.architecture}"`}; graphs are built from safetensors checkpoints of: ${Object.keys(architectures).join(', ')}.`,
      { file: profile.folder },
    )
  return known
}

/** The graph over packed rows (inputs and outputs as {@link bertEncoder} and {@link qwen3Packed} describe them). */
export function packedEncoder(profile: EncoderProfile, weights: Weights, options: LoraOptions = {}): Graph {
  return architecture(profile).packed(profile, weights, options)
}

/**
 * The graph over padded rows (as {@link plainBert} describes it) for the profile's architecture.
 *
 * @throws InputError for an encoder that is no single graph
 */
export function plainEncoder(profile: EncoderProfile, weights: Weights): Graph {
  const { plain } = architecture(profile)
  if (plain === undefined)
    throw new InputError(`An encoder of the architecture "${profile.architecture}" is no single graph.`, {
      file: profile.folder,
    })
  return plain(profile, weights)
}

/** The linear maps of a checkpoint that LoRA can adapt. */
export function linearModules(profile: EncoderProfile): LinearModule[] {
  return architecture(profile).linearModules(profile)
}

/** Patterns of the modules of a checkpoint that LoRA adapts unless the run says otherwise. */
export function defaultTargets(profile: EncoderProfile): string[] {
  return architecture(profile).defaultTargets
}

/**
 * A checkpoint's tensors as references into their files, with the folder that a session needs to find them. What is not of a float
 * type and no weight, such as a buffer of positions, is left out.
 *
 * @throws InputError for a weight of another type, as in quantised checkpoints
 */
export async function openWeights(
  profile: EncoderProfile,
): Promise<{ weights: Map<string, Tensor | ExternalTensor>; folder: string; stored: Safetensors }> {
  architecture(profile)
  const stored = await openSafetensors(profile.modelFolder)
  const weights = new Map<string, Tensor | ExternalTensor>()
  for (const [name, { dtype, file }] of stored.tensors)
    if (dtype === 'F32' || dtype === 'F16' || dtype === 'BF16') weights.set(name, stored.external(name))
    else if (name.endsWith('.weight'))
      throw new InputError(
        `The tensor "${name}" is stored as ${dtype}; weights are read in float32, float16 and bfloat16 only, not quantised. Take such a checkpoint of the model.`,
        { file },
      )
  return { weights, folder: stored.folder, stored }
}

/** What deciding on row lengths needs to know of the encoder, see {@link bestRowLength}. */
export function rowCosts(profile: EncoderProfile): RowCosts {
  const heads = languageConfig(profile.config).num_attention_heads
  return { hidden: profile.width, ...(typeof heads === 'number' ? { heads } : {}) }
}
