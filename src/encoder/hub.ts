import { copyFile, link, lstat, mkdir, readFile, realpath, rename, rm, symlink } from 'node:fs/promises'
import { basename, dirname, join, relative } from 'node:path'
import type { HubApiError } from '@huggingface/hub'
import { reasonOf } from '../support/download.ts'
import { InputError } from '../support/errors.ts'
import { exists, fileError, temporaryName, writeFileAtomic } from '../support/files.ts'
import type { Progress } from '../support/progress.ts'
import { downloadBlob, type RepositorySource } from './hub-download.ts'
import { encoderFiles, hasSize, missingFiles, type RepositoryFile } from './hub-files.ts'

/** Folder inside an export that holds f0, when it was exported with its query encoder. */
export const QUERY_FOLDER = 'query-encoder'

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
const CHOICE = 'canopy-hub/1'

const COMMIT = /^[0-9a-f]{40}$/

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
  if (name !== '' && (await exists(name))) return { folder: name }
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
  if (revision !== source.commit) await writeFileAtomic(join(repository, 'refs', ...revision.split('/')), source.commit)
  return { folder, id, revision: source.commit }
}

/** Loaded only where a model is named by its id. */
const hub = () => import('@huggingface/hub')

/** `org/name[@revision]`, as the hub allows them. */
async function parseName(name: string, otherwise = 'main'): Promise<{ id: string; revision: string }> {
  const at = name.indexOf('@')
  const id = at === -1 ? name : name.slice(0, at)
  const revision = at === -1 ? otherwise : name.slice(at + 1)
  const isId = /^\w[\w.-]*\/\w[\w.-]*$/.test(id) && !/--|\.\.|[.-](\/|$)|\.git$/.test(id) && id.length <= 96
  if (!isId)
    throw new InputError(
      `${JSON.stringify(name)}: there is no folder of that name, and no Hugging Face id is written like that (org/name, perhaps with @revision). Give the folder that holds config.json and the weights, or an id such as sentence-transformers/all-MiniLM-L6-v2.`,
    )
  if (!/^\w[\w.+-]*(\/\w[\w.+-]*)*$/.test(revision) || revision.includes('..'))
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

/** Asks the hub which commit a revision is. */
async function connect(id: string, revision: string, options: HubOptions): Promise<RepositorySource> {
  const { HUB_URL, modelInfo } = await hub()
  const hubUrl = (options.hubUrl ?? (process.env.HF_ENDPOINT || HUB_URL)).replace(/\/+$/, '')
  if (!/^https?:$/.test(URL.canParse(hubUrl) ? new URL(hubUrl).protocol : ''))
    throw new InputError(
      `${JSON.stringify(hubUrl)} is no address of a hub; HF_ENDPOINT should be like https://huggingface.co.`,
    )
  const accessToken = options.accessToken ?? (process.env.HF_TOKEN || undefined)
  if (accessToken !== undefined && !accessToken.startsWith('hf_'))
    throw new InputError('The access token (HF_TOKEN) is none of Hugging Face: those start with "hf_".')
  const info = await modelInfo({
    name: id,
    revision,
    additionalFields: ['sha'],
    ...request({ hubUrl, accessToken }),
  }).catch((error: unknown) => {
    throw hubError(error, { id, revision, hubUrl, accessToken })
  })
  if (typeof info.sha !== 'string' || !COMMIT.test(info.sha))
    throw new InputError(`${hubUrl} names no commit for ${id}@${revision}; is it a Hugging Face hub?`)
  return { id, commit: info.sha, hubUrl, accessToken }
}

/** What every call of the hub's interface is given. The access token goes to no other host, whatever a listing links to. */
function request(source: Pick<RepositorySource, 'hubUrl' | 'accessToken'>) {
  const { origin } = new URL(source.hubUrl)
  const guarded: typeof fetch = async (input, init) => {
    const url = new URL(input instanceof Request ? input.url : input)
    if (url.origin !== origin)
      throw new InputError(`The hub ${source.hubUrl} sends its caller on to ${url.origin}, which is not followed.`)
    return fetch(input, init)
  }
  const { hubUrl, accessToken } = source
  return { hubUrl, fetch: guarded, ...(accessToken === undefined ? {} : { accessToken }) }
}

const MOST_FILES = 100_000

/** Downloads what is missing of a commit and links it together. */
async function download(
  source: RepositorySource,
  repository: string,
  { onnxFile, onProgress }: Pick<HubOptions, 'onnxFile' | 'onProgress'>,
): Promise<string> {
  const { id, commit } = source
  const files = encoderFiles(id, await listRepository(source), QUERY_FOLDER, onnxFile)
  const folder = join(repository, 'snapshots', commit)
  const phase = `downloading ${id}`
  const total = files.reduce((sum, { size }) => sum + size, 0)
  let before = 0
  try {
    for (const file of files) {
      const blob = join(repository, 'blobs', file.hash)
      if (!(await hasSize(blob, file.size)))
        await downloadBlob(source, file, blob, (bytes) =>
          onProgress?.({ phase, done: before + bytes, total, note: file.path }),
        )
      before += file.size
      onProgress?.({ phase, done: before, total, note: file.path })
      if (!(await hasSize(join(folder, file.path), file.size))) await linkBlob(blob, join(folder, file.path))
    }
  } catch (error) {
    throw fileError(error, `cannot store ${id} in the cache`, repository)
  }
  await unlinkOnnx(folder, onnxFile)
  const list: SnapshotList = { choice: CHOICE, files: files.map(({ path, size }) => ({ path, size })) }
  await writeFileAtomic(listPath(repository, commit, onnxFile), `${JSON.stringify(list)}\n`)
  return folder
}

async function listRepository(source: RepositorySource): Promise<RepositoryFile[]> {
  const { id, commit, hubUrl } = source
  const { listFiles } = await hub()
  const files: RepositoryFile[] = []
  try {
    const listing = listFiles({
      repo: { type: 'model', name: id },
      revision: commit,
      recursive: true,
      ...request(source),
    })
    for await (const { type, path, size, oid, lfs } of listing) {
      if (type !== 'file') continue
      const hash = lfs?.oid ?? oid
      const bytes = lfs?.size ?? size
      if (typeof path !== 'string' || !Number.isSafeInteger(bytes) || bytes < 0 || files.length >= MOST_FILES)
        throw new InputError(`${hubUrl} gives no proper list of the files of ${id}.`)
      if (hash === undefined || !(lfs === undefined ? COMMIT : /^[0-9a-f]{64}$/).test(hash))
        throw new InputError(`${hubUrl} gives no proper hash of ${path} in ${id}.`)
      files.push({ path, size: bytes, hash })
    }
  } catch (error) {
    throw hubError(error, { ...source, revision: commit })
  }
  return files
}

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
async function unlinkOnnx(snapshot: string, onnxFile = 'model.onnx'): Promise<void> {
  for (const [below, name] of [
    ['.', onnxFile],
    [QUERY_FOLDER, 'model.onnx'],
  ] as const) {
    const graph = join(snapshot, below, 'onnx', name)
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

function isOffline(): boolean {
  return ['1', 'on', 'yes', 'true'].includes((process.env.HF_HUB_OFFLINE ?? '').toLowerCase())
}

const byHand = (id: string, revision: string): string =>
  `To get its files by hand: on a computer with network, download the repository ${id}${
    revision === 'main' ? '' : ` (revision ${revision})`
  } from huggingface.co, copy it here, and give the folder instead of the id.`

function notCached(id: string, revision: string, repository: string, missing: string[]): InputError {
  const lack =
    missing.length === 0
      ? `is not in the cache (${repository})`
      : `is not whole in the cache (${repository}): ${missing.slice(0, 5).join(', ')} ${missing.length > 5 ? `and ${missing.length - 5} more are` : missing.length === 1 ? 'is' : 'are'} missing`
  return new InputError(
    `The model ${id}@${revision} ${lack}, and no network is used (offline, HF_HUB_OFFLINE). ${byHand(id, revision)}`,
  )
}

function hubError(
  error: unknown,
  {
    id,
    revision,
    hubUrl,
    accessToken,
  }: { id: string; revision: string; hubUrl: string; accessToken: string | undefined },
): unknown {
  if (error instanceof InputError) return error
  const statusCode = (error as Partial<HubApiError>).statusCode
  if (error instanceof Error && statusCode !== undefined) {
    const said = error.message.split(/\. URL: /)[0]
    // without a token the hub answers 401 for models that do not exist, too
    if ([401, 403, 404].includes(statusCode))
      return new InputError(
        `There is no model ${id} with the revision ${revision} on ${hubUrl}, or it is private or gated (answer ${statusCode}: ${said}). There is no folder of that name either. Check the name; ${
          accessToken === undefined
            ? 'for a private or gated model, set HF_TOKEN to an access token.'
            : 'the access token given may not be allowed to read it.'
        }`,
        {},
        error,
      )
    return new InputError(
      `${hubUrl} answered ${statusCode} for ${id} (${said}). Try again later. ${byHand(id, revision)}`,
      {},
      error,
    )
  }
  if (error instanceof SyntaxError)
    return new InputError(
      `What answers at ${hubUrl} is no Hugging Face hub (${error.message}); a proxy or a login page may stand in between.`,
      {},
      error,
    )
  return new InputError(
    `The model ${id} is not in the cache, and ${hubUrl} cannot be reached: there seems to be no network (${reasonOf(error)}). ${byHand(id, revision)}`,
    {},
    error,
  )
}
