import { readFile } from 'node:fs/promises'
import { dirname, extname, resolve } from 'node:path'
import { parse as parseYaml } from 'yaml'
import { z } from 'zod'
import type { StatedSettings } from '../encoder/index.ts'
import { TABLE_FORMAT_NAMES } from '../hierarchy/index.ts'
import { checkPrecision, DEVICES, PRECISIONS } from '../onnx/index.ts'
import { InputError } from '../support/errors.ts'
import { TFJS_BACKENDS } from '../tfjs/index.ts'
import { isLossModule } from './loss/module.ts'

const positive = z.number().positive()
const count = z.number().int().positive()
const share = z.number().min(0).max(1)
const weight = z.number().min(0)

const kindWeights = z
  .strictObject({
    'fully-gold': weight.default(1),
    'gold-child': weight.default(1),
    'non-gold-child': weight.default(1),
    'sibling-separation': weight.default(1),
  })
  .refine((weights) => Object.values(weights).some((w) => w > 0), { message: 'one of them is above 0' })
  .prefault({})

const schema = z.strictObject({
  /**
   * Loss of a pair on d = s(preferred) - s(other): `softplus(-d/tau)` (logistic) or `max(0, margin - d)` (hinge); or the path of
   * a module that computes the loss of a step (see loss-module.ts), relative to the config file, or to the working directory
   * where it is given on the command line.
   */
  loss: z
    .string()
    .refine((loss) => loss === 'logistic' || loss === 'hinge' || isLossModule(loss), {
      error: 'expected logistic, hinge or the path of a module (.mjs, .js or .cjs)',
    })
    .default('logistic'),
  /** Options of the loss module, as it documents them. */
  lossOptions: z.record(z.string(), z.json()).default({}),
  /** Temperature of the logistic loss, in units of cosine. */
  tau: positive.default(0.05),
  /** Margin of the hinge loss, in units of cosine. */
  margin: positive.max(2).default(0.1),
  /** w(kind): weight of a pair among the pairs of its decision node (or item). */
  kindWeights,
  /** What the loss is averaged over: every decision node, or every item, counts the same. */
  weighting: z.enum(['decision-node', 'item']).default('decision-node'),
  /** ω: weight of the decision nodes (or items) of a benchmark; 1 for those that aren't named. */
  benchmarkWeights: z.record(z.string(), weight).default({}),

  /**
   * Folder of a LoRA adapter that training begins from, whose modules, ranks and alphas are the run's; null: matrices that change
   * nothing. Relative to the config file, or to the working directory where it is given on the command line.
   */
  adapter: z.string().min(1).nullable().default(null),
  /** Rank r of the LoRA matrices; null: 16, or as the adapter has it that training begins from. */
  rank: count.nullable().default(null),
  /** LoRA's alpha: the update is scaled by alpha / rank; null: 32, or as the adapter has it that training begins from. */
  alpha: positive.max(1e6).nullable().default(null),
  /** Patterns of the module names that LoRA adapts; null: the architecture's own, or those of the adapter that training begins from. */
  targets: z.array(z.string().min(1)).min(1).nullable().default(null),

  /** Peak learning rate. */
  learningRate: positive.default(5e-4),
  /** Decoupled weight decay of AdamW. */
  weightDecay: z.number().min(0).default(0.01),
  /** Decay of AdamW's first and second moment. */
  betas: z.tuple([z.number().min(0).lt(1), z.number().min(0).lt(1)]).default([0.9, 0.999]),
  epsilon: positive.default(1e-8),
  /** Largest global norm of the gradient; 0 turns clipping off. */
  clipNorm: z.number().min(0).default(1),
  /** Linear warm-up: a share of all steps when below 1, a number of steps otherwise. */
  warmup: z.number().min(0).default(0.1),
  /** Decay of the learning rate after the warm-up, to zero. */
  schedule: z.enum(['cosine', 'linear', 'constant']).default('cosine'),

  epochs: positive.default(3),
  /** Optimizer steps; overrides `epochs`. */
  steps: count.nullable().default(null),
  /** Instances in an optimizer step. */
  batchSize: count.default(16),
  /**
   * Tokens that are computed at once, padding included: it bounds memory and never changes the result beyond rounding. `auto`
   * measures what fits when the run begins.
   */
  tokenBudget: z.union([z.number().int().min(16), z.literal('auto')]).default(4096),

  /** Part of the training split, by source, that selects the model. */
  validationShare: share.lt(1).default(0.15),
  /** What selects the adapter on the validation part; decision accuracy is micro over decision nodes or a mean over benchmarks. */
  selection: z
    .enum(['decision_accuracy', 'mean_decision_accuracy', 'edge_accuracy', 'pair_accuracy', 'loss'])
    .default('decision_accuracy'),
  /** Steps between two evaluations on the validation part; null: twice an epoch. The last step is always evaluated. */
  evaluateEvery: count.nullable().default(null),
  /** Steps between two checkpoints; null: at every evaluation. */
  checkpointEvery: count.nullable().default(null),
  /** Checkpoints that are kept, at most. */
  keep: z.number().int().min(1).default(2),

  /** Seeds LoRA's matrices, the validation part and the order of the instances. */
  seed: z.number().int().min(0).default(1),
  /** Whether every node's text starts with its item's title (and a table's caption). */
  title: z.boolean().default(true),
  /**
   * What an encoder of conversations (Qwen3-VL) is told to do with a question, and with a node; null: what it is told unless somebody
   * says otherwise.
   */
  instructions: z
    .strictObject({ query: z.string().nullable().default(null), node: z.string().nullable().default(null) })
    .prefault({}),
  /** How many numbers of an embedding count, the first ones; null: all of them. */
  dimensions: count.nullable().default(null),
  /** How a table's header and rows become text. */
  tableFormat: z.enum(TABLE_FORMAT_NAMES).default('markdown'),
  /** Whether what several nodes begin with is computed once, by encoders whose tokens see only what precedes them. */
  sharePrefixes: z.boolean().default(true),
  /** What a picture or a video that cannot be read does: stop before training, or leave its item out and count it. */
  onError: z.enum(['stop', 'skip']).default('stop'),
  /** What computes embeddings and gradients in training: ONNX Runtime, or TensorFlow.js where it is installed. */
  engine: z.enum(['onnxruntime', 'tfjs']).default('onnxruntime'),
  /** Backend of TensorFlow.js; null: the best that is installed. */
  tfjsBackend: z.enum(TFJS_BACKENDS).nullable().default(null),
  /** Where the graphs run. */
  device: z.enum(DEVICES).default('cpu'),
  /** What matrix products are computed in; the rest stays in float32. */
  precision: z.enum(PRECISIONS).default('fp32'),
  /** Threads of ONNX Runtime; null: the processors of the machine. Bits of the result depend on it. */
  threads: count.nullable().default(null),
})

/** Rank and alpha of matrices that begin at nothing. */
const FRESH = { rank: 16, alpha: 32 }

/** Every setting of a training run, resolved; `rank` and `alpha` are null only where training begins from an adapter. */
export interface TrainSettings extends z.output<typeof schema> {}
/** Settings as a user gives them: any of them may be left out. */
export interface TrainSettingsInput extends z.input<typeof schema> {}

/**
 * The settings of a run: the defaults, over them the config file's, over those the command line's.
 *
 * @param file YAML or JSON file of settings by name, or undefined
 * @param overrides settings that win over the file; undefined ones don't count
 * @param folder what a path among the overrides is relative to
 * @throws InputError naming the setting and the file at fault, an unknown name among them
 */
export async function resolveSettings(
  file: string | undefined,
  overrides: { [K in keyof TrainSettingsInput]?: TrainSettingsInput[K] | undefined } = {},
  folder = process.cwd(),
): Promise<TrainSettings> {
  const fromFile = file === undefined ? {} : await readConfig(file)
  const given = Object.fromEntries(Object.entries(overrides).filter(([, value]) => value !== undefined))
  check(fromFile, file)
  placeFiles(fromFile, file === undefined ? folder : dirname(file))
  placeFiles(given, folder)
  if (isObject(fromFile.instructions) && isObject(given.instructions))
    given.instructions = { ...fromFile.instructions, ...given.instructions }
  // `steps` and `epochs` measure the same thing: the one on the command line wins over the file's other one.
  if (given.epochs !== undefined && given.steps === undefined) given.steps = null
  const settings = check({ ...fromFile, ...given }, undefined)
  if (settings.adapter === null) {
    settings.rank ??= FRESH.rank
    settings.alpha ??= FRESH.alpha
  }
  checkPrecision(settings.precision, settings.device)
  if (!isLossModule(settings.loss) && Object.keys(settings.lossOptions).length > 0)
    throw new InputError(
      `Training settings are wrong: "lossOptions" are those of a loss module, and "loss" is ${settings.loss}, which has "tau" and "margin".`,
      { file },
    )
  return settings
}

/** What the settings state of the encoders, for reading them. */
export function statedSettings({
  instructions,
  dimensions,
}: Pick<TrainSettings, 'instructions' | 'dimensions'>): StatedSettings {
  const { query, node } = instructions
  return {
    instructions: { ...(query !== null && { query }), ...(node !== null && { node }) },
    ...(dimensions !== null && { dimensions }),
  }
}

const isObject = (value: unknown): value is object => typeof value === 'object' && value !== null

/** Names of all settings, those inside others by their path. */
const SETTING_NAMES = Object.entries(schema.parse({})).flatMap(([name, value]) => [
  name,
  ...(isObject(value) && !Array.isArray(value) ? Object.keys(value).map((inner) => `${name}.${inner}`) : []),
])

/** A name without what other ways of writing it differ in: learning_rate and learning-rate are learningRate. */
const plain = (name: string): string => name.replace(/[-_]/g, '').toLowerCase()

function check(settings: object, file: string | undefined): TrainSettings {
  const parsed = schema.safeParse(settings)
  if (parsed.success) return parsed.data
  const faults = parsed.error.issues.map((issue) => {
    const name = issue.path.join('.')
    if (issue.code === 'unrecognized_keys') {
      const path = name === '' ? '' : `${name}.`
      const named = issue.keys.map((key) => {
        const meant = SETTING_NAMES.find((known) => plain(known) === plain(path + key))
        return `"${path}${key}"${meant === undefined ? '' : ` (did you mean "${meant}"?)`}`
      })
      return `no setting is called ${named.join(', ')}`
    }
    return `"${name}": ${issue.message}`
  })
  throw new InputError(`Training settings are wrong: ${faults.join('; ')}.`, { file })
}

/** Makes the paths of a loss module and of an adapter absolute. */
function placeFiles(settings: Record<string, unknown>, folder: string): void {
  const { loss, adapter } = settings
  if (typeof adapter === 'string' && adapter !== '') settings.adapter = resolve(folder, adapter)
  if (typeof loss === 'string' && isLossModule(loss)) settings.loss = resolve(folder, loss)
}

async function readConfig(file: string): Promise<Record<string, unknown>> {
  let text: string
  try {
    text = await readFile(file, 'utf8')
  } catch (error) {
    throw new InputError(`The config file cannot be read (${(error as Error).message}).`, { file }, error)
  }
  let value: unknown
  try {
    value = extname(file).toLowerCase() === '.json' ? JSON.parse(text) : parseYaml(text)
  } catch (error) {
    throw new InputError(`Not a valid config file: ${(error as Error).message}`, { file }, error)
  }
  if (value === null || value === undefined) return {}
  if (typeof value !== 'object' || Array.isArray(value))
    throw new InputError('A config file holds settings by name, as in "learningRate: 0.0005".', { file })
  return value as Record<string, unknown>
}
