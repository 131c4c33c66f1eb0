import { join } from 'node:path'
import { InputError } from '../../support/errors.ts'
import type { Progress } from '../../support/progress.ts'
import { openedGraph } from '../folder/opened-graph.ts'
import { encoderFiles, QUERY_FOLDER, type RepositoryFile } from './files.ts'
import { COMMIT, caller, type HubCall, hub, isHubId, isOffline, isRevision, listCommit } from './repository.ts'
import { stopped, type UploadPlace, uploadError } from './upload-errors.ts'
import { checkUnchanged, readUploadFolder, type UploadFile, type UploadFolder } from './upload-folder.ts'
import { FileContent, Refused, uploadFetch } from './upload-request.ts'

export interface UploadOptions {
  /** `org/name`. */
  repo: string
  /** Branch that is committed to; `main` by default. */
  revision?: string | undefined
  /** A repository that is made is private, and one that is public is refused. */
  private?: boolean | undefined
  /** Make the repository, and the branch, where they are not there; true by default. */
  create?: boolean | undefined
  /** Delete in the same commit what the repository holds beside the folder's files. */
  prune?: boolean | undefined
  /** Title of the commit. */
  message?: string | undefined
  /** Address of the hub; HF_ENDPOINT, else https://huggingface.co. */
  hubUrl?: string | undefined
  /** Has to be allowed to write; HF_TOKEN by default. */
  accessToken?: string | undefined
  /** Tries of a request that failed for a passing reason; 3 by default. */
  attempts?: number | undefined
  /** Pause before the second try, in milliseconds; it doubles with each. 1000 by default. */
  pauseMs?: number | undefined
  /** Told the bytes. */
  onProgress?: Progress | undefined
  signal?: AbortSignal | undefined
}

/** What the hub has now. */
export interface Uploaded {
  repo: string
  /** The branch. */
  revision: string
  /** The commit in which the folder's files are; an earlier one where they were there already. */
  commit: string
  url: string
  kind: UploadFolder['kind']
  files: UploadFile[]
  /** Paths that were committed; none where nothing differed. */
  committed: string[]
  /** Bytes that were sent to the storage of large files: of those that were not there yet. */
  bytesSent: number
  /** Paths that were deleted with `prune`. */
  deleted: string[]
  /** What else the repository holds. */
  others: string[]
  /** Hidden files of the folder, which were not uploaded. */
  hidden: string[]
  created: boolean
}

/** The hub adds it to a repository of large files by itself. */
const ATTRIBUTES = '.gitattributes'

/**
 * Uploads an exported encoder, or an adapter in PEFT's format, to the Hugging Face hub: checks the folder, makes the repository where
 * it is absent, commits all files that differ in one commit, and compares what the hub has then with the folder. An upload that
 * breaks off leaves the repository as it was; the next one sends only large files that have not arrived.
 *
 * Large files go to the hub's LFS storage, by plain HTTP: that can be followed and repeated file by file.
 *
 * @throws InputError for a folder that is not whole, for no or a wrong access token, for what the hub refuses, for a connection that
 *   breaks, for a repository in which other weights would be opened than those of the folder, and when the hub then has other bytes;
 *   an AbortError that says what is there when the signal is aborted
 */
export async function uploadFolder(folder: string, options: UploadOptions): Promise<Uploaded> {
  const { repo: id, revision: branch = 'main', create = true, prune = false, onProgress } = options
  checkNames(id, branch)
  const { hubUrl, accessToken } = await caller(options, 'HF_TOKEN, --token-file')
  const signal = options.signal ?? new AbortController().signal
  const place: UploadPlace = { id, branch, hubUrl, stage: 'asking' }
  try {
    signal.throwIfAborted()
    const read = await readUploadFolder(folder, { onProgress, signal })
    if (isOffline()) throw new InputError('An upload needs the network, and HF_HUB_OFFLINE is set.')
    if (accessToken === undefined)
      throw new InputError(
        'An upload needs an access token of the hub with permission to write: set HF_TOKEN to it, or name its file with --token-file.',
      )
    const { attempts = 3, pauseMs = 1000 } = options
    const sending = progressOf(id, read.files, onProgress)
    const requests = () => uploadFetch({ ...{ hubUrl, accessToken, signal, attempts, pauseMs }, onBytes: sending.part })
    const call = { hubUrl, accessToken, fetch: requests().fetch }
    const { head, created } = await findHead(place, call, { create, secret: options.private ?? false })
    place.stage = 'asking'
    const before = await listCommit(id, head, call)
    const differing = differences(read.files, before)
    const others = before
      .map(({ path }) => path)
      .filter((path) => path !== ATTRIBUTES && !read.files.some((file) => file.path === path))
    if (!prune && read.kind === 'encoder') await checkOthers(id, read, before, others)
    const deleted = prune ? others : []
    const result = {
      ...{ repo: id, revision: branch, url: `${hubUrl}/${id}`, kind: read.kind, files: read.files, created },
      ...{ hidden: read.hidden, deleted, others: prune ? [] : others },
    }
    if (differing.length === 0 && deleted.length === 0) return { ...result, commit: head, committed: [], bytesSent: 0 }

    const committed = differing.map(({ path }) => path)
    sending.begin(differing)
    const commit = await commitFiles(read, differing, deleted, {
      ...{ place, call, requests: requests(), parent: head, signal, sending },
      title: options.message ?? `Upload ${read.kind === 'adapter' ? 'LoRA adapter' : 'node encoder'}`,
    })
    place.stage = 'checking'
    onProgress?.({ phase: `checking ${id}`, done: 0, total: 1 })
    const wrong = differences(read.files, await listCommit(id, commit, call))
    if (wrong.length > 0)
      throw new InputError(
        `The hub has other bytes than the folder in the commit ${commit} of ${id}: ${few(wrong.map(({ path }) => path))}. Do not use that commit. Upload again when nobody writes to the folder, and mistrust a proxy in between.`,
      )
    return { ...result, commit, committed, bytesSent: sending.sent() }
  } catch (error) {
    throw signal.aborted ? stopped(place) : uploadError(error, place)
  }
}

function checkNames(id: string, branch: string): void {
  if (!isHubId(id))
    throw new InputError(`${JSON.stringify(id)} is no name of a repository; give it as organisation/name.`)
  if (!isRevision(branch) || COMMIT.test(branch))
    throw new InputError(`${JSON.stringify(branch)} is no branch; a commit is made on top of one, "main" say.`)
}

const few = (paths: readonly string[]): string =>
  `${paths.slice(0, 5).join(', ')}${paths.length > 5 ? ` and ${paths.length - 5} more` : ''}`

const isMissing = (error: unknown): boolean => error instanceof Refused && error.status === 404

/** The commit that a branch is at; the repository and the branch are made where they are absent and may be. */
async function findHead(
  place: UploadPlace,
  call: HubCall & { accessToken: string },
  { create, secret }: { create: boolean; secret: boolean },
): Promise<{ head: string; created: boolean }> {
  const { createBranch, createRepo, modelInfo } = await hub()
  const { id, branch, hubUrl } = place
  const info = (revision?: string) =>
    modelInfo({ name: id, additionalFields: ['sha'], ...(revision === undefined ? {} : { revision }), ...call })
  const repo = { type: 'model', name: id } as const
  let created = false
  let found = await info().catch((error: unknown) => {
    if (!create || !isMissing(error)) throw error
    return undefined
  })
  if (found === undefined) {
    place.stage = 'creating'
    created = await createRepo({ repo, ...(secret ? { visibility: 'private' } : {}), ...call }).then(
      () => true,
      (error: unknown) => {
        // someone else was faster, or this is one that may be written and not be looked up
        if (error instanceof Refused && error.status === 409) return false
        throw error
      },
    )
    place.stage = 'asking'
    found = await info()
  }
  if (secret && found.private !== true)
    throw new InputError(
      `${id} on ${hubUrl} is public, and --private was asked for: nothing was uploaded. Make it private there first, or leave out --private.`,
    )
  if (branch !== 'main') {
    place.stage = 'branching'
    const known = await info(branch).catch((error: unknown) => {
      if (!create || !isMissing(error)) throw error
      return undefined
    })
    if (known === undefined) await createBranch({ repo, branch, ...call })
    found = known ?? (await info(branch))
  }
  if (typeof found.sha !== 'string' || !COMMIT.test(found.sha))
    throw new InputError(`${hubUrl} names no commit for ${id}@${branch}; is it a Hugging Face hub?`)
  return { head: found.sha, created }
}

/** The files that the hub lacks, or has otherwise. */
function differences(files: readonly UploadFile[], listed: readonly RepositoryFile[]): UploadFile[] {
  const there = new Map(listed.map((file) => [file.path, file]))
  return files.filter(({ path, size, sha256, git }) => {
    const found = there.get(path)
    return found === undefined || found.size !== size || found.hash !== (found.hash.length === 64 ? sha256 : git)
  })
}

/** Refuses a repository in which something else would be opened than the folder's files. */
async function checkOthers(
  id: string,
  { folder, files }: UploadFolder,
  before: readonly RepositoryFile[],
  others: readonly string[],
): Promise<void> {
  const after = [
    ...before.filter(({ path }) => others.includes(path)),
    ...files.map(({ path, size, sha256 }) => ({ path, size, hash: sha256 })),
  ]
  const taken = encoderFiles(id, after, QUERY_FOLDER, undefined, await openedGraph(folder)).map(({ path }) => path)
  // transformers adds an adapter that lies in a model's folder to the model
  const wrong = others.filter((path) => taken.includes(path) || path === 'adapter_config.json')
  if (wrong.length > 0)
    throw new InputError(
      `The repository holds ${few(wrong.map((path) => JSON.stringify(path)))}, which would be opened together with the folder's files, or in their place. Delete ${wrong.length === 1 ? 'it' : 'them'} there, upload with --prune, which deletes all that is not in the folder, or choose another repository.`,
    )
}

interface CommitContext {
  place: UploadPlace
  call: HubCall & { accessToken: string }
  /** Those of the commit alone, the first failure of which ends it. */
  requests: ReturnType<typeof uploadFetch>
  parent: string
  title: string
  signal: AbortSignal
  sending: Sending
}

/** Sends what has not arrived, and commits all at once; the commit. */
async function commitFiles(
  { folder, files }: UploadFolder,
  differing: readonly UploadFile[],
  deleted: readonly string[],
  { place, call, requests, parent, title, signal, sending }: CommitContext,
): Promise<string> {
  const { commitIter } = await hub()
  place.stage = 'sending'
  const ended = new AbortController()
  const events = commitIter({
    ...{ ...call, fetch: requests.fetch },
    ...{ repo: { type: 'model', name: place.id }, branch: place.branch, parentCommit: parent, title },
    operations: [
      ...differing.map(({ path, size }) => ({
        operation: 'addOrUpdate' as const,
        path,
        content: new FileContent(join(folder, path), path, 0, size, requests.fail),
      })),
      ...deleted.map((path) => ({ operation: 'delete' as const, path })),
    ],
    abortSignal: AbortSignal.any([signal, ended.signal]),
    useXet: false,
  })
  try {
    for (;;) {
      // not by the iterator alone: one failure of several requests at once can leave it waiting
      const { done, value } = await Promise.race([events.next(), requests.failed])
      if (done) {
        const commit = value?.commit.oid
        if (typeof commit !== 'string' || !COMMIT.test(commit)) throw new Error('it names no commit')
        return commit
      }
      if (value.event === 'phase' && value.phase === 'committing') {
        signal.throwIfAborted()
        await checkUnchanged({ folder, files })
        place.stage = 'committing'
      }
      if (value.event === 'fileProgress' && value.state === 'uploading' && value.progress === 1)
        sending.whole(value.path)
    }
  } catch (error) {
    const refused = error instanceof Refused && error.status < 500
    if (place.stage !== 'committing' || refused || signal.aborted) throw error
    // the answer was lost, perhaps not what was asked for
    const made = await committedAfterAll(place, call, parent, files).catch(() => undefined)
    if (made === undefined) throw error
    return made
  } finally {
    // what is still being sent is of no use without the rest
    ended.abort()
  }
}

/** The commit of a branch, where it is no longer `parent` and has all files. */
async function committedAfterAll(
  { id, branch }: UploadPlace,
  call: HubCall & { accessToken: string },
  parent: string,
  files: readonly UploadFile[],
): Promise<string | undefined> {
  const { modelInfo } = await hub()
  const { sha } = await modelInfo({ name: id, revision: branch, additionalFields: ['sha'], ...call })
  if (typeof sha !== 'string' || !COMMIT.test(sha) || sha === parent) return undefined
  return differences(files, await listCommit(id, sha, call)).length === 0 ? sha : undefined
}

interface Sending {
  begin(files: readonly UploadFile[]): void
  /** A part of a file, from a byte on. */
  part(path: string, start: number, bytes: number): void
  /** All of a file is there. */
  whole(path: string): void
  /** Bytes that were sent. */
  sent(): number
}

/** Adds up what is there of the files that are uploaded. */
function progressOf(id: string, files: readonly UploadFile[], onProgress: Progress | undefined): Sending {
  const sizes = new Map(files.map(({ path, size }) => [path, size]))
  const parts = new Map<string, Map<number, number>>()
  const there = new Set<string>()
  let total = 0
  const sum = (path: string): number => [...(parts.get(path)?.values() ?? [])].reduce((all, bytes) => all + bytes, 0)
  const tell = (path: string): void => {
    let done = 0
    for (const known of parts.keys()) if (!there.has(known)) done += sum(known)
    for (const known of there) done += sizes.get(known) ?? 0
    onProgress?.({ phase: `uploading ${id}`, done: Math.min(done, total), total, note: path })
  }
  return {
    begin(differing) {
      total = differing.reduce((all, { size }) => all + size, 0)
    },
    part(path, start, bytes) {
      const known = parts.get(path) ?? new Map<number, number>()
      parts.set(path, known.set(start, bytes))
      tell(path)
    },
    whole(path) {
      there.add(path)
      tell(path)
    },
    sent: () => [...parts.keys()].reduce((all, path) => all + sum(path), 0),
  }
}
