import { readFileSync } from 'node:fs'
import { dirname, resolve } from 'node:path'
import {
  type CanopySettings,
  changesNothing,
  type EmbedderOptions,
  type PairOptions,
  readEncoderPair,
} from '../encoder/index.ts'
import { readTrainingData } from '../eval/index.ts'
import {
  type CheckInstance,
  checkInstances,
  type ExportedEncoder,
  type ExportOptions,
  exportEncoder,
  measuredTable,
} from '../export/index.ts'
import { InputError } from '../support/errors.ts'
import { given } from '../support/given.ts'
import { heldOutInstances, isRun } from '../train/index.ts'
import { PAIR_OPTIONS } from './pair-options.ts'

export interface ExportAdapterOptions
  extends Omit<PairOptions, 'onProgress'>,
    Omit<
      ExportOptions,
      | 'encoder'
      | 'adapter'
      | 'queryEncoder'
      | 'settings'
      | 'sources'
      | 'instances'
      | 'trainingData'
      | 'table'
      | 'version'
    >,
    Pick<EmbedderOptions, 'warn'> {
  /** Folder or Hugging Face id of the encoder; with `adapter`, of what that was trained over. */
  encoder: string
  /** Without an adapter that says so: how nodes become text; with titles and as Markdown by default. */
  title?: boolean | undefined
  tableFormat?: CanopySettings['tableFormat'] | undefined
  /** How far below its parent a region may score and still be entered, for whoever opens the folder; as trained by default, else 0. */
  margin?: number | undefined
  /** Gold items that the graphs are compared on; the held-out ones of the adapter's run by default. */
  check?: { dataset?: string | undefined; split?: string | undefined; items?: number | undefined } | undefined
}

const CHECK_ITEMS = 200
const NAME_DATA = 'Name a data set with gold to compare decisions, too (--check-dataset, in a program "check").'

/**
 * Exports an encoder as `canopy export` does: merges its adapter, writes the ONNX folder, and compares it with what was trained, on
 * held-out items; see `exportEncoder`.
 *
 * @throws InputError for encoders that do not belong together or cannot be read, and as `exportEncoder` does
 * @throws RangeError for a margin that is no number from 0 on, and as `exportEncoder` does
 */
export async function exportAdapter(options: ExportAdapterOptions): Promise<ExportedEncoder> {
  const { encoder, adapter, title, tableFormat, margin, check, warn = () => {}, ...rest } = options
  // JSON has none but finite numbers: whoever opens the folder could not read it
  if (margin !== undefined && !(margin >= 0 && margin < Number.POSITIVE_INFINITY))
    throw new RangeError(`"margin" has to be a number, 0 or more, not ${margin}`)
  const pair = await readEncoderPair(encoder, given(options, PAIR_OPTIONS))
  if (pair.adapter !== undefined && changesNothing(pair.adapter))
    warn(
      `The adapter ${adapter} changes nothing: no step of its run did better than the frozen encoder. What is exported is the encoder as it was.`,
    )
  const run = adapter === undefined ? undefined : dirname(resolve(adapter))
  const settings = {
    ...pair.settings,
    ...(!pair.trained && { title: title ?? true, tableFormat: tableFormat ?? 'markdown' }),
    ...(margin !== undefined && { margin }),
  }
  return exportEncoder({
    ...rest,
    ...{ encoder: pair.encoder, adapter: pair.adapter, queryEncoder: pair.query, settings },
    sources: adapter === undefined ? [] : [adapter],
    instances: await instancesOf(check, adapter, settings.branching, warn),
    trainingData: adapter === undefined ? undefined : await readTrainingData(adapter),
    table: run === undefined ? undefined : await measuredTable(run),
    version: version(),
  })
}

/** What the export is compared on: items of the data set that is named, else of the run, else, with a warning, none. */
async function instancesOf(
  { dataset, split = 'dev', items = CHECK_ITEMS }: NonNullable<ExportAdapterOptions['check']> = {},
  adapter: string | undefined,
  branching: number,
  warn: (message: string) => void,
): Promise<CheckInstance[]> {
  if (dataset !== undefined) return checkInstances(dataset, split, branching, items)
  if (adapter === undefined) return []
  const run = dirname(resolve(adapter))
  try {
    return await heldOutInstances(run, branching, items)
  } catch (error) {
    if (!(error instanceof InputError)) throw error
    if (!(await isRun(run))) {
      warn(
        `The adapter in ${adapter} comes from no run of this toolkit, so that there are no held-out items; comparing on built-in texts only. ${NAME_DATA}`,
      )
      return []
    }
    warn(`The run's held-out items cannot be read (${error.message}); comparing on built-in texts only. ${NAME_DATA}`)
    return []
  }
}

const version = (): string =>
  (JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as { version: string }).version
