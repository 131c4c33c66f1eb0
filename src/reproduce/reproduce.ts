import { readdir } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import { InputError } from '../support/errors.ts'
import { exists, fileError, writeFileAtomic } from '../support/files.ts'
import { lockRun } from '../train/index.ts'
import { type ReproduceConfig, readConfig } from './config.ts'
import { openHashes } from './hashes.ts'
import { type Plan, planOf } from './plan.ts'
import { writeResults } from './results.ts'
import { dryRun, type RunOptions, runSteps, type Step, type Verdict } from './step.ts'
import { writeSweep } from './sweep-table.ts'
import { placesOf, programVersion, type Workspace } from './workspace.ts'

export interface ReproduceOptions extends Omit<RunOptions, 'stamps' | 'hashes'> {
  /** The configuration: YAML or JSON. */
  file: string
  /** Folder of everything; `runs/<name of the configuration>` unless told. */
  output?: string | undefined
  /** Benchmarks to keep, by name; the others are left out as if they were not in the file. */
  only?: readonly string[] | undefined
}

export interface ReproduceResult {
  output: string
  /** The page of results. */
  page: string
  /** Steps that ran and those that were done already, by id. */
  ran: string[]
  skipped: string[]
}

/**
 * Runs a configuration: imports its benchmarks, builds preferences, trains, evaluates, exports and reports, and writes the
 * results of all of it on one page (`results.md`, `.csv`, `.json`; of a sweep `sweep.md`, `.csv`, `.json`). A step that is done
 * and whose inputs are unchanged (content of files, settings, versions) is skipped. Killed at any moment, the same call goes on.
 *
 * @throws InputError for a wrong configuration, a missing file, an output folder that holds something else or is in use, and as
 *   the steps do
 */
export async function reproduce(options: ReproduceOptions): Promise<ReproduceResult> {
  const { config, root } = await resolved(options)
  await requireOwnFolder(root)
  await requireFiles(config)
  const places = placesOf(root)
  const unlock = await lockRun(root, 'working')
  try {
    await writeFileAtomic(places.config, configJson(config))
    const hashes = await openHashes(places.hashes)
    const workspace: Workspace = { config, root, hashes, offline: false, onProgress: options.onProgress ?? (() => {}) }
    const plan = planOf(workspace)
    const ran: string[] = []
    const skipped: string[] = []
    await runSteps(plan.steps, {
      ...options,
      stamps: places.stamps,
      hashes,
      onEvent(event) {
        if (event.type === 'skipped') skipped.push(event.step.id)
        if (event.type === 'end') ran.push(event.step.id)
        options.onEvent?.(event)
      },
    })
    await hashes.save()
    const page = config.sweep === undefined ? await writeResults(workspace, plan) : await writeSweep(workspace, plan)
    return { output: root, page, ran, skipped }
  } finally {
    await unlock()
  }
}

/**
 * What {@link reproduce} would do, step by step, and why. Nothing is written, and nothing goes over the network.
 *
 * @throws InputError as {@link reproduce} does before its first step
 */
export async function planReproduction(
  options: Pick<ReproduceOptions, 'file' | 'output' | 'only'>,
): Promise<{ output: string; steps: { step: Step; verdict: Verdict }[] }> {
  const { config, root } = await resolved(options)
  await requireOwnFolder(root)
  await requireFiles(config)
  const places = placesOf(root)
  const hashes = await openHashes(places.hashes)
  const plan: Plan = planOf({ config, root, hashes, offline: true, onProgress: () => {} })
  return { output: root, steps: await dryRun(plan.steps, places.stamps) }
}

async function resolved({
  file,
  output,
  only,
}: Pick<ReproduceOptions, 'file' | 'output' | 'only'>): Promise<{ config: ReproduceConfig; root: string }> {
  const config = await readConfig(file, only)
  // with fewer benchmarks it is another training, so another folder
  const name = only === undefined ? config.name : `${config.name}.${[...only].sort().join('+')}`
  return { config, root: resolve(output ?? join('runs', name)) }
}

async function requireOwnFolder(root: string): Promise<void> {
  const names = await readdir(root).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return [] as string[]
    throw fileError(error, 'cannot write there', root)
  })
  const content = names.filter((name) => !name.startsWith('lock.json') && !name.startsWith('.reproduce.json.tmp-'))
  if (content.length > 0 && !(await exists(placesOf(root).config)))
    throw new InputError('The folder is not empty and was not made by "canopy reproduce". Choose another --output.', {
      file: root,
    })
}

/** A file that is missing is better known before hours of work than after them. */
async function requireFiles(config: ReproduceConfig): Promise<void> {
  for (const { name, data } of config.benchmarks) {
    const wanted =
      data.kind === 'dataset'
        ? [{ key: 'dataset', path: join(data.folder, 'dataset.json') }]
        : data.parts.flatMap(({ part, files }) => files.map((path) => ({ key: part, path })))
    for (const { key, path } of wanted)
      if (!(await exists(path)))
        throw new InputError(
          `There is no such file, but "${key}" of ${name} in ${config.file} names it. Paths are relative to the configuration's folder.`,
          { file: path },
        )
  }
}

function configJson(config: ReproduceConfig): string {
  const value = { schema: 'canopy-reproduce/1', version: programVersion(), config }
  return `${JSON.stringify(value, null, 2)}\n`
}
