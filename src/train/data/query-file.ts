import { closeSync, openSync, readSync, rmSync, writeSync } from 'node:fs'
import { join } from 'node:path'
import { fileError, temporaryName } from '../../support/files.ts'

/** The query embedding of a question by its number in the training set: of unit length, frozen. */
export type QueryRows = (question: number) => Float32Array

/** Query embeddings on disk. Close it. */
export interface QueryFile {
  write(question: number, embedding: Float32Array): void
  /** Reads an embedding that was written, to the bit. */
  read: QueryRows
  close(): void
}

/**
 * Opens a file for query embeddings in a run's folder, so that memory does not grow with the number of questions. It belongs to
 * this process alone and loses its name at once, where the system can do that: a process that is killed leaves nothing. Where
 * it cannot, the name is that of a temporary file, which the run's next process removes.
 *
 * @throws InputError, also from `write` and `read`, when the disk is full, read-only and the like
 */
export function createQueryFile(folder: string, dimension: number): QueryFile {
  const path = temporaryName(join(folder, 'query-embeddings'))
  const guard = <T>(action: () => T): T => {
    try {
      return action()
    } catch (error) {
      throw fileError(error, 'cannot keep the query embeddings', path)
    }
  }
  const remove = (): void => {
    try {
      rmSync(path, { force: true })
    } catch {
      // a system that removes no open files
    }
  }
  const fd = guard(() => openSync(path, 'wx+'))
  remove()
  const rowBytes = 4 * dimension
  return {
    write(question, embedding) {
      const bytes = new Uint8Array(embedding.buffer, embedding.byteOffset, embedding.byteLength)
      if (bytes.length !== rowBytes)
        throw new RangeError(`An embedding has ${dimension} numbers here, not ${embedding.length}`)
      for (let done = 0; done < rowBytes; )
        done += guard(() => writeSync(fd, bytes, done, rowBytes - done, question * rowBytes + done))
    },
    read(question) {
      const embedding = new Float32Array(dimension)
      const bytes = new Uint8Array(embedding.buffer)
      const length = guard(() => readSync(fd, bytes, 0, rowBytes, question * rowBytes))
      if (length !== rowBytes) throw new RangeError(`The question ${question} has no query embedding`)
      return embedding
    },
    close() {
      closeSync(fd)
      remove()
    },
  }
}
