import {
  checkpointTensors,
  defaultTargets,
  type EncoderProfile,
  featureLevels,
  type LoraTarget,
  layoutOf,
  linearModules,
  longestRow,
  loraShapes,
  packedEncoder,
  packedVision,
  patchesAtOnce,
  qwen3VlConfig,
  runTokens,
  selectTargets,
  standardsOf,
  type Weights,
} from '../../encoder/index.ts'
import { byteLength, type DType, type ExternalTensor, type Graph, type Precision } from '../../onnx/index.ts'
import { trainingGraphs } from '../engine/graph.ts'
import { chosenUpdate } from '../engine/update.ts'
import { type LoadedGraph, loadedGraph } from './loaded.ts'
import { type Sizes, valueMemory } from './values.ts'

/** Where a plan's graphs run. */
export type PlannedDevice = 'cpu' | 'cuda'

/** What is planned, from a configuration alone. */
export interface PlanRequest {
  /** config.json. */
  config: Record<string, unknown>
  /** Where it lies, for errors. */
  file: string
  /** What the weights are stored in. */
  dtype: Extract<DType, 'float32' | 'float16' | 'bfloat16'>
  /** Rank of the LoRA matrices. */
  rank: number
  /** Patterns of the modules that LoRA adapts; the architecture's own where absent. */
  targets?: string[] | undefined
  device: PlannedDevice
  precision: Precision
}

/** Tokens of a run: rows of equal length, one at least. */
export interface RunSize {
  tokens: number
  /** Tokens of a row: those of the longest node, or more where several share one. */
  rowTokens: number
}

/** What a phase takes at its peak, in bytes. */
export interface PhaseMemory {
  /** The program with its libraries; on a card CUDA's own. */
  program: number
  /**
   * Weights as they are stored: on the CPU pages of their file, which the system counts once and can take back. A run reads few rows
   * of the table of token vectors; a whole training run is taken to read all of them.
   */
  stored: number
  /** Weights that sessions hold in another form. */
  copies: number
  /** Activations, their gradients and whatever else lives while a run lasts. */
  activations: number
  /** LoRA matrices, their gradients, the optimizer's moments, and what is written of them. */
  adapter: number
  total: number
}

/** What an encoder takes on a device, phase by phase. */
export interface MemoryPlan {
  device: PlannedDevice
  precision: Precision
  /** Numbers of the checkpoint, of its vision tower among them, and of the LoRA matrices. */
  parameters: { checkpoint: number; vision: number; adapter: number }
  /** Linear maps that are adapted. */
  targets: LoraTarget[]
  /** Most tokens that a node can have. */
  maxLength: number
  /** The size of the largest runs within a token budget, over nodes of up to so many tokens. */
  runSize(tokenBudget: number, nodeTokens: number): RunSize
  /** A forward pass over so many tokens. */
  encoding(size: RunSize): PhaseMemory
  /** One run of forward and backward. */
  step(size: RunSize): PhaseMemory
  /** A whole training run: steps, the embeddings of its validation, the optimizer, checkpoints. */
  training(size: RunSize): PhaseMemory
  /** One in which some items have more tokens than the budget: the session of their second pass stays open beside the other's. */
  mixedTraining(size: RunSize): PhaseMemory
  /** Activations that one more token takes, in rows of so many. */
  perToken(rowTokens: number): { encoding: number; step: number }
  /** The vision tower over pictures, or pairs of frames, of so many patches each; undefined for an encoder of text. */
  pictures?: ((patches: number) => PhaseMemory) | undefined
  /** Bytes of the features of one visual token in the cache; 0 for an encoder of text. */
  featureBytes: number
}

/** Node.js, ONNX Runtime, the program and its graphs; and an entry of the tokenizer's vocabulary. Both measured. */
const PROGRAM = 0.15 * 2 ** 30
const VOCABULARY_ENTRY = 600
/** What CUDA, cuBLAS and cuDNN take of a card before anything is computed; assumed, not measured here. */
const CUDA_CONTEXT = 0.8 * 2 ** 30
/**
 * Memory that ONNX Runtime's arena takes, relative to the values that are alive at once: freed places do not always fit what comes
 * next, the less so after runs of other sizes. Measured on the CPU; on a card, where the arena doubles what it takes, assumed.
 */
const ARENA: Record<PlannedDevice, { oneRun: number; manyRuns: number }> = {
  cpu: { oneRun: 1.1, manyRuns: 1.2 },
  cuda: { oneRun: 1.3, manyRuns: 1.3 },
}
/** Copies of the LoRA matrices in one run: those that go in and the gradients that come out. */
const STEP_COPIES = 2
/**
 * In a training run: the matrices, the best ones so far, two moments, the sum of the gradients, the gradients of the last two runs
 * (garbage is collected later), and the two moments once more as bytes of a checkpoint.
 */
const TRAINING_COPIES = 9

/**
 * Plans memory from a configuration: builds the graphs that would run, over weights that need not be there, and adds up the sizes of
 * what lives in them at once.
 *
 * @throws InputError for an architecture or a configuration that is not supported, and for a pattern that names no module
 */
export function memoryPlan(request: PlanRequest): MemoryPlan {
  const { device, precision, rank } = request
  const { profile, weights } = planned(request)
  const targets = selectTargets(linearModules(profile), request.targets ?? defaultTargets(profile)).map(
    (module): LoraTarget => ({ ...module, rank, alpha: rank }),
  )
  const matrices = loraShapes(targets)
  const adapter = matrices.reduce((sum, { shape: [a, b] }) => sum + a * b, 0)
  const trainable = matrices.map(({ name }) => name)

  const f0 = session(packedEncoder(profile, weights), device)
  const update = chosenUpdate(targets, precision)
  const forward = packedEncoder(profile, weights, { lora: targets, update })
  const computed = device === 'cpu' ? 'fp32' : precision
  const graphs = trainingGraphs(forward, trainable, undefined, profile.normalize, { precision: computed })
  const embed = session(graphs.embed, device)
  // with the loss or without it, a step's graph is the same but for some rows of pairs
  const step = session(graphs.pullBack.graph, device)
  const vision = visionOf(profile, weights)
  const featureBytes = vision === undefined ? 0 : 4 * vision.levels * profile.width
  const program = device === 'cpu' ? PROGRAM + VOCABULARY_ENTRY * languageOf(request.config).vocab_size : CUDA_CONTEXT
  /** The visual features that go into the largest run, all of whose tokens may be visual. */
  const inputs = (sizes: Sizes[]): number => featureBytes * Math.max(...sizes.map(({ tokens = 0 }) => tokens))
  const phase = (sessions: LoadedSession[], sizes: Sizes[], copies: number): PhaseMemory => {
    const oneRun = sessions.length === 1
    const arena = oneRun ? ARENA[device].oneRun : ARENA[device].manyRuns
    const stored = sessions.map((s) => (device === 'cpu' && oneRun ? s.stored - s.tables : s.stored))
    const parts = {
      program,
      // pages of one file are there once, however many sessions map it
      stored: device === 'cpu' ? Math.max(...stored) : total(stored),
      copies: total(sessions.map((s) => s.copies)),
      activations: arena * total(sessions.map((s, i) => s.values(sizes[i] as Sizes))) + inputs(sizes),
      adapter: 4 * adapter * copies,
    }
    return { ...parts, total: total(Object.values(parts)) }
  }

  const grown = ({ values }: LoadedSession, rowTokens: number): number => {
    const rows = (count: number): number => values(sizesOf({ tokens: count * rowTokens, rowTokens }))
    return (ARENA[device].oneRun * (rows(8) - rows(4))) / (4 * rowTokens) + featureBytes
  }
  const causal = layoutOf(profile) === 'causal'
  /**
   * A run that need not hold whole items: without shared prefixes it takes no more tokens than the device computes best, unless a
   * node has more.
   */
  const withinRun = ({ tokens, rowTokens }: RunSize): Sizes =>
    sizesOf({ tokens: causal ? tokens : Math.min(tokens, Math.max(rowTokens, runTokens(device))), rowTokens })

  return {
    ...{ device, precision, targets },
    parameters: { ...parametersOf(weights), adapter },
    maxLength: maxLengthOf(profile),
    runSize(tokenBudget, nodeTokens) {
      // nodes that share what they begin with share rows
      const longest = causal ? longestRow(nodeTokens) : nodeTokens
      return {
        tokens: Math.max(tokenBudget, nodeTokens),
        rowTokens: Math.max(nodeTokens, Math.min(longest, tokenBudget)),
      }
    },
    encoding: (size) => phase([f0], [withinRun(size)], 0),
    step: (size) => phase([step], [sizesOf(size)], STEP_COPIES),
    training: (size) => phase([step, embed], [sizesOf(size), withinRun(size)], TRAINING_COPIES),
    mixedTraining: (size) =>
      phase([step, step, embed], [sizesOf(size), withinRun(size), withinRun(size)], TRAINING_COPIES),
    perToken: (rowTokens) => ({ encoding: grown(f0, rowTokens), step: grown(step, rowTokens) }),
    ...(vision !== undefined && {
      pictures(patches: number) {
        const tower = session(vision.graph, device)
        const pictures = Math.max(1, Math.floor(vision.patchesAtOnce / patches))
        return phase([tower], [pictureSizes(pictures, patches, vision.merge)], 0)
      },
    }),
    featureBytes,
  }
}

const total = (bytes: number[]): number => bytes.reduce((sum, b) => sum + b, 0)

interface LoadedSession extends Omit<LoadedGraph, 'graph'> {
  values(sizes: Sizes): number
}

function session(graph: Graph, device: PlannedDevice): LoadedSession {
  const { graph: run, ...weights } = loadedGraph(graph, device)
  const memory = valueMemory(run)
  return { ...weights, values: (sizes) => memory(sizes).peak }
}

/** A profile and weights as a checkpoint of this configuration would have them; no file of it is looked at. */
function planned({ config, file, dtype }: PlanRequest): { profile: EncoderProfile; weights: Weights } {
  const tensors = checkpointTensors(config, file)
  const architecture = String(config.model_type)
  const weights = new Map(
    [...tensors].map(([name, shape]): [string, ExternalTensor] => {
      const external = { file: 'planned', offset: 0, length: byteLength(dtype, shape) }
      return [name, { dtype, shape, external }]
    }),
  )
  const width = languageOf(config).hidden_size
  const profile: EncoderProfile = {
    ...{ kind: 'checkpoint', folder: file, modelFolder: file, id: file, revision: undefined, architecture, config },
    ...{ pooling: architecture === 'bert' ? 'mean' : 'last', normalize: true, prompts: { query: '', node: '' } },
    ...{ maxLength: Number.POSITIVE_INFINITY, lowerCase: false, opensAnswer: true, dimension: width, width },
    ...{ weightFiles: [], weights: file, canopy: undefined, stated: {}, fingerprint: '' },
  }
  return { profile, weights }
}

interface LanguageSizes {
  hidden_size: number
  vocab_size: number
  max_position_embeddings?: number
}

/** The language model's part of a configuration that has been checked. */
function languageOf(config: Record<string, unknown>): LanguageSizes {
  return (config.text_config ?? config) as unknown as LanguageSizes
}

function parametersOf(weights: Weights): { checkpoint: number; vision: number } {
  const count = (names: string[]): number =>
    total(names.map((name) => weights.get(name)?.shape.reduce((a, b) => a * b, 1) ?? 0))
  const names = [...weights.keys()]
  return { checkpoint: count(names), vision: count(names.filter((name) => name.startsWith('visual.'))) }
}

function visionOf(
  { architecture, config, folder }: EncoderProfile,
  weights: Weights,
): { graph: Graph; merge: number; levels: number; patchesAtOnce: number } | undefined {
  if (architecture !== 'qwen3_vl') return undefined
  const vision = qwen3VlConfig(config, folder).vision_config
  return {
    graph: packedVision(vision, weights, folder),
    merge: vision.spatial_merge_size ** 2,
    levels: featureLevels(vision),
    patchesAtOnce: patchesAtOnce(vision),
  }
}

/** Most tokens that the language model was made for and that the code released with it reads. */
function maxLengthOf({ architecture, config }: EncoderProfile): number {
  const { max_position_embeddings: positions = Number.POSITIVE_INFINITY } = languageOf(config)
  return Math.min(positions, standardsOf(architecture)?.maxLength ?? Number.POSITIVE_INFINITY)
}

/** The packed graphs' symbols: two nodes in every row. */
function sizesOf({ tokens, rowTokens: length }: RunSize): Sizes {
  const rows = Math.ceil(tokens / length)
  return { rows, length, tokens: rows * length, nodes: 2 * rows, features: 1, visual_features: 1 }
}

function pictureSizes(pictures: number, area: number, merge: number): Sizes {
  const [patches, rowsOfOne] = [pictures * area, area / merge]
  return { pictures, area, patches, rows: pictures * rowsOfOne, rowsOfOne }
}
