import { open, rename } from 'node:fs/promises'
import { dirname } from 'node:path'
import type { Embedder } from '../encoder/index.ts'
import { InputError } from '../support/errors.ts'
import { fileError, syncFolder } from '../support/files.ts'
import { duration, type Progress } from '../support/progress.ts'

/** Rows of float32 in a file, one for each text. */
export interface EmbeddingFile {
  rows: number
  /** float32 [indices, dimension], in the order of `indices`. */
  read(indices: readonly number[]): Promise<Float32Array>
  close(): Promise<void>
}

/** Texts that are embedded between two appends to the file. */
const CHUNK = 2048

/**
 * Embeds texts with the teacher into a file of float32 rows of unit length. It grows by whole chunks under a name of its own, so that an
 * interrupted run goes on where it was, and gets its name when it is complete.
 */
export async function writeTeacher(
  path: string,
  texts: readonly string[],
  embedder: Embedder,
  { onProgress = () => {}, signal }: { onProgress?: Progress; signal?: AbortSignal | undefined } = {},
): Promise<void> {
  const rowBytes = 4 * embedder.dimension
  const partial = `${path}.partial`
  const failed = (error: unknown): never => {
    throw fileError(error, "cannot write the teacher's embeddings", partial)
  }
  const handle = await open(partial, 'a').catch(failed)
  try {
    const { size } = await handle.stat()
    let done = Math.floor(size / rowBytes / CHUNK) * CHUNK
    await handle.truncate(done * rowBytes)
    const started = performance.now()
    const before = done
    while (done < texts.length) {
      signal?.throwIfAborted()
      const chunk = texts.slice(done, done + CHUNK)
      const { embeddings } = await embedder.embedTexts(chunk, 'node', signal === undefined ? {} : { signal })
      toUnit(embeddings, embedder.dimension)
      await handle.appendFile(new Uint8Array(embeddings.buffer, embeddings.byteOffset, embeddings.byteLength))
      done += chunk.length
      const perSecond = ((done - before) / (performance.now() - started)) * 1000
      onProgress({
        phase: "teacher's embeddings",
        done,
        total: texts.length,
        note: `${perSecond.toFixed(0)} texts/s, ${duration((texts.length - done) / perSecond)} left`,
      })
    }
    await handle.sync()
  } catch (error) {
    failed(error)
  } finally {
    await handle.close()
  }
  await rename(partial, path).catch(failed)
  await syncFolder(dirname(path))
}

/**
 * Opens what `writeTeacher` wrote, for reading rows in any order.
 *
 * @param texts how many rows there are to be
 * @throws InputError for a file that is missing or does not hold as many rows
 */
export async function openTeacher(path: string, dimension: number, texts: number): Promise<EmbeddingFile> {
  const rowBytes = 4 * dimension
  const failed = (error: unknown): never => {
    throw fileError(error, "cannot read the teacher's embeddings", path)
  }
  const handle = await open(path).catch(failed)
  const { size } = await handle.stat()
  if (size !== texts * rowBytes) {
    await handle.close()
    throw new InputError(
      `The file of the teacher's embeddings is damaged: it has ${size} bytes, not the ${texts * rowBytes} of ${texts} texts. Remove it: it is made again.`,
      { file: path },
    )
  }
  return {
    rows: texts,
    async read(indices) {
      const rows = new Float32Array(indices.length * dimension)
      const bytes = new Uint8Array(rows.buffer)
      for (const [at, index] of indices.entries())
        await handle.read(bytes, at * rowBytes, rowBytes, index * rowBytes).catch(failed)
      return rows
    },
    close: () => handle.close(),
  }
}

/** Brings each row to length 1, in place. */
export function toUnit(rows: Float32Array, dimension: number): void {
  for (let start = 0; start < rows.length; start += dimension) {
    let squares = 0
    for (let k = 0; k < dimension; k++) squares += rows[start + k]! ** 2
    const factor = 1 / Math.max(Math.sqrt(squares), 1e-12)
    for (let k = 0; k < dimension; k++) rows[start + k]! *= factor
  }
}
