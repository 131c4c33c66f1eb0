import { dirname, join, relative, resolve } from 'node:path'
import {
  type CanopySettings,
  type EmbedderOptions,
  openPair,
  type PairOptions,
  readEncoderPair,
  settingsDrift,
} from '../encoder/index.ts'
import {
  type EvaluateOptions,
  type EvaluationOptions,
  type EvaluationResult,
  evaluate,
  readTrainingData,
  type ValidationData,
} from '../eval/index.ts'
import { ended, InputError } from '../support/errors.ts'
import { exists } from '../support/files.ts'
import { given } from '../support/given.ts'
import { heldOutParts } from '../train/index.ts'
import { PAIR_OPTIONS } from './pair-options.ts'

/** What a margin is picked on for `minRecall`, in place of the validation part of the adapter's run. */
export interface ValidationSplit {
  split: string
  /** Dataset folders; those that are evaluated by default. */
  datasets?: readonly string[] | undefined
}

export interface EvaluateEncoderOptions
  extends Omit<PairOptions, 'onProgress'>,
    Omit<EvaluationOptions, 'margin' | 'validation'>,
    Pick<EvaluateOptions, 'allowOverlap' | 'onError'>,
    Pick<EmbedderOptions, 'threads' | 'device' | 'precision' | 'tokenBudget' | 'cache' | 'store' | 'share' | 'warn'> {
  /** Folder or Hugging Face id of the node encoder; with `adapter`, of what that was trained over. */
  encoder: string
  /** Start every node's text with its item's title; as trained by default. */
  title?: boolean | undefined
  /** A margin of refinement that is measured beside 0; the exported one by default. */
  margin?: number | undefined
  validation?: ValidationSplit | undefined
}

export interface EncoderEvaluation extends EvaluationResult {
  /** Tokens that had to be embedded, and those that were computed for it: fewer where nodes share what they begin with. */
  tokens: { total: number; computed: number }
}

/**
 * Measures a node encoder on a split as `canopy evaluate` does: frozen beside fine-tuned, beside the controls; see `evaluate`. With an
 * adapter of a run, evaluations of the split are counted in the run.
 *
 * @param options.warn told what differs from how the encoder was trained, in sentences
 * @throws InputError for encoders that do not belong together or cannot be read, and as `evaluate` does
 */
export async function evaluateEncoder(options: EvaluateEncoderOptions): Promise<EncoderEvaluation> {
  const { encoder: name, adapter, datasets, split, output, onProgress, warn = () => {} } = options
  const pair = await readEncoderPair(name, given(options, PAIR_OPTIONS))
  for (const difference of settingsDrift(pair.settings)) warn(`${difference}.`)
  const trained: Partial<CanopySettings> = pair.trained ? pair.settings : {}
  const { title, tableFormat, branching } = {
    ...pair.settings,
    ...given(options, ['title', 'tableFormat', 'branching']),
  }
  if (trained.title !== undefined && trained.title !== title)
    warn(`the encoder was trained ${trained.title ? 'with' : 'without'} titles, and is evaluated otherwise.`)
  if (trained.tableFormat !== undefined && trained.tableFormat !== tableFormat)
    warn(`the encoder was trained on tables as ${trained.tableFormat}, and is evaluated on ${tableFormat}.`)
  if (trained.branching !== undefined && trained.branching !== branching)
    warn(`the encoder was trained on trees of branching ${trained.branching}, and is evaluated on ${branching}.`)
  const run = adapter === undefined ? undefined : await runOf(adapter)
  const validation = await validationOf(options, run)

  const { query, node, close } = await openPair(pair, {
    ...given(options, ['threads', 'device', 'precision', 'tokenBudget', 'cache', 'store', 'share']),
    warn,
  })
  try {
    const { reader } = node
    const special = reader.count('')
    const fineTuned = node === query ? undefined : node
    const result = await evaluate({
      ...given(options, ['seed', 'resamples', 'retrieved', 'minRecall', 'signal']),
      ...{ datasets, split, title, tableFormat, branching, output, validation, onProgress },
      ...{ query, frozen: query, fineTuned },
      margin: marginOf(options, trained),
      names: {
        query: pair.query.id,
        frozen: pair.query.id,
        fineTuned: adapter === undefined ? pair.encoder.id : `${pair.encoder.id} with the adapter ${adapter}`,
      },
      countTokens: (text) => reader.count(text) - special,
      tokenizer: pair.encoder.id,
      trainingData: fineTuned === undefined ? undefined : await readTrainingData(adapter ?? name),
      allowOverlap: options.allowOverlap,
      onError: options.onError,
      looksFile: options.looksFile ?? join(run ?? dirname(resolve(output)), 'evaluations.jsonl'),
    })
    const counts = [query, ...(fineTuned === undefined ? [] : [fineTuned])].map(({ counts }) => counts)
    const sum = (of: 'tokens' | 'computedTokens'): number => counts.reduce((total, count) => total + count[of], 0)
    return { ...result, tokens: { total: sum('tokens'), computed: sum('computedTokens') } }
  } finally {
    await close()
  }
}

/** The margin that is stated; none where one is picked; else the exported one. */
function marginOf(
  { margin, minRecall }: EvaluateEncoderOptions,
  { margin: exported = 0 }: Partial<CanopySettings>,
): EvaluationOptions['margin'] {
  if (margin !== undefined) return { value: margin, origin: 'stated' }
  return minRecall === undefined && exported > 0 ? { value: exported, origin: 'canopy.json' } : undefined
}

/** The training run that an adapter lies in. */
async function runOf(adapter: string): Promise<string | undefined> {
  const run = dirname(resolve(adapter))
  return (await exists(join(run, 'config.json'))) ? run : undefined
}

async function validationOf(
  { minRecall, validation, datasets }: EvaluateEncoderOptions,
  run: string | undefined,
): Promise<ValidationData | undefined> {
  if (minRecall === undefined) return undefined
  if (validation !== undefined) return validationSplit(validation, datasets)
  if (run === undefined) return undefined
  const held = await heldOutParts(run).catch((error: unknown) => {
    if (!(error instanceof InputError)) throw error
    throw new InputError(
      `${ended(error.message)} Its validation part was to pick a margin on; name other data (--validation-split, --validation-dataset, in a program "validation").`,
      {},
      error,
    )
  })
  const parts = held.filter(({ only }) => only.size > 0)
  return { name: `the validation part of ${relative('.', run) || run}`, selectedOn: true, parts }
}

/** A split to pick a margin on, of the datasets named or else the evaluated ones. */
export function validationSplit({ split, datasets }: ValidationSplit, evaluated: readonly string[]): ValidationData {
  const folders = datasets ?? evaluated
  return { name: `the split "${split}" of ${folders.join(', ')}`, parts: folders.map((folder) => ({ folder, split })) }
}
