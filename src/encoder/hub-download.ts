import { createHash } from 'node:crypto'
import { constants, createReadStream } from 'node:fs'
import { type FileHandle, mkdir, open, rename, rm } from 'node:fs/promises'
import { dirname } from 'node:path'
import { InputError } from '../support/errors.ts'
import { fileError, syncFolder } from '../support/files.ts'
import { hasSize, type RepositoryFile } from './hub-files.ts'

/** Where a repository's files are fetched from. */
export interface RepositorySource {
  id: string
  commit: string
  hubUrl: string
  accessToken: string | undefined
}

/**
 * Downloads one file to `blob`. What arrives is kept as `<blob>.incomplete`, from whose end a later call goes on; the file gets its
 * name when size and hash are right. Two processes may do so at once: both write the same bytes to the same places.
 *
 * @param onBytes told how many of the file's bytes are there
 * @throws InputError when the connection breaks (what has arrived stays), or when the bytes are not those that the hub announced
 */
export async function downloadBlob(
  source: RepositorySource,
  file: RepositoryFile,
  blob: string,
  onBytes: (bytes: number) => void,
): Promise<void> {
  const incomplete = `${blob}.incomplete`
  try {
    await mkdir(dirname(blob), { recursive: true })
    for (;;) {
      const { resumed, right } = await fill(source, file, incomplete, onBytes)
      if (right) break
      await rm(incomplete, { force: true })
      // the beginning may be the remains of something else; once more from the start tells
      if (!resumed)
        throw new InputError(
          `The bytes of ${file.path} in ${source.id} are not those that the hub announced (the ${
            file.hash.length === 64 ? 'SHA-256' : 'Git hash'
          } should be ${file.hash}). Nothing of the file was kept; try again, and mistrust a proxy or mirror in between.`,
        )
    }
    await rename(incomplete, blob).catch(async (error: unknown) => {
      if (!(await hasSize(blob, file.size))) throw error
    })
    await syncFolder(dirname(blob))
  } catch (error) {
    throw fileError(error, `cannot store ${file.path} of ${source.id}`, incomplete)
  }
}

async function fill(
  source: RepositorySource,
  file: RepositoryFile,
  incomplete: string,
  onBytes: (bytes: number) => void,
): Promise<{ resumed: boolean; right: boolean }> {
  const handle = await open(incomplete, constants.O_RDWR | constants.O_CREAT, 0o644)
  let start = 0
  try {
    start = (await handle.stat()).size
    if (start > file.size) {
      await handle.truncate(0)
      start = 0
    }
    onBytes(start)
    if (start < file.size) await receive(source, file, handle, start, onBytes)
    await handle.sync()
  } finally {
    await handle.close()
  }
  return { resumed: start > 0, right: (await hashOf(incomplete, file)) === file.hash }
}

/** Writes the bytes of the file from `start` on. */
async function receive(
  { id, commit, hubUrl, accessToken }: RepositorySource,
  file: RepositoryFile,
  handle: FileHandle,
  start: number,
  onBytes: (bytes: number) => void,
): Promise<void> {
  const { downloadFile } = await import('@huggingface/hub')
  let position = start
  // the library passes on only the message of what goes wrong here
  let failure: unknown
  const request: typeof fetch = async (input, init) => {
    const response = await fetch(input, init).catch((error: unknown) => {
      failure = error
      throw error
    })
    // a server that does not know ranges sends the whole file
    if (response.status === 200) position = 0
    if (response.ok && response.body === null) throw new TypeError(`empty answer with status ${response.status}`)
    return response
  }
  const path = file.path.split('/').map(encodeURIComponent).join('/')
  const brokenOff = (reason: string): InputError =>
    new InputError(
      `The download of ${file.path} of ${id} broke off at ${position} of ${file.size} bytes (${reason}). What has arrived is kept; run the same again to go on from there.`,
    )
  try {
    const whole = await downloadFile({
      repo: { type: 'model', name: id },
      path: file.path,
      revision: commit,
      hubUrl,
      fetch: request,
      // plain HTTP ranges can be resumed
      xet: false,
      downloadInfo: { size: file.size, etag: file.hash, url: `${hubUrl}/${id}/resolve/${commit}/${path}` },
      ...(accessToken === undefined ? {} : { accessToken }),
    })
    if (whole === null) throw new InputError(`The repository ${id} has no ${file.path} any more.`)
    const rest = start === 0 ? whole : whole.slice(start, file.size)
    for await (const chunk of rest.stream() as unknown as AsyncIterable<Uint8Array>) {
      if (position + chunk.length > file.size) throw brokenOff('the hub sends more bytes than it announced')
      for (let written = 0; written < chunk.length; )
        written += (await handle.write(chunk, written, chunk.length - written, position + written)).bytesWritten
      position += chunk.length
      onBytes(position)
    }
  } catch (error) {
    if (error instanceof InputError || isFileError(error)) throw error
    throw brokenOff(reasonOf(failure ?? error))
  }
  if (position < file.size) throw brokenOff('the connection was closed')
}

function isFileError(error: unknown): boolean {
  return typeof (error as NodeJS.ErrnoException | undefined)?.syscall === 'string'
}

/** What went wrong on the network, in a few words. */
export function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  const cause = error.cause as NodeJS.ErrnoException | undefined
  return cause?.code ?? cause?.message ?? error.message
}

/** The hash that the listing would give this content: SHA-256, or the SHA-1 of a Git blob. */
async function hashOf(path: string, file: RepositoryFile): Promise<string> {
  const hash = file.hash.length === 64 ? createHash('sha256') : createHash('sha1').update(`blob ${file.size}\0`)
  for await (const chunk of createReadStream(path, { highWaterMark: 1 << 20 })) hash.update(chunk as Buffer)
  return hash.digest('hex')
}
