import { InputError } from '../../support/errors.ts'
import { wholeAnswer } from './answer.ts'
import type { RepositorySource } from './download.ts'
import { hubError } from './errors.ts'
import type { RepositoryFile } from './files.ts'

/** Loaded only where a model is named by its id. */
export const hub = (): Promise<typeof import('@huggingface/hub')> => import('@huggingface/hub')

export const COMMIT = /^[0-9a-f]{40}$/

/** Whether a text is `org/name` as the hub allows it. */
export const isHubId = (id: string): boolean =>
  /^\w[\w.-]*\/\w[\w.-]*$/.test(id) && !/--|\.\.|[.-](\/|$)|\.git$/.test(id) && id.length <= 96

/** Whether a text can be a branch, a tag or a commit. */
export const isRevision = (revision: string): boolean =>
  /^\w[\w.+-]*(\/\w[\w.+-]*)*$/.test(revision) && !revision.includes('..')

export function isOffline(): boolean {
  return ['1', 'on', 'yes', 'true'].includes((process.env.HF_HUB_OFFLINE ?? '').toLowerCase())
}

/**
 * Where the hub is, and who asks.
 *
 * @throws InputError for what is no address, and no access token
 */
export async function caller(
  options: { hubUrl?: string | undefined; accessToken?: string | undefined },
  source = 'HF_TOKEN',
): Promise<Pick<RepositorySource, 'hubUrl' | 'accessToken'>> {
  const { HUB_URL } = await hub()
  const hubUrl = (options.hubUrl ?? (process.env.HF_ENDPOINT || HUB_URL)).replace(/\/+$/, '')
  if (!/^https?:$/.test(URL.canParse(hubUrl) ? new URL(hubUrl).protocol : ''))
    throw new InputError(
      `${JSON.stringify(hubUrl)} is no address of a hub; HF_ENDPOINT should be like https://huggingface.co.`,
    )
  const { username, password } = new URL(hubUrl)
  if (username !== '' || password !== '')
    throw new InputError('The address of the hub (HF_ENDPOINT) has a user name or a password in it; take that out.')
  const accessToken = (options.accessToken ?? (process.env.HF_TOKEN || undefined))?.trim()
  // what no header can hold would be repeated in the error that says so
  if (accessToken !== undefined && !/^hf_[!-~]+$/.test(accessToken))
    throw new InputError(
      `The access token (${source}) is none of Hugging Face: those start with "hf_", and have no blanks in them.`,
    )
  return { hubUrl, accessToken }
}

/** Asks the hub which commit a revision is. */
export async function connect(
  id: string,
  revision: string,
  options: { hubUrl?: string; accessToken?: string },
): Promise<RepositorySource> {
  const { modelInfo } = await hub()
  const { hubUrl, accessToken } = await caller(options)
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

/** What every call of the hub's interface is given. */
export interface HubCall {
  hubUrl: string
  fetch: typeof fetch
  accessToken?: string
}

/** The access token goes to no other host, whatever a listing links to. */
function request({ hubUrl, accessToken }: Pick<RepositorySource, 'hubUrl' | 'accessToken'>): HubCall {
  const { origin } = new URL(hubUrl)
  const guarded: typeof fetch = async (input, init) => {
    const url = new URL(input instanceof Request ? input.url : input)
    if (url.origin !== origin)
      throw new InputError(`The hub ${hubUrl} sends its caller on to ${url.origin}, which is not followed.`)
    return wholeAnswer(await fetch(input, init), hubUrl)
  }
  return { hubUrl, fetch: guarded, ...(accessToken === undefined ? {} : { accessToken }) }
}

const MOST_FILES = 100_000
/** Pages of a listing; the hub's have a thousand entries. */
const MOST_PAGES = 250

/** The files of a commit. */
export async function listRepository(source: RepositorySource): Promise<RepositoryFile[]> {
  const { id, commit } = source
  try {
    return await listCommit(id, commit, request(source))
  } catch (error) {
    throw hubError(error, { ...source, revision: commit })
  }
}

/**
 * The files of a commit, by calls of one's own.
 *
 * @throws InputError for a listing that is none; what the call throws
 */
export async function listCommit(id: string, commit: string, call: HubCall): Promise<RepositoryFile[]> {
  const { listFiles } = await hub()
  const files: RepositoryFile[] = []
  const improper = (): InputError => new InputError(`${call.hubUrl} gives no proper list of the files of ${id}.`)
  let pages = 0
  const paged: typeof fetch = (...asked) => {
    if (++pages > MOST_PAGES) throw improper()
    return call.fetch(...asked)
  }
  const repo = { type: 'model', name: id } as const
  const listing = listFiles({ repo, revision: commit, recursive: true, ...call, fetch: paged })
  for await (const { type, path, size, oid, lfs } of listing) {
    if (type !== 'file') continue
    const hash = lfs?.oid ?? oid
    const bytes = lfs?.size ?? size
    if (typeof path !== 'string' || !Number.isSafeInteger(bytes) || bytes < 0 || files.length >= MOST_FILES)
      throw improper()
    if (hash === undefined || !(lfs === undefined ? COMMIT : /^[0-9a-f]{64}$/).test(hash))
      throw new InputError(`${call.hubUrl} gives no proper hash of ${JSON.stringify(path)} in ${id}.`)
    files.push({ path, size: bytes, hash })
  }
  return files
}
