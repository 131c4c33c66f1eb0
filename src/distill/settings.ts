import { readFile } from 'node:fs/promises'
import { parse } from 'yaml'
import { z } from 'zod'
import { InputError } from '../support/errors.ts'

const count = z.number().int().positive()
const positive = z.number().positive()

const schema = z.strictObject({
  /** Width of the student: of its hidden states and of its embeddings; at most the teacher's. */
  hidden: count.default(256),
  layers: count.default(2),
  /** Attention heads; divides `hidden`. */
  heads: count.default(4),
  /** Width of the feed-forward layers. */
  intermediate: count.default(1024),
  /** Tokens of the vocabulary. */
  vocabulary: count.max(65_535).default(8000),
  /** Words rarer than this have no say in the vocabulary. */
  minFrequency: count.default(3),
  /** Most tokens of a text; the student's positions. */
  maxLength: z.number().int().min(3).max(65_535).default(256),

  /** Most texts of each kind; the rest is left out by a seeded choice. */
  sentences: count.default(350_000),
  passages: count.default(50_000),
  nodes: count.default(80_000),
  questions: count.default(60_000),
  /** Part of the passages and items whose texts are held out, to measure on. */
  heldOutShare: positive.max(0.5).default(0.005),
  /** Most held-out texts of a kind. */
  heldOutTexts: count.default(500),

  /** ρ: what the texts' similarities to each other count beside each text's own place. */
  relations: z.number().min(0).default(0),
  /** Passes over the texts. */
  epochs: positive.default(2),
  /** Tokens of an optimizer step. */
  batchTokens: count.default(8192),
  /** Tokens that are computed at once. */
  runTokens: count.default(2048),
  learningRate: positive.default(1e-3),
  weightDecay: z.number().min(0).default(0.01),
  betas: z.tuple([z.number().min(0).lt(1), z.number().min(0).lt(1)]).default([0.9, 0.999]),
  epsilon: positive.default(1e-8),
  clipNorm: z.number().min(0).default(1),
  warmup: z.number().min(0).default(0.03),
  schedule: z.enum(['cosine', 'linear', 'constant']).default('cosine'),
  /** Steps between two measurements on the held-out texts, and between two checkpoints. */
  evaluateEvery: count.default(200),
  checkpointEvery: count.default(100),
  seed: z.number().int().min(0).default(1),
  /** Threads of ONNX Runtime; null: the processors of the machine. */
  threads: count.nullable().default(null),
})

/** Every setting of a distillation. */
export type DistillSettings = z.output<typeof schema>
export type DistillSettingsInput = z.input<typeof schema>

/**
 * The settings of a distillation: the defaults, over them the file's, over those the overrides; undefined ones don't count.
 *
 * @throws InputError naming the setting and the file at fault
 */
export async function resolveDistillSettings(
  file: string | undefined,
  overrides: { [K in keyof DistillSettingsInput]?: DistillSettingsInput[K] | undefined } = {},
): Promise<DistillSettings> {
  const given = Object.fromEntries(Object.entries(overrides).filter(([, value]) => value !== undefined))
  const parsed = schema.safeParse({ ...(file === undefined ? {} : await readSettings(file)), ...given })
  if (!parsed.success) {
    const faults = parsed.error.issues.map((issue) => `"${issue.path.join('.')}": ${issue.message}`)
    throw new InputError(`Settings of the distillation are wrong: ${faults.join('; ')}.`, { file })
  }
  const { hidden, heads } = parsed.data
  if (hidden % heads !== 0)
    throw new InputError(`Settings of the distillation are wrong: "heads" (${heads}) must divide "hidden" (${hidden}).`)
  return parsed.data
}

async function readSettings(file: string): Promise<object> {
  const failed = (error: unknown): never => {
    throw new InputError(`The config file cannot be read: ${(error as Error).message}`, { file }, error)
  }
  const value: unknown = await readFile(file, 'utf8').then(parse).catch(failed)
  if (value === null || value === undefined) return {}
  if (typeof value !== 'object' || Array.isArray(value))
    throw new InputError('A config file holds settings by name, as in "layers: 2".', { file })
  return value
}
