import { copyFile, link, lstat, mkdir, readFile, realpath, rename, rm, stat, symlink } from 'node:fs/promises'
import { basename, dirname, join, relative } from 'node:path'
import { InputError } from '../../support/errors.ts'
import { exists, fileError, temporaryName, writeFileAtomic } from '../../support/files.ts'
import { comesWithPackage, packagedFolder } from '../../support/packaged.ts'
import type { Progress } from '../../support/progress.ts'
import { openedGraph } from '../folder/opened-graph.ts'
import { downloadBlob, type RepositorySource } from './download.ts'
import { notCached } from './errors.ts'
import {
  encoderFiles,
  graphsOf,
  hasSize,
  MAIN_GRAPHS,
  missingFiles,
  QUERY_FOLDER,
  type RepositoryFile,
} from './files.ts'
import { COMMIT, connect, hub, isHubId, isOffline, isRevision, listRepository } from './repository.ts'

export { QUERY_FOLDER }

export interface HubOptions {
  /** Branch, tag or commit of a Hugging Face id that names none itself; `main` by default. */
  revision?: string
  /** Address of the hub; HF_ENDPOINT, else https://huggingface.co. */
  hubUrl?: string
  /** The cache of Hugging Face's libraries; HF_HUB_CACHE, HF_HOME/hub or ~/.cache/huggingface/hub by default. */
  cacheDir?: string
  /** For private and gated models; HF_TOKEN by default. */
  accessToken?: string
  /** Never ask the network; HF_HUB_OFFLINE=1 by default. */
  offline?: boolean
  /** A graph inside `onnx/` that is wanted in place of the weights that are taken otherwise. */
  onnxFile?: string | undefined
  /** Told the bytes of a download. */
  onProgress?: Progress
}

/** An encoder's folder; for a Hugging Face id, with the id and the commit. */
export interface LocatedEncoder {
  folder: string
  id?: string
  revision?: string
}

/** Version of the choice of files, part of the lists of downloaded snapshots: with another choice they are looked at anew. */
const CHOICE = 'canopy-hub/2'

/**
 * Finds an encoder's folder by the name that a user gives: an existing folder, or a Hugging Face id `org/name`, perhaps with
 * `@revision`. A model that is not in the cache of Hugging Face's libraries is downloaded into it (configuration, tokenizer and
 * weights only), in their layout, so that Python finds it too. What lies there whole is used without any network access; a
 * branch or tag then stays at the commit that it had when it was fetched.
 *
 * @throws InputError when the name is neither, when the model does not exist or cannot be reached, and when a download breaks off
 *   (the next call goes on from there) or brings other bytes than the hub announced
 */
export async function locateEncoder(name: string, options: HubOptions = {}): Promise<LocatedEncoder> {
  requireName(name)
  if (await exists(name)) return { folder: name }
  const { id, revision } = await parseName(name, options.revision)
  const repository = join(options.cacheDir ?? (await hub()).getHFHubCachePath(), `models--${id.replace('/', '--')}`)
  const cached = await findCached(repository, revision, options.onnxFile)
  if (cached.folder !== undefined) {
    await unlinkOnnx(cached.folder, options.onnxFile)
    return { folder: cached.folder, id, revision: cached.commit }
  }
  if (options.offline ?? isOffline()) throw notCached(id, revision, repository, cached.missing)
  const source = await connect(id, revision, options)
  const folder = await download(source, repository, options)
  if (revision !== source.commit) await writeReference(repository, revision, source.commit)
  return { folder, id, revision: source.commit }
}

/**
 * An encoder's config.json, by the name that a user gives: the one of an existing folder, the file itself, or that of a Hugging Face
 * id, of which nothing else is downloaded.
 *
 * @throws InputError as {@link locateEncoder} does, and for a model without one
 */
export async function locateConfiguration(name: string, options: Omit<HubOptions, 'onnxFile'> = {}): Promise<string> {
  const path = 'config.json'
  requireName(name)
  const given = await stat(name).catch(() => undefined)
  if (given !== undefined) return given.isDirectory() ? join(name, path) : name
  const { id, revision } = await parseName(name, options.revision)
  const repository = join(options.cacheDir ?? (await hub()).getHFHubCachePath(), `models--${id.replace('/', '--')}`)
  const { commit } = await findCached(repository, revision, undefined)
  const known = join(repository, 'snapshots', commit, path)
  if (commit !== '' && (await exists(known))) return known
  if (options.offline ?? isOffline()) throw notCached(id, revision, repository, [])
  const source = await connect(id, revision, options)
  const file = (await listRepository(source)).find((entry) => entry.path === path)
  if (file === undefined)
    throw new InputError(`The model ${id}@${revision} has no ${path}, so it is not known what it is.`)
  const snapshot = join(repository, 'snapshots', source.commit)
  try {
    await fetchFile(source, file, { repository, snapshot })
  } catch (error) {
    throw fileError(error, `cannot store ${id} in the cache`, repository)
  }
  if (revision !== source.commit) await writeReference(repository, revision, source.commit)
  return join(snapshot, path)
}

/**
 * Programs in JavaScript give whatever a variable has.
 *
 * @throws InputError for what is no text, or an empty one
 */
export function requireName(name: unknown): asserts name is string {
  if (typeof name !== 'string' || name === '')
    throw new InputError('Give the folder of an exported encoder or a Hugging Face id.')
}

/** `org/name[@revision]`, as the hub allows them. */
async function parseName(name: string, otherwise = 'main'): Promise<{ id: string; revision: string }> {
  const packaged = await packagedFolder(name)
  if (packaged !== undefined) throw new InputError(comesWithPackage(name, packaged))
  const at = name.indexOf('@')
  const id = at === -1 ? name : name.slice(0, at)
  const revision = at === -1 ? otherwise : name.slice(at + 1)
  if (!isHubId(id))
    throw new InputError(
      `${JSON.stringify(name)}: there is no folder of that name, and no Hugging Face id is written like that (org/name, perhaps with @revision). Give the folder that holds config.json and the weights, or an id such as sentence-transformers/all-MiniLM-L6-v2.`,
    )
  if (!isRevision(revision))
    throw new InputError(
      `${JSON.stringify(revision)} is no revision of ${id}: give a branch, a tag or a commit of 40 digits after the @.`,
    )
  // a mistyped path of two parts looks like an id; nothing goes over the network for it
  const parent = id.split('/')[0] as string
  if (at === -1 && (await exists(parent)))
    throw new InputError(
      `The folder ${parent} has no ${id.slice(parent.length + 1)} in it. If you mean the Hugging Face model ${id}, write ${id}@main.`,
    )
  return { id, revision }
}

interface Cached {
  commit: string
  /** Absent when files are missing. */
  folder: string | undefined
  missing: string[]
}

/** The list of files that a download leaves beside its snapshot. */
interface SnapshotList {
  choice: string
  files: { path: string; size: number }[]
}

const listPath = (repository: string, commit: string, onnxFile: string | undefined): string =>
  join(repository, '.canopy', `${commit}${onnxFile === undefined ? '' : `.${basename(onnxFile)}`}.json`)

/** The snapshot of a revision, if all its files are there: those of the list that a download left, else what an encoder needs. */
async function findCached(repository: string, revision: string, onnxFile: string | undefined): Promise<Cached> {
  const ref = join(repository, 'refs', ...revision.split('/'))
  const commit = COMMIT.test(revision) ? revision : (await readFile(ref, 'utf8').catch(() => '')).trim()
  const folder = join(repository, 'snapshots', commit)
  if (!COMMIT.test(commit) || !(await exists(folder))) return { commit, folder: undefined, missing: [] }
  const list = await readList(listPath(repository, commit, onnxFile))
  if (list === undefined) {
    const missing = await missingFiles(folder, onnxFile)
    return { commit, folder: missing.length === 0 ? folder : undefined, missing }
  }
  const missing: string[] = []
  for (const { path, size } of list.files) if (!(await hasSize(join(folder, path), size))) missing.push(path)
  return { commit, folder: missing.length === 0 ? folder : undefined, missing }
}

async function readList(file: string): Promise<SnapshotList | undefined> {
  try {
    const list = JSON.parse(await readFile(file, 'utf8')) as SnapshotList
    const whole = list.files.every(({ path, size }) => typeof path === 'string' && typeof size === 'number')
    return list.choice === CHOICE && whole ? list : undefined
  } catch {
    return undefined
  }
}

/** Downloads what is missing of a commit and links it together. */
async function download(
  source: RepositorySource,
  repository: string,
  { onnxFile, onProgress }: Pick<HubOptions, 'onnxFile' | 'onProgress'>,
): Promise<string> {
  const { id, commit } = source
  const listed = await listRepository(source)
  const folder = join(repository, 'snapshots', commit)
  const opened =
    onnxFile === undefined ? await fetchOpened(source, listed, { repository, snapshot: folder }) : undefined
  const files = encoderFiles(id, listed, QUERY_FOLDER, onnxFile, opened)
  const phase = `downloading ${id}`
  const total = files.reduce((sum, { size }) => sum + size, 0)
  let before = 0
  try {
    for (const file of files) {
      const onBytes = (bytes: number): void => onProgress?.({ phase, done: before + bytes, total, note: file.path })
      await fetchFile(source, file, { repository, snapshot: folder, onBytes })
      before += file.size
    }
  } catch (error) {
    throw fileError(error, `cannot store ${id} in the cache`, repository)
  }
  await unlinkOnnx(folder, onnxFile)
  const list: SnapshotList = { choice: CHOICE, files: files.map(({ path, size }) => ({ path, size })) }
  await writeFileAtomic(listPath(repository, commit, onnxFile), `${JSON.stringify(list)}\n`)
  return folder
}

/** The graph that an exported encoder's repository names as the one to open; its canopy.json is fetched for it. */
async function fetchOpened(
  source: RepositorySource,
  listed: readonly RepositoryFile[],
  to: { repository: string; snapshot: string },
): Promise<string | undefined> {
  const file = listed.find(({ path }) => path === 'canopy.json')
  if (file === undefined) return undefined
  try {
    await fetchFile(source, file, to)
  } catch (error) {
    throw fileError(error, `cannot store ${source.id} in the cache`, to.repository)
  }
  return openedGraph(to.snapshot)
}

/** Downloads a file, unless it is there, and links it into a snapshot. */
async function fetchFile(
  source: RepositorySource,
  file: RepositoryFile,
  to: { repository: string; snapshot: string; onBytes?: (bytes: number) => void },
): Promise<void> {
  const { repository, snapshot, onBytes = () => {} } = to
  const blob = join(repository, 'blobs', file.hash)
  if (!(await hasSize(blob, file.size))) await downloadBlob(source, file, blob, onBytes)
  onBytes(file.size)
  const link = join(snapshot, file.path)
  if (!(await hasSize(link, file.size))) await linkBlob(blob, link)
}

const writeReference = (repository: string, revision: string, commit: string): Promise<void> =>
  writeFileAtomic(join(repository, 'refs', ...revision.split('/')), commit)

/** Puts a blob into a snapshot: a relative link, or a copy where the platform allows no links. */
async function linkBlob(blob: string, path: string): Promise<void> {
  await mkdir(dirname(path), { recursive: true })
  const temporary = temporaryName(path)
  await symlink(relative(dirname(path), blob), temporary).catch(() => copyFile(blob, temporary))
  await rename(temporary, path)
}

/**
 * ONNX Runtime looks for a graph's external data beside the graph's real file, and refuses links out of that folder. Where there is
 * such data, graph and data become real files of the snapshot (hard links: no space is taken).
 */
async function unlinkOnnx(snapshot: string, onnxFile?: string): Promise<void> {
  const standard = MAIN_GRAPHS.flatMap(graphsOf)
  const main = onnxFile ?? (await openedGraph(snapshot))
  const own = main === undefined ? standard : graphsOf(main)
  const graphs = [
    ...own.map((name) => join(snapshot, 'onnx', name)),
    ...standard.map((name) => join(snapshot, QUERY_FOLDER, 'onnx', name)),
  ]
  for (const graph of graphs) {
    const data: string[] = []
    for (const end of ['_data', '.data']) if (await exists(`${graph}${end}`)) data.push(`${graph}${end}`)
    for (let i = 1; await exists(`${graph}_data_${i}`); i++) data.push(`${graph}_data_${i}`)
    if (data.length === 0) continue
    for (const file of [graph, ...data]) {
      if (!(await lstat(file)).isSymbolicLink()) continue
      const temporary = temporaryName(file)
      try {
        const blob = await realpath(file)
        await link(blob, temporary).catch(() => copyFile(blob, temporary))
        await rename(temporary, file)
      } catch (error) {
        await rm(temporary, { force: true }).catch(() => {})
        throw fileError(error, 'cannot replace the link by its file, which ONNX Runtime needs', file)
      }
    }
  }
}
