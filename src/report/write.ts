import { lstat, open } from 'node:fs/promises'
import { dirname, join, resolve } from 'node:path'
import { InputError } from '../support/errors.ts'
import { fileError, writeFileAtomic } from '../support/files.ts'
import type { Progress } from '../support/progress.ts'
import { readBundle } from './bundle.ts'
import { gatherEvidence } from './evidence.ts'
import { type ReportInputs, readInputs } from './inputs.ts'
import { GENERATOR, reportPage } from './page.ts'
import { createThumbnails } from './thumbnails.ts'
import { readTraining } from './training.ts'

export interface ReportOptions {
  /** Folders of training runs and of evaluations, in any order; a run brings its `eval` along. */
  folders: readonly string[]
  /** Folders of the datasets that were evaluated. Those that are not named are looked for where the runs have them, and below `datasets`. */
  datasets?: readonly string[] | undefined
  /** The HTML file. Default: `report.html` in the first folder. */
  output?: string | undefined
  /** Most questions in the viewer; default 500. */
  questions?: number | undefined
  /** Seed by which they are drawn; default "1". */
  seed?: string | undefined
  /** Put small pictures of images and of video segments into the page. */
  images?: boolean | undefined
  onProgress?: Progress | undefined
  signal?: AbortSignal | undefined
}

export interface ReportSummary {
  output: string
  bytes: number
  runs: number
  evaluations: number
  /** Questions in the viewer, and how many there are. */
  questions: number
  questionsOf: number
  items: number
  /** What is missing and why, as sentences. */
  notes: string[]
}

/**
 * Writes one HTML file that needs no network: curves of training runs, figures and tables of evaluations, and a viewer in which
 * refinement can be followed step by step on the items of each question.
 *
 * Whatever is missing is left out and said: a run without evaluation, an evaluation without run, without scores.jsonl or
 * without its dataset. The file is written whole or not at all.
 *
 * @throws InputError naming a folder that is neither run nor evaluation, a damaged file, and a dataset that is not the one evaluated
 */
export async function writeReport(options: ReportOptions): Promise<ReportSummary> {
  const { folders, datasets = [], questions = 500, seed = '1', images = false, onProgress, signal } = options
  if (folders.length === 0) throw new RangeError('A report needs the folder of a run or of an evaluation.')
  const output = options.output ?? join(folders[0]!, 'report.html')
  await requireReportFile(output)
  const inputs = await readInputs(folders)
  const pictures = images ? createThumbnails() : undefined
  const evidence = await gatherEvidence(inputs.evaluations, {
    questions,
    seed,
    datasets,
    guesses: await guessDatasets(inputs),
    thumbnails: pictures?.thumbnails,
    onProgress,
    signal,
  })
  for (const { path, reason } of pictures?.broken() ?? []) evidence.notes.push(`No picture of ${path}: ${reason}`)
  const page = reportPage(inputs, evidence, await readBundle())
  await writeFileAtomic(output, page)
  return {
    output,
    bytes: Buffer.byteLength(page),
    runs: inputs.runs.length,
    evaluations: inputs.evaluations.length,
    questions: evidence.data.questions.length,
    questionsOf: [...evidence.drawn.values()].reduce((sum, { of }) => sum + of, 0),
    items: evidence.data.items.length,
    notes: evidence.notes,
  }
}

/** An older report may be replaced; anything else that stands there is not ours to overwrite. */
async function requireReportFile(output: string): Promise<void> {
  const found = await lstat(output).catch(() => undefined)
  if (found === undefined) return
  if (found.isDirectory()) {
    throw new InputError('The report is one HTML file, but this is a folder; give a file name.', { file: output })
  }
  const handle = await open(output, 'r').catch((error) => {
    throw fileError(error, 'cannot read what is there', output)
  })
  const beginning = Buffer.alloc(256)
  await handle.read(beginning, 0, beginning.length, 0).finally(() => handle.close())
  if (found.size > 0 && !beginning.toString('latin1').includes(`content="${GENERATOR}"`)) {
    throw new InputError('A file that is no report is there; give another name.', { file: output })
  }
}

/** Where the datasets may lie: where the runs (that of an evaluation's own folder, too) had them, else `datasets/<name>`. */
async function guessDatasets({ runs, evaluations }: ReportInputs): Promise<string[]> {
  const parents = await Promise.all(
    evaluations.map(({ folder }) => readTraining(dirname(resolve(folder)), '').catch(() => undefined)),
  )
  return [
    ...[...runs, ...parents].flatMap((run) => run?.data.map(({ folder }) => folder) ?? []),
    ...evaluations.flatMap(({ evaluation }) => evaluation.datasets.map(({ name }) => join('datasets', name))),
  ].filter((folder, i, all) => all.indexOf(folder) === i)
}
