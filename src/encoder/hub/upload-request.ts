import { type FileHandle, open } from 'node:fs/promises'
import { ReadableStream } from 'node:stream/web'
import { setTimeout as sleep } from 'node:timers/promises'
import { reasonOf } from '../../support/download.ts'
import { InputError } from '../../support/errors.ts'
import { fileError } from '../../support/files.ts'
import { printable, wholeAnswer } from './answer.ts'

/** An answer that is no success, from the hub or from where it keeps large files. */
export class Refused extends Error {
  readonly status: number
  /** What the server said, made safe to print. */
  readonly said: string
  /** The file that was being sent; undefined for a call of the hub's interface. */
  readonly path: string | undefined

  constructor(status: number, said: string, path: string | undefined) {
    super(`answer ${status}`)
    this.status = status
    this.said = said
    this.path = path
  }
}

/** No answer: the connection was refused, or broke. */
export class Broken extends Error {
  readonly reason: string
  readonly path: string | undefined

  constructor(reason: string, path: string | undefined) {
    super(reason)
    this.reason = reason
    this.path = path
  }
}

/** A part of a file, read when it is sent. */
export class FileContent extends Blob {
  readonly file: string
  /** Path inside the repository. */
  readonly path: string
  readonly start: number
  private readonly end: number
  private readonly onError: (error: unknown) => void
  declare readonly size: number
  private readonly onBytes: (bytes: number) => void

  /**
   * @param onError told that the file cannot be read, as whoever reads it is
   * @param onBytes told how many of the bytes have been taken
   */
  constructor(
    file: string,
    path: string,
    start: number,
    end: number,
    onError: (error: unknown) => void,
    onBytes: (bytes: number) => void = () => {},
  ) {
    super([])
    this.file = file
    this.path = path
    this.start = start
    this.end = end
    this.onError = onError
    this.onBytes = onBytes
    // of an empty Blob it would be 0
    Object.defineProperty(this, 'size', { value: end - start })
  }

  override slice(start = 0, end = this.size): FileContent {
    return new FileContent(this.file, this.path, this.start + start, Math.min(this.start + end, this.end), this.onError)
  }

  /** The same, telling how many of its bytes have been taken. */
  counted(onBytes: (bytes: number) => void): FileContent {
    return new FileContent(this.file, this.path, this.start, this.end, this.onError, onBytes)
  }

  override async arrayBuffer(): Promise<ArrayBuffer> {
    const bytes = new Uint8Array(this.size)
    let filled = 0
    for await (const chunk of this.stream()) {
      bytes.set(chunk, filled)
      filled += chunk.length
    }
    return bytes.buffer
  }

  override async text(): Promise<string> {
    return new TextDecoder().decode(await this.arrayBuffer())
  }

  override stream(): ReturnType<Blob['stream']> {
    const { file, start, size, onBytes, onError } = this
    let handle: FileHandle | undefined
    let position = 0
    const close = async (): Promise<void> => {
      await handle?.close()
      handle = undefined
    }
    // opened when it is read, and closed whatever becomes of the request
    const stream = new ReadableStream<Uint8Array>({
      async pull(controller) {
        try {
          handle ??= await open(file, 'r')
          onBytes(position)
          const bytes = new Uint8Array(Math.min(CHUNK, size - position))
          const { bytesRead } = await handle.read(bytes, 0, bytes.length, start + position)
          if (bytesRead === 0 && position < size) throw changed(file)
          position += bytesRead
          if (bytesRead > 0) controller.enqueue(bytes.subarray(0, bytesRead))
          if (position >= size) {
            await close()
            onBytes(size)
            controller.close()
          }
        } catch (error) {
          await close()
          const why = fileError(error, 'cannot read the file', file)
          onError(why)
          controller.error(why)
        }
      },
      cancel: close,
    })
    return stream as ReturnType<Blob['stream']>
  }
}

/** Bytes that are read at once. */
const CHUNK = 1 << 18

const changed = (file: string): InputError =>
  new InputError('The file became shorter while it was being uploaded. Upload again when nobody writes to it.', {
    file,
  })

export interface RequestOptions {
  hubUrl: string
  accessToken: string
  signal: AbortSignal
  /** Tries of a request that may be repeated, and the pause before the second one, which doubles. */
  attempts: number
  pauseMs: number
  /** Told how many bytes of the part of a file from `start` on have been sent. */
  onBytes: (path: string, start: number, bytes: number) => void
}

/** These change what the hub has, and are not repeated unasked. */
const CHANGES = /\/(commit|branch)\/[^/]+$|\/repos\/create$/

/**
 * `fetch` for an upload. The access token goes to the hub alone, and nothing goes unencrypted where the hub is not; redirections are
 * not followed. Busy servers and broken connections are tried again, except for requests that change the repository.
 *
 * @returns `fetch`, whose promise is rejected for every answer that is no success, with {@link Refused}, {@link Broken}, or the
 *   signal's reason; and `failed`, which is then rejected too, as it is by `fail`
 */
export function uploadFetch(options: RequestOptions): {
  fetch: typeof fetch
  failed: Promise<never>
  fail: (error: unknown) => void
} {
  const { hubUrl, accessToken, signal, attempts, pauseMs, onBytes } = options
  const hub = new URL(hubUrl)
  let fail: (error: unknown) => void = () => {}
  const failed = new Promise<never>((_, reject) => {
    fail = reject
  })
  // whoever waits for it is told; nobody has to
  failed.catch(() => {})

  const once = async (url: URL, init: RequestInit, path: string | undefined): Promise<Response> => {
    const signals = [signal, init.signal].filter((one): one is AbortSignal => one instanceof AbortSignal)
    const body = init.body instanceof FileContent ? init.body : undefined
    const sent = body === undefined ? {} : { body: body.counted((bytes) => onBytes(body.path, body.start, bytes)) }
    const broken = (error: unknown): never => {
      signal.throwIfAborted()
      const why = error instanceof InputError ? error : (error as Error).cause
      throw why instanceof InputError ? why : new Broken(reasonOf(error), path)
    }
    const response = await fetch(url, {
      ...init,
      ...sent,
      signal: AbortSignal.any(signals),
      redirect: 'manual',
    }).catch(broken)
    if (response.ok) return wholeAnswer(response, hubUrl).catch(broken)
    throw new Refused(response.status, await saidBy(response, accessToken), path)
  }

  const send: typeof fetch = async (input, init = {}) => {
    const url = new URL(input instanceof Request ? input.url : input)
    const path = init.body instanceof FileContent ? init.body.path : undefined
    const authorised = new Headers(init.headers).has('authorization')
    try {
      signal.throwIfAborted()
      if (authorised && url.origin !== hub.origin)
        throw new InputError(`The hub ${hubUrl} sends its caller on to ${url.origin}, which is not followed.`)
      if (url.protocol !== 'https:' && url.protocol !== hub.protocol)
        throw new InputError(
          `The hub ${hubUrl} wants files sent to ${url.origin}, which is not encrypted; nothing is sent there.`,
        )
      for (let attempt = 1; ; attempt++) {
        try {
          return await once(url, init, path)
        } catch (error) {
          const passing = error instanceof Broken || (error instanceof Refused && isPassing(error.status))
          if (!passing || attempt >= attempts || CHANGES.test(url.pathname)) throw error
          await sleep(pauseMs * 2 ** (attempt - 1), undefined, { signal })
        }
      }
    } catch (error) {
      const why = signal.aborted ? signal.reason : error
      fail(why)
      throw why
    }
  }
  return { fetch: send, failed, fail }
}

const isPassing = (status: number): boolean => status === 408 || status === 429 || status >= 500

const MOST_SAID = 200
const MOST_READ = 1 << 16

/** The beginning of an answer's text; no more of it is read. */
async function beginning(response: Response): Promise<string> {
  const chunks: Uint8Array[] = []
  let bytes = 0
  for await (const chunk of response.body ?? []) {
    chunks.push(chunk as Uint8Array)
    bytes += (chunk as Uint8Array).length
    if (bytes >= MOST_READ) break
  }
  return Buffer.concat(chunks).toString('utf8')
}

/** What a server says with its refusal, made safe to print. */
async function saidBy(response: Response, accessToken: string): Promise<string> {
  const text = await beginning(response).catch(() => '')
  let said = ''
  if (/^application\/([\w.-]+\+)?json\b/.test(response.headers.get('content-type') ?? '')) {
    try {
      const { error, message } = JSON.parse(text) as { error?: unknown; message?: unknown }
      said = [error, message].find((one): one is string => typeof one === 'string') ?? ''
    } catch {
      // no JSON after all
    }
  }
  const plain = printable(said.replaceAll(accessToken, '…'))
  return plain.length > MOST_SAID ? `${plain.slice(0, MOST_SAID)}…` : plain
}
