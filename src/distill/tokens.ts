import { readFile } from 'node:fs/promises'
import { setImmediate as nextTurn } from 'node:timers/promises'
import type { Tokenizer } from '../encoder/index.ts'
import { InputError } from '../support/errors.ts'
import { fileError, writeFileAtomic } from '../support/files.ts'
import type { Progress } from '../support/progress.ts'

/** Token ids of many texts, one after the other. */
export interface TokenStore {
  /** Ids of a text. */
  ids(text: number): Int32Array
  /** Its number of tokens. */
  length(text: number): number
  texts: number
  /** Of all texts together. */
  tokens: number
}

const TEXTS_AT_ONCE = 512

/** Tokenises texts, at most 65 535 different ids, into a file: uint32 number of texts, their lengths in uint16, their ids in uint16. */
export async function writeTokens(
  path: string,
  texts: readonly string[],
  tokenizer: Tokenizer,
  { onProgress = () => {}, signal }: { onProgress?: Progress; signal?: AbortSignal | undefined } = {},
): Promise<void> {
  const lengths = new Uint16Array(texts.length)
  const parts: Uint16Array[] = []
  for (const [i, text] of texts.entries()) {
    if (i % TEXTS_AT_ONCE === 0) {
      onProgress({ phase: "student's tokens", done: i, total: texts.length })
      await nextTurn()
      signal?.throwIfAborted()
    }
    const { ids } = tokenizer.encode(text)
    lengths[i] = ids.length
    parts.push(Uint16Array.from(ids))
  }
  const bytes = (array: Uint16Array | Uint32Array): Uint8Array => new Uint8Array(array.buffer)
  const head = Uint32Array.of(texts.length)
  await writeFileAtomic(path, Buffer.concat([bytes(head), bytes(lengths), ...parts.map(bytes)]))
}

/**
 * Reads what `writeTokens` wrote, whole.
 *
 * @param texts how many there are to be
 * @param vocabulary number of different ids
 * @throws InputError for a file that is missing, damaged or of other texts
 */
export async function readTokens(path: string, texts: number, vocabulary: number): Promise<TokenStore> {
  const bytes = await readFile(path).catch((error: unknown) => {
    throw fileError(error, 'cannot read the tokens', path)
  })
  const words = new Uint16Array(bytes.buffer.slice(bytes.byteOffset + 4, bytes.byteOffset + (bytes.length & ~1)))
  const starts = new Float64Array(texts + 1).fill(texts, 0, 1)
  for (let i = 0; i < texts; i++) starts[i + 1] = starts[i]! + (words[i] ?? 0)
  const whole = bytes.length === 4 + 2 * starts[texts]! && bytes.readUInt32LE(0) === texts
  if (!whole || words.subarray(texts).some((id) => id >= vocabulary))
    throw new InputError('The file of tokens is damaged or of other texts. Remove it: it is made again.', {
      file: path,
    })
  return {
    texts,
    tokens: starts[texts]! - texts,
    length: (text) => words[text]!,
    ids: (text) => Int32Array.from(words.subarray(starts[text]!, starts[text + 1]!)),
  }
}
