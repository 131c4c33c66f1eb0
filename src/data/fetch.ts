import { mkdir, readFile } from 'node:fs/promises'
import { homedir } from 'node:os'
import { basename, join } from 'node:path'
import { download } from '../support/download.ts'
import { InputError } from '../support/errors.ts'
import { exists, fileError, resolveInside, sha256File, writeFileAtomic } from '../support/files.ts'
import type { Progress } from '../support/progress.ts'
import { type CatalogueEntry, type CatalogueFile, catalogueEntry } from './catalogue.ts'
import { readRecords } from './jsonl.ts'

export interface FetchOptions {
  benchmark: string
  split: string
  /** Where from, of the places that the catalogue has; the first by default. */
  place?: string | undefined
  /** Holds a folder for each benchmark. Default {@link downloadFolder}. */
  folder?: string | undefined
  /** Address of a folder with the files under their host and path, as `wget -x` leaves them. CANOPY_MIRROR by default. */
  mirror?: string | undefined
  onProgress?: Progress | undefined
  signal?: AbortSignal | undefined
}

export interface Fetched {
  /** What an importer is given: files, and folders of files. */
  inputs: string[]
  files: { file: string; sha256: string; fetched: boolean }[]
  licence: string
}

/** Where downloads go: CANOPY_DOWNLOADS, else a folder of this program among the user's caches. */
export function downloadFolder(): string {
  const { CANOPY_DOWNLOADS, XDG_CACHE_HOME, LOCALAPPDATA } = process.env
  if (CANOPY_DOWNLOADS) return CANOPY_DOWNLOADS
  if (process.platform === 'win32' && LOCALAPPDATA) return join(LOCALAPPDATA, 'canopy', 'downloads')
  if (process.platform === 'darwin') return join(homedir(), 'Library', 'Caches', 'canopy', 'downloads')
  return join(XDG_CACHE_HOME || join(homedir(), '.cache'), 'canopy', 'downloads')
}

/** Small files are asked for at once. */
const AT_ONCE = 8

/**
 * Downloads the official files of a benchmark's split. A file that is there already is not fetched again: its bytes are compared
 * with the SHA-256 of the catalogue, or with the one that was noted (`<file>.sha256`) when it came. One that broke off is
 * continued.
 *
 * @throws InputError when the catalogue has no such files, and as {@link download} does
 */
export async function fetchBenchmark(options: FetchOptions): Promise<Fetched> {
  const { benchmark, split, place, signal } = options
  const entry = catalogueEntry(benchmark, split, place)
  const folder = join(options.folder ?? downloadFolder(), benchmark)
  const mirror = options.mirror ?? (process.env.CANOPY_MIRROR || undefined)
  const progress = createMeter(benchmark, options.onProgress)
  const fetchOne = async (file: CatalogueFile, path: string, onBytes?: (bytes: number, total?: number) => void) => {
    const found = await present(file, path)
    if (found !== undefined) return { file: path, sha256: found, fetched: false }
    const sha256 = await download(
      {
        url: mirror === undefined ? file.url : mirrored(file.url, mirror),
        name: `${file.name} of ${benchmark}`,
        authority: 'the catalogue or the server',
        size: file.size,
        ...(file.sha256 !== undefined && { digest: { algorithm: 'sha256', hex: file.sha256 } }),
      },
      path,
      { signal, onBytes },
    )
    await writeFileAtomic(`${path}.sha256`, `${sha256}  ${basename(path)}\n`)
    return { file: path, sha256, fetched: true }
  }
  const files: Fetched['files'] = []
  await mkdir(folder, { recursive: true }).catch((error: unknown) => {
    throw fileError(error, 'cannot make the download folder', folder)
  })
  for (const file of entry.files) {
    signal?.throwIfAborted()
    files.push(await fetchOne(file, resolveInside(folder, file.name), progress(file)))
  }
  const inputs = files.map(({ file }) => file)
  if (entry.perTable !== undefined) {
    const small = await tableFiles(entry, inputs[0]!, folder)
    for (const { folder: name } of entry.perTable) inputs.push(join(folder, name))
    let done = 0
    await inParallel(small, async (file) => {
      signal?.throwIfAborted()
      files.push(await fetchOne(file, resolveInside(folder, file.name)))
      options.onProgress?.({ phase: `downloading tables of ${benchmark}`, done: ++done, total: small.length })
    })
  }
  return { inputs, files, licence: entry.licence }
}

/** The SHA-256 of a file that is there and right; `undefined` when it is to be fetched. */
async function present(file: CatalogueFile, path: string): Promise<string | undefined> {
  if (!(await exists(path))) return undefined
  const noted = /^([0-9a-f]{64}) /.exec(await readFile(`${path}.sha256`, 'utf8').catch(() => ''))?.[1]
  const expected = file.sha256 ?? noted
  if (expected === undefined) return undefined
  return (await sha256File(path)) === expected ? expected : undefined
}

/** The files of the tables that the questions name. */
async function tableFiles(entry: CatalogueEntry, questions: string, folder: string): Promise<CatalogueFile[]> {
  const ids = new Set<string>()
  for await (const { value, line } of readRecords(questions)) {
    const id = (value as { table_id?: unknown } | null)?.table_id
    if (typeof id !== 'string' || id === '') continue
    if (/[\\/]/.test(id) || id.startsWith('.'))
      throw new InputError(`the table id ${JSON.stringify(id)} is no plain name of a file`, { file: questions, line })
    ids.add(id)
  }
  return [...ids].flatMap((id) =>
    (entry.perTable ?? []).map(({ folder: name, url }) => {
      const file = `${name}/${id}.json`
      resolveInside(folder, file)
      return { name: file, url: url.replace('{id}', () => encodeURIComponent(id)) }
    }),
  )
}

/** `https://host/path` as `<mirror>/host/path`. */
function mirrored(url: string, mirror: string): string {
  const { host, pathname } = new URL(url)
  return `${mirror.replace(/\/+$/, '')}/${host}${pathname}`
}

async function inParallel<T>(values: readonly T[], work: (value: T) => Promise<void>): Promise<void> {
  let next = 0
  let failed = false
  const run = async (): Promise<void> => {
    while (next < values.length && !failed) {
      await work(values[next++]!).catch((error: unknown) => {
        failed = true
        throw error
      })
    }
  }
  const results = await Promise.allSettled(Array.from({ length: AT_ONCE }, run))
  const rejected = results.find((result) => result.status === 'rejected')
  if (rejected !== undefined) throw rejected.reason
}

/** Tells progress with the rate and the time that is left. */
function createMeter(benchmark: string, onProgress: Progress | undefined) {
  return (file: CatalogueFile) => {
    let first: { bytes: number; at: number } | undefined
    return (bytes: number, total?: number): void => {
      const now = performance.now()
      first ??= { bytes, at: now }
      const rate = (bytes - first.bytes) / Math.max(0.001, (now - first.at) / 1000)
      const left = total === undefined || rate <= 0 ? undefined : (total - bytes) / rate
      onProgress?.({
        phase: `downloading ${basename(file.name)} of ${benchmark}`,
        done: bytes,
        ...(total !== undefined && { total }),
        note: `${megabytes(bytes)}${total === undefined ? '' : ` of ${megabytes(total)}`} MB, ${megabytes(rate)} MB/s${
          left === undefined ? '' : `, ${duration(left)} left`
        }`,
      })
    }
  }
}

const megabytes = (bytes: number): string => (bytes / 1e6).toFixed(1)

function duration(seconds: number): string {
  const s = Math.ceil(seconds)
  if (s < 60) return `${s} s`
  return s < 3600
    ? `${Math.floor(s / 60)} min ${s % 60} s`
    : `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`
}
