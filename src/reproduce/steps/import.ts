import { basename } from 'node:path'
import { type Fetched, type FetchOptions, fetchBenchmark, IMPORTERS, type ImportSummary } from '../../data/index.ts'
import { nodeTokenCounter } from '../../encoder/index.ts'
import { SEGMENTER_VERSION } from '../../hierarchy/index.ts'
import { atomicFolder, exists } from '../../support/files.ts'
import type { Benchmark } from '../config.ts'
import { flatInputs, type Inputs } from '../stamps.ts'
import type { Step } from '../step.ts'
import { hashOfSplit, placesOf, programVersion, readPair, type Source, type Workspace } from '../workspace.ts'

/** What an import says of itself, by split. */
export type ImportResult = Record<string, Pick<ImportSummary, 'records' | 'questions' | 'gold' | 'dropped'>>

/** The dataset of a benchmark, with the step that imports it where it is not there yet. */
export function sourceOf(workspace: Workspace, benchmark: Benchmark): Source {
  const { data } = benchmark
  if (data.kind === 'dataset') return { benchmark, folder: data.folder, step: undefined }
  const step = importStep(workspace, benchmark, data)
  return { benchmark, folder: step.output, step }
}

function importStep(
  workspace: Workspace,
  benchmark: Benchmark,
  data: Extract<Benchmark['data'], { kind: 'import' }>,
): Step {
  const { name, splits } = benchmark
  const { format, settings, parts, fetch } = data
  const output = placesOf(workspace.root).dataset(name)
  return {
    kind: 'import',
    id: `import ${name}`,
    output,
    after: [],
    settings: {
      format,
      ...flatInputs(settings, 'import.'),
      ...(fetch !== false && { fetch: String(fetch) }),
      ...Object.fromEntries(parts.map(({ part }) => [`splits.${part}`, splits[part]])),
      'version of the toolkit': programVersion(),
      'version of the segmenter': SEGMENTER_VERSION,
    },
    async content() {
      const inputs: Inputs = {}
      for (const { part, files } of parts)
        for (const [i, file] of files.entries())
          inputs[`${part} file ${i + 1}, ${basename(file)}`] = await workspace.hashes.of(file)
      if (settings.maxItemTokens !== undefined) inputs.encoder = (await readPair(workspace)).encoder.fingerprint
      return inputs
    },
    async products() {
      if (!(await exists(output))) return undefined
      const hashes: Inputs = {}
      for (const { part } of parts) hashes[`split ${splits[part]}`] = await hashOfSplit(workspace, output, splits[part])
      return hashes
    },
    async run({ onProgress, signal }): Promise<ImportResult> {
      const { maxRecordMb, maxItemTokens, ...options } = settings
      const cut = maxItemTokens === undefined ? {} : await counting(workspace, maxItemTokens)
      const result: ImportResult = {}
      await atomicFolder(output, async (temporary) => {
        for (const { part, files } of parts) {
          const fetched = fetch === false ? undefined : await fetchFiles(format, part, fetch, { onProgress, signal })
          const { records, questions, gold, dropped } = await IMPORTERS[format]({
            ...options,
            ...cut,
            ...(format === 'jsonl' && { benchmark: options.benchmark ?? name }),
            ...(fetched !== undefined && { licence: options.licence ?? fetched.licence }),
            inputs: fetched?.inputs ?? files,
            output: temporary,
            split: splits[part],
            name,
            ...(maxRecordMb !== undefined && { maxRecordBytes: Math.ceil(maxRecordMb * 1024 * 1024) }),
            onProgress: (event) => onProgress({ ...event, phase: `${name} ${splits[part]}: ${event.phase}` }),
            signal,
          })
          result[splits[part]] = { records, questions, gold, dropped }
        }
      })
      return result
    },
  }
}

function fetchFiles(
  benchmark: string,
  split: 'train' | 'dev',
  fetch: true | 'official' | 'hub',
  options: Pick<FetchOptions, 'onProgress' | 'signal'>,
): Promise<Fetched> {
  return fetchBenchmark({ ...options, benchmark, split, ...(fetch !== true && { place: fetch }) })
}

async function counting(workspace: Workspace, maxItemTokens: number) {
  const { encoder } = await readPair(workspace)
  const { countTokens } = await nodeTokenCounter(encoder)
  return { maxItemTokens, countTokens }
}
