import { readFile } from 'node:fs/promises'
import { basename, join } from 'node:path'
import { countWords, type EncoderProfile, openEmbedder, wordPieceVocabulary } from '../encoder/index.ts'
import { openSafetensors, writeSafetensors } from '../onnx/index.ts'
import { InputError } from '../support/errors.ts'
import { exists, fileError, writeFileAtomic } from '../support/files.ts'
import type { Progress } from '../support/progress.ts'
import { type Axes, principalAxes } from './axes.ts'
import { type DistillLog, type DistillPaths, differences, distillPaths, readLog, sameFile } from './folder.ts'
import type { DistillSettings } from './settings.ts'
import { type DatasetPart, hashesOf } from './sources.ts'
import { type EmbeddingFile, writeTeacher } from './teacher.ts'
import { collectTexts, countByKind, type DistillText, writeTexts } from './texts.ts'

/** What texts and teacher's embeddings come from. */
export interface StageOptions {
  teacher: EncoderProfile
  /** Text files, one passage a line. */
  files: readonly string[]
  datasets: readonly DatasetPart[]
  /** Parts of data sets of which nothing is learned. */
  exclude: readonly DatasetPart[]
  /** Folder of another distillation from the same teacher and texts, whose texts and teacher's embeddings are taken over. */
  from?: string | undefined
  settings: DistillSettings
  /** The command, for the log. */
  command: string[]
  onProgress?: Progress
  /** Lines for people: a stage's outcome. */
  note?: (text: string) => void
  signal?: AbortSignal
}

/**
 * Stage 1: the texts, and the log of where they come from.
 *
 * @throws InputError where the folder, or the one that texts are taken from, holds a distillation of something else
 */
export async function collected(options: StageOptions, paths: DistillPaths): Promise<DistillLog> {
  const { teacher, files, datasets, exclude, settings, from, note = () => {} } = options
  const now = {
    settings,
    teacher: { id: teacher.id, fingerprint: teacher.fingerprint, dimension: teacher.dimension },
    files: await hashesOf([...files, ...filesOf(datasets)]),
    excluded: await hashesOf(filesOf(exclude)),
    parts: { learned: datasets.map(partName), excluded: exclude.map(partName) },
  }
  const known = await readLog(paths.log)
  if (known !== undefined) {
    const other = differences(known, now, 'all')
    if (other.length > 0)
      throw new InputError(
        `The folder holds a distillation that differs in ${other.join(', ')}. Take another --output, or remove the folder.`,
        { file: paths.log },
      )
    return known
  }
  for (const path of [paths.vocabulary, paths.initial, paths.tokens, paths.teacher, paths.checkpoint])
    if (await exists(path))
      throw new InputError(
        'The folder holds parts of a distillation, but not its distillation.json. Take another --output, or remove the folder.',
        { file: path },
      )
  const texts = from === undefined ? await collectedTexts(options, paths) : await takenOver(from, now, paths)
  if (texts.excluded > 0)
    note(`${texts.excluded} passages, items and questions left out: they have something of what is excluded.`)
  const log: DistillLog = { command: options.command, ...now, texts }
  await writeFileAtomic(paths.log, `${JSON.stringify(log, null, 2)}\n`)
  return log
}

async function collectedTexts(options: StageOptions, paths: DistillPaths): Promise<DistillLog['texts']> {
  const { training, heldOut, excluded } = await collectTexts(options)
  await writeTexts(paths.training, training)
  await writeTexts(paths.heldOut, heldOut)
  return { training: countByKind(training), heldOut: countByKind(heldOut), excluded }
}

/** Texts and teacher's embeddings of another distillation, which has to be one of the same texts and teacher. */
async function takenOver(
  from: string,
  now: Parameters<typeof differences>[1],
  paths: DistillPaths,
): Promise<DistillLog['texts']> {
  const theirs = distillPaths(from)
  const log = await readLog(theirs.log)
  if (log === undefined) throw new InputError('There is no distillation to take texts from.', { file: theirs.log })
  const other = differences(log, now, 'texts')
  if (other.length > 0)
    throw new InputError(
      `Its texts and teacher's embeddings cannot be taken over: it differs in ${other.join(', ')}. Leave --from out.`,
      { file: theirs.log },
    )
  for (const name of ['teacher', 'teacherHeldOut'] as const)
    if (!(await exists(theirs[name])))
      throw new InputError(
        "The teacher's embeddings of the distillation to take them from are not complete. Let its command finish them.",
        { file: theirs[name] },
      )
  for (const name of ['training', 'heldOut', 'teacher', 'teacherHeldOut'] as const)
    await sameFile(theirs[name], paths[name])
  return log.texts
}

/** The files that parts of data sets are read from. */
function filesOf(parts: readonly DatasetPart[]): string[] {
  const folders = [...new Set(parts.map(({ folder }) => folder))]
  return folders.flatMap((folder) => [join(folder, 'items.jsonl'), join(folder, 'questions.jsonl')])
}

function partName({ folder, split }: DatasetPart): string {
  return `${basename(folder)}:${split}`
}

/** Characters beyond the basic ones that the vocabulary has; words with others become [UNK]. */
export const ALPHABET = 200

/** Stage 2: the vocabulary, one token a line. */
export async function learnedVocabulary(
  path: string,
  texts: readonly DistillText[],
  settings: DistillSettings,
): Promise<string[]> {
  if (!(await exists(path))) {
    const counts = countWords(textsOf(texts))
    const vocabulary = wordPieceVocabulary(counts, {
      ...{ size: settings.vocabulary, minFrequency: settings.minFrequency, alphabet: ALPHABET },
    })
    await writeFileAtomic(path, vocabulary.map((token) => `${token}\n`).join(''))
  }
  const text = await readFile(path, 'utf8').catch((error: unknown) => {
    throw fileError(error, 'cannot read the vocabulary', path)
  })
  return text.trimEnd().split('\n')
}

/** Stage 3: the teacher's embeddings of all texts. */
export async function embedWithTeacher(
  { teacher, onProgress = () => {}, signal }: StageOptions,
  paths: DistillPaths,
  training: readonly DistillText[],
  heldOut: readonly DistillText[],
  threads: number,
): Promise<void> {
  if ((await exists(paths.teacher)) && (await exists(paths.teacherHeldOut))) return
  const embedder = await openEmbedder(teacher, { threads })
  try {
    const watched = { onProgress, signal }
    if (!(await exists(paths.teacherHeldOut)))
      await writeTeacher(paths.teacherHeldOut, textsOf(heldOut), embedder, watched)
    if (!(await exists(paths.teacher))) await writeTeacher(paths.teacher, textsOf(training), embedder, watched)
  } finally {
    await embedder.close()
  }
}

/** Texts by which the axes are chosen, at most. */
const AXES_TEXTS = 20_000

/** Stage 4: the axes of the student's space. */
export async function axesOf(path: string, teacher: EmbeddingFile, dimension: number, width: number): Promise<Axes> {
  if (!(await exists(path))) {
    const count = Math.min(AXES_TEXTS, teacher.rows)
    const rows = await teacher.read(Array.from({ length: count }, (_, i) => i))
    const { data } = principalAxes(rows, dimension, width)
    await writeSafetensors(path, new Map([['axes', { dtype: 'float32', shape: [width, dimension], data }]]))
  }
  const data = await (await openSafetensors(path)).readTensor('axes')
  if (data.length !== width * dimension)
    throw new InputError(`The axes are not ${width} of ${dimension} numbers. Remove the file: it is made again.`, {
      file: path,
    })
  return { width, dimension, data }
}

export function textsOf(texts: readonly DistillText[]): string[] {
  return texts.map(({ text }) => text)
}
