import { readFile } from 'node:fs/promises'
import { basename, dirname, extname, isAbsolute, resolve } from 'node:path'
import { parse as parseYaml } from 'yaml'
import { z } from 'zod'
import { FETCHABLE, FORMATS, type Format } from '../data/index.ts'
import { TABLE_FORMAT_NAMES } from '../hierarchy/index.ts'
import { InputError } from '../support/errors.ts'
import { exists } from '../support/files.ts'
import { resolveSettings, type TrainSettings } from '../train/index.ts'
import { checkedSettings } from './check-settings.ts'
import { type ImportSettings, importSettings } from './import-settings.ts'
import { type Configuration, configurations, sweepSchema } from './sweep.ts'

const name = z.string().regex(/^[A-Za-z0-9][\w.+-]*$/, {
  error: 'expected a name of letters, digits, ".", "_", "+" and "-", as it becomes a folder',
})
const files = z.union(
  [
    z
      .string()
      .min(1)
      .transform((file) => [file]),
    z.array(z.string().min(1)).min(1),
  ],
  {
    error: 'expected a file, or a list of files',
  },
)
const count = z.number().int().positive()

/** What a benchmark is for. `evaluate` alone is a transfer test: nothing of it is trained on, and it stays out of pooled figures. */
const ROLES = ['train+evaluate', 'train', 'evaluate'] as const

const benchmarkSchema = z.strictObject({
  /** Name of its folder and files; the format, or the dataset folder's name, unless told. */
  name: name.exactOptional(),
  /** Native format of `train` and `dev`. */
  format: z.enum(FORMATS).exactOptional(),
  train: files.exactOptional(),
  dev: files.exactOptional(),
  /** Download the benchmark's official files (from the first place that has them, or the one named) in place of `train` and `dev`. */
  fetch: z.union([z.boolean(), z.enum(['official', 'hub'])]).default(false),
  import: importSettings.prefault({}),
  /** A dataset folder that is there already, in place of `format`. */
  dataset: z.string().min(1).exactOptional(),
  role: z.enum(ROLES).default('train+evaluate'),
  /** Whether questions that are marked with a variant (OTT-QA's of several rows) are trained on. */
  variants: z.enum(['keep', 'leave-out']).default('keep'),
  /** Names of the splits in the dataset. */
  splits: z.strictObject({ train: name.default('train'), dev: name.default('dev') }).prefault({}),
})

const randomEncoder = z.strictObject({
  /** Seed of a small BERT with random weights, to try things out. */
  random: z.number().int().min(0),
})

const evaluationSchema = z.strictObject({
  /** Whether nodes carry their item's title; as trained unless told. */
  title: z.boolean().exactOptional(),
  tableFormat: z.enum(TABLE_FORMAT_NAMES).exactOptional(),
  /** Branching of the evaluated trees; as trained unless told. */
  branching: z.number().int().min(2).exactOptional(),
  /** Score what was retrieved beside the gold items, too, where it is known. */
  retrieved: z.boolean().default(true),
  /** Resamples of the bootstrap. */
  resamples: count.default(10_000),
  seed: z.number().int().min(0).default(1),
  allowOverlap: z.boolean().default(false),
  threads: count.exactOptional(),
  tokenBudget: z.number().int().min(16).exactOptional(),
  /** What a picture or a video that cannot be read does: stop, or leave its item out and count it. */
  onError: z.enum(['stop', 'skip']).default('stop'),
})

const configSchema = z.strictObject({
  /** Title of the results; the file's name unless told. */
  name: name.exactOptional(),
  /** Folder, or Hugging Face id; `{ random: 1 }` for a small BERT with random weights. */
  encoder: z.union([z.string().min(1), randomEncoder], {
    error: 'expected a folder, a Hugging Face id, or { random: <seed> }',
  }),
  queryEncoder: z.string().min(1).exactOptional(),
  benchmarks: z.array(benchmarkSchema).min(1),
  /** Most children of a node of the trees that are trained on. */
  branching: z.number().int().min(2).default(2),
  /** Settings of training, or the file that holds them; false: nothing is trained, the frozen encoder alone is measured. */
  train: z
    .union([z.literal(false), z.string().min(1), z.record(z.string(), z.unknown())], {
      error: 'expected settings by name, a file of settings, or false',
    })
    .default({}),
  /** One training run for each. */
  seeds: z.array(z.number().int().min(0)).min(1).default([1]),
  evaluate: evaluationSchema.prefault({}),
  export: z.boolean().default(false),
  report: z.boolean().default(false),
  sweep: sweepSchema.exactOptional(),
})

export type Role = (typeof ROLES)[number]
export type EvaluationSettings = z.output<typeof evaluationSchema>

export interface Benchmark {
  name: string
  role: Role
  splits: { train: string; dev: string }
  variants: 'keep' | 'leave-out'
  /** How the dataset comes about: from files (absolute paths), or it is there. */
  data:
    | {
        kind: 'import'
        format: Format
        /** The splits that the role asks for, with their files; empty where they are fetched. */
        parts: { part: 'train' | 'dev'; files: string[] }[]
        fetch: boolean | 'official' | 'hub'
        settings: ImportSettings
      }
    | { kind: 'dataset'; folder: string }
}

/** A reproduction as its configuration file describes it, paths absolute and defaults filled in. */
export interface ReproduceConfig {
  /** The file. */
  file: string
  name: string
  encoder: string | { random: number }
  queryEncoder: string | undefined
  benchmarks: Benchmark[]
  branching: number
  /** Undefined: nothing is trained. */
  train: TrainSettings | undefined
  seeds: number[]
  evaluate: EvaluationSettings
  export: boolean
  report: boolean
  /** What a `sweep` section asks for, in place of the configuration itself. */
  sweep:
    | { configurations: Configuration[]; axes: string[]; mode: string; evaluate: boolean; seeds: number[] }
    | undefined
}

/**
 * Reads a configuration file, YAML or JSON. Relative paths in it are relative to its folder.
 *
 * @param only names of the benchmarks to keep; all unless told
 * @throws InputError naming the key at fault, an unknown one among them, and the file
 */
export async function readConfig(file: string, only?: readonly string[]): Promise<ReproduceConfig> {
  const parsed = configSchema.safeParse(await readDocument(file))
  if (!parsed.success) throw faultsOf(parsed.error, file)
  const raw = parsed.data
  const folder = dirname(resolve(file))
  const at = (path: string): string => resolve(folder, path)

  const benchmarks = raw.benchmarks.map((benchmark, i) => resolveBenchmark(benchmark, `benchmarks[${i}]`, file, at))
  requireDistinct(
    benchmarks.map(({ name: one }) => one),
    file,
  )
  const chosen = choose(benchmarks, only, file)
  requireOneDevSplit(chosen, file)

  const train = await trainSettings(raw.train, file, at)
  if (train !== undefined && !chosen.some(({ role }) => role !== 'evaluate'))
    throw new InputError(
      'Every benchmark has the role "evaluate", so there is nothing to train on; give one of them "train+evaluate", or set "train: false" to measure the frozen encoder.',
      { file },
    )
  const config: ReproduceConfig = {
    file: resolve(file),
    name: raw.name ?? basename(file, extname(file)),
    encoder: typeof raw.encoder === 'string' ? await encoderName(raw.encoder, at) : raw.encoder,
    queryEncoder: raw.queryEncoder === undefined ? undefined : await encoderName(raw.queryEncoder, at),
    benchmarks: chosen,
    branching: raw.branching,
    train,
    seeds: [...new Set(raw.seeds)],
    evaluate: raw.evaluate,
    export: raw.export,
    report: raw.report,
    sweep: undefined,
  }
  const cut = chosen.find(({ data }) => data.kind === 'import' && data.settings.maxItemTokens !== undefined)
  if (cut !== undefined && typeof config.encoder !== 'string')
    throw new InputError(
      `"import.maxItemTokens" of ${cut.name} counts the encoder's tokens, but the random encoder's vocabulary is made from what is imported; name an encoder.`,
      { file },
    )
  if (raw.sweep === undefined) return config
  const seeds = [...new Set(raw.sweep.seeds ?? config.seeds.slice(0, 1))]
  return { ...config, sweep: { ...(await configurations(raw.sweep, config)), evaluate: raw.sweep.evaluate, seeds } }
}

async function readDocument(file: string): Promise<unknown> {
  let text: string
  try {
    text = await readFile(file, 'utf8')
  } catch (error) {
    throw new InputError(`The configuration cannot be read (${(error as Error).message}).`, { file }, error)
  }
  try {
    return extname(file).toLowerCase() === '.json' ? JSON.parse(text) : parseYaml(text)
  } catch (error) {
    throw new InputError(`Not a valid configuration file: ${(error as Error).message}`, { file }, error)
  }
}

const keyOf = (path: readonly PropertyKey[]): string =>
  path.map((key, i) => (typeof key === 'number' ? `[${key}]` : i === 0 ? String(key) : `.${String(key)}`)).join('')

function faultsOf(error: z.ZodError, file: string): InputError {
  const faults = error.issues.flatMap((issue) => {
    if (issue.code === 'unrecognized_keys')
      return issue.keys.map((key) => `no key is called "${keyOf([...issue.path, key])}"`)
    const key = keyOf(issue.path)
    return [
      key === ''
        ? `expected keys and values, as in "encoder: models/minilm" (${issue.message})`
        : `"${key}": ${issue.message}`,
    ]
  })
  return new InputError(`The configuration is wrong: ${faults.join('; ')}.`, { file })
}

function resolveBenchmark(
  raw: z.output<typeof benchmarkSchema>,
  key: string,
  file: string,
  at: (path: string) => string,
): Benchmark {
  const wrong = (text: string): InputError => new InputError(`The configuration is wrong: "${key}": ${text}.`, { file })
  const { format, dataset, role, splits, variants } = raw
  if ((format === undefined) === (dataset === undefined))
    throw wrong('give either "format" with its files, or "dataset", the folder of a dataset that is there')
  if (dataset !== undefined) {
    const given = [raw.train && 'train', raw.dev && 'dev', raw.fetch && 'fetch'].find((one) => one)
    if (given) throw wrong(`"${given}" belongs to "format"; a "dataset" is there already`)
    const folder = at(dataset)
    return { name: raw.name ?? basename(folder), role, splits, variants, data: { kind: 'dataset', folder } }
  }
  if (splits.train === splits.dev) throw wrong('"splits" gives both splits one name')
  if (raw.fetch !== false) {
    if (raw.train !== undefined || raw.dev !== undefined)
      throw wrong('"fetch" downloads the official files, so "train" and "dev" have no place beside it')
    if (!FETCHABLE.includes(format!)) throw wrong(`there are no official files of ${format} to fetch`)
  }
  const parts = (['train', 'dev'] as const).flatMap((part) => {
    if (!role.includes(part === 'train' ? 'train' : 'evaluate')) return []
    const given = raw[part]
    if (given === undefined && raw.fetch === false)
      throw wrong(
        `the role "${role}" needs "${part}", the files of that split (or "fetch: true", where there are official ones)`,
      )
    return [{ part, files: (given ?? []).map(at) }]
  })
  return {
    ...{ name: raw.name ?? format!, role, splits, variants },
    data: { kind: 'import', format: format!, parts, fetch: raw.fetch, settings: raw.import },
  }
}

function requireDistinct(names: string[], file: string): void {
  const twice = names.find((one, i) => names.indexOf(one) < i)
  if (twice !== undefined)
    throw new InputError(`Two benchmarks are called "${twice}"; give one of them another "name".`, { file })
}

function choose(benchmarks: Benchmark[], only: readonly string[] | undefined, file: string): Benchmark[] {
  if (only === undefined) return benchmarks
  const unknown = only.find((one) => !benchmarks.some(({ name: known }) => known === one))
  if (unknown !== undefined)
    throw new InputError(
      `No benchmark is called "${unknown}"; there are ${benchmarks.map(({ name: known }) => `"${known}"`).join(', ')}.`,
      { file },
    )
  return benchmarks.filter(({ name: known }) => only.includes(known))
}

/** Benchmarks that are evaluated together share one table, and so one name of their split. */
function requireOneDevSplit(benchmarks: Benchmark[], file: string): void {
  for (const together of [evaluated(benchmarks), transferred(benchmarks)]) {
    const other = together.find(({ splits }) => splits.dev !== together[0]!.splits.dev)
    if (other !== undefined)
      throw new InputError(
        `"splits.dev" is "${together[0]!.splits.dev}" for ${together[0]!.name} and "${other.splits.dev}" for ${other.name}; benchmarks in one table need one name for it.`,
        { file },
      )
  }
}

/** The benchmarks of the main table. */
export const evaluated = (benchmarks: readonly Benchmark[]): Benchmark[] =>
  benchmarks.filter(({ role }) => role === 'train+evaluate')
/** The benchmarks that nothing is trained on. */
export const transferred = (benchmarks: readonly Benchmark[]): Benchmark[] =>
  benchmarks.filter(({ role }) => role === 'evaluate')
export const trainedOn = (benchmarks: readonly Benchmark[]): Benchmark[] =>
  benchmarks.filter(({ role }) => role !== 'evaluate')

async function trainSettings(
  raw: false | string | Record<string, unknown>,
  file: string,
  at: (path: string) => string,
): Promise<TrainSettings | undefined> {
  if (raw === false) return undefined
  if (typeof raw === 'string') return resolveSettings(at(raw))
  if (raw.seed !== undefined)
    throw new InputError(
      'The configuration is wrong: "train.seed": seeds stand under "seeds", as in "seeds: [1, 2, 3]".',
      {
        file,
      },
    )
  return checkedSettings(raw, file)
}

/** A folder relative to the configuration where there is one, or where the name can be nothing else; a Hugging Face id otherwise. */
async function encoderName(given: string, at: (path: string) => string): Promise<string> {
  const path = at(given)
  return isAbsolute(given) || given.startsWith('.') || (await exists(path)) ? path : given
}
