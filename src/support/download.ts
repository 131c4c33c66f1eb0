import { createHash } from 'node:crypto'
import { constants, createReadStream } from 'node:fs'
import { type FileHandle, mkdir, open, readFile, rename, rm, stat, statfs } from 'node:fs/promises'
import { dirname } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { InputError } from './errors.ts'
import { fileError, syncFolder, writeFileAtomic } from './files.ts'

/** A hash of a file's bytes, hexadecimal; `git` is that of a Git blob. */
export interface Digest {
  algorithm: 'sha256' | 'md5' | 'git'
  hex: string
}

/** What is downloaded. */
export interface Download {
  url: string
  /** For messages: `train.json of hotpotqa`. */
  name: string
  /** Who says what the bytes should be, for messages: `the hub`. Default: `the server`. */
  authority?: string
  /** In bytes, where it is known beforehand. */
  size?: number | undefined
  digest?: Digest | undefined
  /** Sent only to the address itself, never to another host that it leads to. */
  headers?: Record<string, string> | undefined
}

export interface DownloadOptions {
  /** Told how many bytes of the file are there, and how many there will be, if that is known. */
  onBytes?: ((bytes: number, total?: number) => void) | undefined
  signal?: AbortSignal | undefined
  /** Tries in a row that bring no new byte. Default 5. */
  attempts?: number
  /** Pause before the second try; it doubles with each. Default 1000. */
  pauseMs?: number
  /** How long nothing may arrive. Default 60 000. */
  silenceMs?: number
}

/** What a server says about the file, kept beside an unfinished download, to see that the rest belongs to it. */
interface Validator {
  url: string
  etag?: string | undefined
  modified?: string | undefined
}

interface Announced {
  validator: Validator
  size: number | undefined
  digest: Digest | undefined
}

const HOPS = 10
const LONGEST_PAUSE_MS = 30_000

/** The download did not come to its end, but may at another try. */
class Interrupted extends Error {
  readonly waitMs: number | undefined
  constructor(reason: string, waitMs?: number) {
    super(reason)
    this.waitMs = waitMs
  }
}

/**
 * Downloads one file to `path`. What arrives is kept as `<path>.incomplete`, from whose end a later call goes on where the server
 * can (ranges) and shows that the file is still the same (its ETag or date; a known digest does as well). Interruptions and
 * busy servers are tried again. The file gets its name when its size and digest are right: those given, else those that the
 * server announces. Two processes may do so at once: both write the same bytes to the same places.
 *
 * @returns SHA-256 of the bytes
 * @throws InputError when there is no such file, when the connection breaks too often (what has arrived stays), when the bytes
 *   are not those that were announced, when the disk has too little space
 */
export async function download(what: Download, path: string, options: DownloadOptions = {}): Promise<string> {
  const incomplete = `${path}.incomplete`
  const { attempts = 5, pauseMs = 1000 } = options
  try {
    await mkdir(dirname(path), { recursive: true })
    let failures = 0
    let fresh = false
    for (;;) {
      const before = await sizeOf(incomplete)
      try {
        const { resumed, announced } = await fill(what, incomplete, options)
        const digest = what.digest ?? announced?.digest
        const size = await sizeOf(incomplete)
        const found = await digests(incomplete, size, digest?.algorithm)
        if (digest === undefined || found.asked === digest.hex) {
          await rename(incomplete, path).catch(async (error: unknown) => {
            if ((await sizeOf(path)) !== size) throw error
          })
          await rm(`${incomplete}.json`, { force: true })
          await syncFolder(dirname(path))
          return found.sha256
        }
        await discard(incomplete)
        // the beginning may be the remains of something else; once more from the start tells
        if (!resumed || fresh) throw wrongBytes(what, digest)
        fresh = true
      } catch (error) {
        if (!(error instanceof Interrupted)) throw error
        const now = await sizeOf(incomplete)
        failures = now > before ? 1 : failures + 1
        if (failures >= attempts) throw brokenOff(what, now, error.message)
        const wait = error.waitMs ?? pauseMs * 2 ** (failures - 1)
        await sleep(Math.min(wait, LONGEST_PAUSE_MS), undefined, options.signal ? { signal: options.signal } : {})
      }
    }
  } catch (error) {
    if ((await sizeOf(incomplete)) === 0) await discard(incomplete).catch(() => {})
    throw fileError(error, `cannot store ${what.name}`, incomplete)
  }
}

async function discard(incomplete: string): Promise<void> {
  await rm(incomplete, { force: true })
  await rm(`${incomplete}.json`, { force: true })
}

/** Gets what is missing of the file. */
async function fill(
  what: Download,
  incomplete: string,
  options: DownloadOptions,
): Promise<{ resumed: boolean; announced: Announced | undefined }> {
  const known = await readValidator(incomplete, what.url)
  const handle = await open(incomplete, constants.O_RDWR | constants.O_CREAT, 0o644)
  let announced: Announced | undefined
  let start = 0
  try {
    start = (await handle.stat()).size
    // what cannot be told to belong to the file is of no use; a digest tells at the end
    if (start > (what.size ?? start) || (known === undefined && what.digest === undefined)) start = 0
    if (start === 0) await handle.truncate(0)
    options.onBytes?.(start, what.size)
    if (what.size === undefined || start < what.size) {
      const response = await request(what, start, known, options)
      announced = announcedBy(response.headers, what)
      start = await receive(what, response, handle, start, announced, incomplete, options)
    }
    await handle.sync()
  } finally {
    await handle.close()
  }
  return { resumed: start > 0, announced }
}

/** Asks for the file from `start` on, through redirections. The answer's headers are those of all stations, the last ones first. */
async function request(
  what: Download,
  start: number,
  known: Validator | undefined,
  { signal, silenceMs = 60_000 }: DownloadOptions,
): Promise<{ status: number; headers: Headers; body: ReadableStream<Uint8Array> | null }> {
  const seen = new Headers()
  let url = checkedUrl(what.url, what)
  const { origin } = url
  for (let hop = 0; hop <= HOPS; hop++) {
    const headers: Record<string, string> = { 'accept-encoding': 'identity' }
    if (url.origin === origin) Object.assign(headers, what.headers)
    if (start > 0) {
      headers.range = what.size === undefined ? `bytes=${start}-` : `bytes=${start}-${what.size - 1}`
      const condition = known?.etag ?? known?.modified
      if (condition !== undefined && what.digest === undefined) headers['if-range'] = condition
    }
    // only until the answer begins: a signal given to fetch ends its body, too
    const controller = new AbortController()
    const timer = setTimeout(() => controller.abort(), silenceMs)
    const response = await fetch(url, {
      headers,
      redirect: 'manual',
      signal: signal === undefined ? controller.signal : AbortSignal.any([signal, controller.signal]),
    })
      .catch((error: unknown) => {
        signal?.throwIfAborted()
        const silent = controller.signal.aborted
        throw new Interrupted(silent ? `no answer in ${silenceMs / 1000} seconds` : reasonOf(error))
      })
      .finally(() => clearTimeout(timer))
    for (const [name, value] of response.headers) seen.set(name, value)
    const location = response.headers.get('location')
    if (response.status < 300 || response.status >= 400 || location === null)
      return { status: response.status, headers: seen, body: response.body }
    await response.body?.cancel()
    const next = checkedUrl(URL.canParse(location, url.href) ? new URL(location, url).href : location, what)
    if (url.protocol === 'https:' && next.protocol !== 'https:')
      throw new InputError(
        `${what.name}: ${url.origin} leads to ${next.origin}, which is not encrypted; it is not followed.`,
      )
    url = next
  }
  throw new InputError(`${what.name}: ${what.url} leads on and on; more than ${HOPS} redirections are not followed.`)
}

function checkedUrl(text: string, what: Download): URL {
  const url = URL.canParse(text) ? new URL(text) : undefined
  if (url === undefined || !/^https?:$/.test(url.protocol))
    throw new InputError(`${what.name}: ${JSON.stringify(text)} is no address that can be fetched (http or https).`)
  return url
}

/** A whole number as a header has it. */
function wholeNumber(text: string | null | undefined): number | undefined {
  return text !== null && text !== undefined && /^\d{1,15}$/.test(text) ? Number(text) : undefined
}

/** What the headers say about the whole file. */
function announcedBy(headers: Headers, what: Download): Announced {
  const etag = headers.get('etag') ?? undefined
  const linked = /^"([0-9a-f]{64})"$/.exec(headers.get('x-linked-etag') ?? '')?.[1]
  const md5 = /(?:^|,\s*)md5=([A-Za-z0-9+/]{22}==)/.exec(headers.get('x-goog-hash') ?? '')?.[1]
  const range = /^bytes \d+-\d+\/(\d{1,15})$/.exec(headers.get('content-range') ?? '')
  return {
    validator: {
      url: what.url,
      // a weak one does not promise the same bytes
      etag: etag?.startsWith('"') ? etag : undefined,
      modified: headers.get('last-modified') ?? undefined,
    },
    size: what.size ?? wholeNumber(range?.[1]),
    digest:
      linked !== undefined
        ? { algorithm: 'sha256', hex: linked }
        : md5 !== undefined
          ? { algorithm: 'md5', hex: Buffer.from(md5, 'base64').toString('hex') }
          : undefined,
  }
}

/** Writes the answer's bytes; returns where they began. */
async function receive(
  what: Download,
  response: { status: number; headers: Headers; body: ReadableStream<Uint8Array> | null },
  handle: FileHandle,
  asked: number,
  announced: Announced,
  incomplete: string,
  { onBytes, signal, silenceMs = 60_000 }: DownloadOptions,
): Promise<number> {
  const { status, headers, body } = response
  if (status !== 200 && status !== 206) {
    await body?.cancel()
    return refused(what, status, headers, handle, asked, announced)
  }
  if (body === null) throw new Interrupted(`an empty answer with status ${status}`)
  let start = asked
  if (status === 206) {
    const from = wholeNumber(/^bytes (\d+)-/.exec(headers.get('content-range') ?? '')?.[1])
    if (from !== asked) {
      await body.cancel()
      await handle.truncate(0)
      throw new Interrupted('another part of the file was sent than was asked for')
    }
  } else {
    // a server that knows no ranges, or whose file has changed, sends the whole
    start = 0
    await handle.truncate(0)
  }
  const packed = (headers.get('content-encoding') ?? 'identity') !== 'identity'
  const length = packed ? undefined : wholeNumber(headers.get('content-length'))
  const total = announced.size ?? (length === undefined ? undefined : start + length)
  if (what.size !== undefined && length !== undefined && start + length !== what.size && status === 200) {
    await body.cancel()
    throw new InputError(
      `${what.name}: the server announces ${length} bytes, the file should have ${what.size}. Nothing of it was kept; mistrust a proxy or mirror in between.`,
    )
  }
  if (total !== undefined) await requireSpace(incomplete, total - start, what)
  if (what.digest === undefined)
    await writeFileAtomic(`${incomplete}.json`, `${JSON.stringify(packed ? { url: what.url } : announced.validator)}\n`)

  let position = start
  const reader = body.getReader()
  const onAbort = (): void => void reader.cancel().catch(() => {})
  signal?.addEventListener('abort', onAbort, { once: true })
  try {
    for (;;) {
      const { done, value } = await withTimeout(reader.read(), silenceMs)
      signal?.throwIfAborted()
      if (done) break
      if (total !== undefined && position + value.length > total) {
        throw new Interrupted('the server sends more bytes than it announced')
      }
      for (let written = 0; written < value.length; )
        written += (await handle.write(value, written, value.length - written, position + written)).bytesWritten
      position += value.length
      onBytes?.(position, total)
    }
  } catch (error) {
    await reader.cancel().catch(() => {})
    signal?.throwIfAborted()
    if (error instanceof InputError || error instanceof Interrupted || isFileError(error)) throw error
    throw new Interrupted(reasonOf(error))
  } finally {
    signal?.removeEventListener('abort', onAbort)
  }
  if (total !== undefined && position < total) throw new Interrupted('the connection was closed')
  return start
}

/** An answer without the file. */
async function refused(
  what: Download,
  status: number,
  headers: Headers,
  handle: FileHandle,
  asked: number,
  announced: Announced,
): Promise<number> {
  if (status === 416 && asked > 0) {
    const size = wholeNumber(/^bytes \*\/(\d+)$/.exec(headers.get('content-range') ?? '')?.[1])
    // nothing is missing
    if (size === asked) return asked
    await handle.truncate(0)
    throw new Interrupted('the part that is missing is not there; the file has changed')
  }
  if (status === 408 || status === 429 || status >= 500) {
    const seconds = wholeNumber(headers.get('retry-after'))
    throw new Interrupted(`the server answered ${status}`, seconds === undefined ? undefined : seconds * 1000)
  }
  const advice =
    status === 404 || status === 410
      ? 'there is no such file any more; another source or a mirror may have it'
      : status === 401 || status === 403
        ? 'it may not be read without permission'
        : 'that cannot be handled'
  throw new InputError(`${what.name}: ${announced.validator.url} answered ${status}: ${advice}.`)
}

async function withTimeout<T>(promise: Promise<T>, ms: number): Promise<T> {
  let timer: NodeJS.Timeout | undefined
  const silence = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Interrupted(`nothing arrived for ${ms / 1000} seconds`)), ms)
  })
  try {
    return await Promise.race([promise, silence])
  } finally {
    clearTimeout(timer)
  }
}

async function requireSpace(path: string, bytes: number, what: Download): Promise<void> {
  const free = await statfs(dirname(path)).then(
    ({ bavail, bsize }) => bavail * bsize,
    () => Number.POSITIVE_INFINITY,
  )
  if (bytes > free)
    throw new InputError(
      `${what.name} needs ${bytes} more bytes, the disk of ${dirname(path)} has ${free} free. Free some space or choose another folder.`,
    )
}

async function readValidator(incomplete: string, url: string): Promise<Validator | undefined> {
  try {
    const { url: from, etag, modified } = JSON.parse(await readFile(`${incomplete}.json`, 'utf8')) as Validator
    if (from !== url || (typeof etag !== 'string' && typeof modified !== 'string')) return undefined
    return { url, etag, modified }
  } catch {
    return undefined
  }
}

async function sizeOf(path: string): Promise<number> {
  return stat(path).then(
    ({ size }) => size,
    () => 0,
  )
}

/** SHA-256, and what another algorithm gives. */
async function digests(
  path: string,
  size: number,
  algorithm: Digest['algorithm'] | undefined,
): Promise<{ sha256: string; asked: string | undefined }> {
  const sha256 = createHash('sha256')
  const other =
    algorithm === 'md5'
      ? createHash('md5')
      : algorithm === 'git'
        ? createHash('sha1').update(`blob ${size}\0`)
        : undefined
  for await (const chunk of createReadStream(path, { highWaterMark: 1 << 20 })) {
    sha256.update(chunk as Buffer)
    other?.update(chunk as Buffer)
  }
  const hex = sha256.digest('hex')
  return { sha256: hex, asked: algorithm === undefined ? undefined : (other?.digest('hex') ?? hex) }
}

const NAMES: Record<Digest['algorithm'], string> = { sha256: 'SHA-256', md5: 'MD5', git: 'Git hash' }

function wrongBytes(what: Download, digest: Digest): InputError {
  return new InputError(
    `The bytes of ${what.name} are not those that ${what.authority ?? 'the server'} announced (the ${NAMES[digest.algorithm]} should be ${digest.hex}). Nothing of the file was kept; try again, and mistrust a proxy or mirror in between.`,
  )
}

function brokenOff(what: Download, position: number, reason: string): InputError {
  const of = what.size === undefined ? '' : ` of ${what.size}`
  return new InputError(
    `The download of ${what.name} broke off at ${position}${of} bytes (${reason}). What has arrived is kept; run the same again to go on from there.`,
  )
}

function isFileError(error: unknown): boolean {
  const code = (error as NodeJS.ErrnoException | undefined)?.syscall
  return typeof code === 'string' && ['write', 'open', 'ftruncate', 'fsync', 'rename'].includes(code)
}

/** What went wrong on the network, in a few words. */
export function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  const cause = error.cause as NodeJS.ErrnoException | undefined
  return cause?.code ?? cause?.message ?? error.message
}
