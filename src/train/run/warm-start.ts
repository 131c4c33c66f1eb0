import { copyFile } from 'node:fs/promises'
import { basename, join } from 'node:path'
import {
  ADAPTER_FILES,
  type Adapter,
  adapterHash,
  CANOPY_FILE,
  type CanopySettings,
  checkQueryEncoder,
  chosenModules,
  type EncoderProfile,
  encoderModules,
  readAdapter,
  readCanopySettings,
} from '../../encoder/index.ts'
import { readTrainingData, TRAINING_DATA_FILE, type TrainingData, writeTrainingData } from '../../eval/index.ts'
import { InputError } from '../../support/errors.ts'
import { atomicFolder, exists } from '../../support/files.ts'
import type { TrainSettings } from '../settings.ts'
import { runPaths } from './folder.ts'
import type { TrainOptions } from './run.ts'

/** The adapter that a run begins from, in place of matrices that change nothing. */
export interface WarmStart {
  folder: string
  adapter: Adapter
  /** {@link adapterHash} */
  hash: string
  /** What it was trained and selected on, where that is known. */
  trainingData: TrainingData | undefined
}

/**
 * Reads the adapter that the settings name; undefined where they name none. Its modules, ranks and alphas are the run's: what the
 * settings say of them otherwise is refused.
 *
 * @throws InputError for an adapter that cannot be read, that is another encoder's, or that was trained with another query encoder,
 *   and for settings that contradict it
 */
export async function readWarmStart(options: TrainOptions, folder: string): Promise<WarmStart | undefined> {
  const { settings, encoder, queryEncoder } = options
  if (settings.adapter === null) return undefined
  const file = settings.adapter
  await requireStart(settings, folder)
  const adapter = await readAdapter(file, encoder)
  await checkSettings(adapter, settings, encoder)
  const canopy = await readCanopySettings(file)
  if (canopy !== undefined) checkQueryEncoder(canopy, queryEncoder, join(file, CANOPY_FILE))
  return { folder: file, adapter, hash: adapterHash(adapter), trainingData: await trainedOn(file) }
}

/** What an adapter says it was trained on; beside the copy that a run keeps lies what that run itself trained on. */
async function trainedOn(folder: string): Promise<TrainingData | undefined> {
  const isCopy = basename(folder) === basename(runPaths('').start)
  return isCopy && !(await exists(join(folder, TRAINING_DATA_FILE))) ? undefined : readTrainingData(folder)
}

/**
 * Refuses an adapter to begin from that is gone, where the run's folder has the copy that it keeps.
 *
 * @throws InputError naming the copy
 */
export async function requireStart({ adapter }: Pick<TrainSettings, 'adapter'>, output: string): Promise<void> {
  if (adapter === null || (await exists(adapter))) return
  const { start: copy } = runPaths(output)
  if (await exists(copy))
    throw new InputError(
      `There is no such folder. The run keeps a copy of the adapter that it began from: --adapter ${copy}.`,
      { file: adapter },
    )
}

/** Refuses settings that say of the adapter's modules, ranks or alphas what it does not. */
async function checkSettings(
  { targets, rankStabilised = false }: Adapter,
  settings: TrainSettings,
  encoder: EncoderProfile,
): Promise<void> {
  const range = (values: number[]): string => {
    const [least, most] = [Math.min(...values), Math.max(...values)]
    return least === most ? `${least}` : `${least} to ${most}`
  }
  const differs: string[] = []
  for (const name of ['rank', 'alpha'] as const) {
    const stated = settings[name]
    const values = targets.map((target) => target[name])
    if (stated !== null && values.some((value) => value !== stated))
      differs.push(
        `"${name}" is ${stated}, the adapter's ${range(values)}${name === 'alpha' && rankStabilised ? ' (rank-stabilised, as a multiple of 1 / rank)' : ''}`,
      )
  }
  if (settings.targets !== null) {
    const chosen = chosenModules(await encoderModules(encoder), settings.targets).map(({ module }) => module)
    const adapted = new Set(targets.map(({ module }) => module))
    const other = [
      ...chosen.filter((module) => !adapted.has(module)),
      ...[...adapted].filter((m) => !chosen.includes(m)),
    ]
    if (other.length > 0)
      differs.push(
        `"targets" names ${chosen.length} modules, the adapter has ${targets.length}; ${other[0]} is not among both`,
      )
  }
  if (differs.length > 0)
    throw new InputError(
      `Training that begins from an adapter goes on with its modules, ranks and alphas, but the settings say otherwise: ${differs.join('; ')}. Leave these settings out, or train without "adapter" (--adapter).`,
      { file: settings.adapter ?? undefined },
    )
}

/** Says what is worth knowing of an adapter that a run begins from. */
export async function noteWarmStart(
  { folder, adapter, trainingData }: WarmStart,
  { settings, warn = () => {}, note = () => {} }: TrainOptions,
): Promise<void> {
  const ranks = [...new Set(adapter.targets.map(({ rank }) => rank))].sort((a, b) => a - b)
  note(
    `Begins from the adapter ${folder}: ${adapter.targets.length} modules, ${ranks.length === 1 ? 'rank' : 'ranks'} ${ranks.join(', ')}.`,
  )
  if (adapter.leftOut !== undefined)
    warn(
      `${adapter.leftOut.length} adapted ${adapter.leftOut.length === 1 ? 'module' : 'modules'} of ${folder}, which embeddings do not come from, ${adapter.leftOut.length === 1 ? 'is' : 'are'} left out: ${adapter.leftOut.slice(0, 3).join(', ')}.`,
    )
  if (trainingData === undefined)
    warn(
      `Nothing says what the adapter ${folder} was trained on (there is no training-data.json), so the list of this run holds its own data alone, and an overlap with the earlier data will not be found.`,
    )
  const canopy = await readCanopySettings(folder)
  const differs = canopy === undefined ? [] : differentTexts(canopy, settings)
  if (differs.length > 0) warn(`The adapter ${folder} was trained on other texts of nodes: ${differs.join('; ')}.`)
}

function differentTexts(canopy: CanopySettings, { title, tableFormat }: TrainSettings): string[] {
  const differs: string[] = []
  if (canopy.title !== title)
    differs.push(`${canopy.title ? 'with' : 'without'} titles, now ${title ? 'with' : 'without'}`)
  if (canopy.tableFormat !== tableFormat) differs.push(`tables as ${canopy.tableFormat}, now as ${tableFormat}`)
  return differs
}

/** Keeps a copy of the adapter in the run's folder, so that the run can be done again from what it holds. */
export async function keepStart(folder: string, start: WarmStart, encoder: EncoderProfile): Promise<void> {
  const { start: copy } = runPaths(folder)
  const isSame = async (place: string): Promise<boolean> => {
    const found = await readAdapter(place, encoder).catch(() => undefined)
    return found !== undefined && adapterHash(found) === start.hash
  }
  if (await isSame(copy)) return
  await atomicFolder(copy, async (temporary) => {
    for (const name of [...ADAPTER_FILES, CANOPY_FILE])
      if (await exists(join(start.folder, name))) await copyFile(join(start.folder, name), join(temporary, name))
    if (start.trainingData !== undefined) await writeTrainingData(temporary, start.trainingData)
    if (!(await isSame(temporary)))
      throw new InputError('The adapter that the run begins from has changed since it was read. Start again.', {
        file: start.folder,
      })
  })
}
