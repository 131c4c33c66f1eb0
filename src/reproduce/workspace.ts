import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { openDataset, splitHash } from '../data/index.ts'
import { type EncoderPair, readEncoderPair } from '../encoder/index.ts'
import { RENDERING_VERSION, SEGMENTER_VERSION } from '../hierarchy/index.ts'
import type { Progress } from '../support/progress.ts'
import { statedSettings, type TrainSettings } from '../train/index.ts'
import type { Benchmark, ReproduceConfig } from './config.ts'
import type { ContentHashes } from './hashes.ts'
import type { Inputs } from './stamps.ts'
import type { Step } from './step.ts'

/** The places inside the folder of a reproduction. */
export const placesOf = (root: string) => ({
  config: join(root, 'reproduce.json'),
  stamps: join(root, 'stamps'),
  hashes: join(root, 'stamps', 'hashes.json'),
  encoder: join(root, 'random-bert'),
  dataset: (name: string) => join(root, 'datasets', name),
  preferences: (name: string, branching: number) => join(root, 'preferences', `${name}.b${branching}.jsonl`),
  /** Embeddings that several evaluations have in common. */
  cache: join(root, 'cache'),
  /** Log in which evaluations of held-out splits are counted. */
  looks: join(root, 'evaluations.jsonl'),
  export: join(root, 'export'),
  report: join(root, 'report.html'),
})

/** What every step needs. */
export interface Workspace {
  config: ReproduceConfig
  root: string
  hashes: ContentHashes
  /** Never ask the network. */
  offline: boolean
  onProgress: Progress
}

/** The toolkit's version. */
export function programVersion(): string {
  const file = new URL('../../package.json', import.meta.url)
  return (JSON.parse(readFileSync(file, 'utf8')) as { version: string }).version
}

/** Versions that every output depends on. */
export const versionInputs = (): Inputs => ({
  'version of the toolkit': programVersion(),
  'version of the rendering': RENDERING_VERSION,
  'version of the segmenter': SEGMENTER_VERSION,
})

/** A dataset of a benchmark: of a step that imports it, or there already. */
export interface Source {
  benchmark: Benchmark
  folder: string
  step: Step | undefined
}

/** The split's questions and the items that they name, as one hash; read once for each content of the dataset's files. */
export async function hashOfSplit({ hashes }: Workspace, folder: string, split: string): Promise<string> {
  const files = ['dataset.json', 'items.jsonl', 'questions.jsonl'].map((name) => join(folder, name))
  const contents = await Promise.all(files.map((file) => hashes.of(file)))
  return hashes.derived(`split ${split}`, contents, async () => {
    const dataset = await openDataset(folder)
    try {
      return await splitHash(dataset, split)
    } finally {
      await dataset.close()
    }
  })
}

/**
 * f0 and the node encoder, with the adapter of a run where one is named.
 *
 * @param settings what states instructions and dimensions; those of the configuration where absent, and the adapter's own where
 *   there is one
 */
export function readPair(
  workspace: Workspace,
  adapter?: string,
  settings: TrainSettings | undefined = workspace.config.train,
): Promise<EncoderPair> {
  const { config, root, offline, onProgress } = workspace
  const encoder = typeof config.encoder === 'string' ? config.encoder : placesOf(root).encoder
  return readEncoderPair(encoder, {
    ...{ adapter, queryEncoder: config.queryEncoder, onProgress },
    ...(settings !== undefined && (adapter ?? settings.adapter) === settings.adapter && statedSettings(settings)),
    ...(offline && { offline }),
  })
}

/** Fingerprints of f0 and of the node encoder without an adapter. */
export async function encoderInputs(workspace: Workspace): Promise<Inputs> {
  const { encoder, query } = await readPair(workspace)
  return { encoder: encoder.fingerprint, 'query encoder': query.fingerprint }
}
