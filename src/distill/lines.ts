import { createReadStream } from 'node:fs'
import { InputError } from '../support/errors.ts'
import { fileError } from '../support/files.ts'

/** A line of a text file, without the space around it. */
export interface TextLine {
  /** Its first characters, as many as were asked for. */
  text: string
  /** Whether the line goes on after them. */
  cut: boolean
}

const LINE_END = /\r\n|[\n\r\u2028\u2029]/

/**
 * The lines of a UTF-8 text file that are not blank. Memory is bounded by `most`, however long a line is.
 *
 * @param most characters of a line that are kept
 * @throws InputError for a file that cannot be read, is no UTF-8 or holds a NUL, as files that are no text do
 */
export async function* textLines(file: string, most: number): AsyncGenerator<TextLine> {
  const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })
  let bytes = 0
  let open = ''
  let afterReturn = false
  const decode = (chunk?: Buffer): string => {
    try {
      const text = chunk === undefined ? decoder.decode() : decoder.decode(chunk, { stream: true })
      if (!text.includes('\0')) return text
    } catch (error) {
      throw new InputError(`The file is not UTF-8 (after byte ${bytes}); convert it to UTF-8.`, { file }, error)
    }
    throw new InputError(`The file holds NUL characters (after byte ${bytes}): it is no text.`, { file })
  }
  try {
    for await (const chunk of createReadStream(file)) {
      const text = decode(chunk as Buffer)
      bytes += (chunk as Buffer).length
      const pieces = (afterReturn && text.startsWith('\n') ? text.slice(1) : text).split(LINE_END)
      if (text !== '') afterReturn = text.endsWith('\r')
      for (const [i, piece] of pieces.entries()) {
        open = longer(open, piece, most)
        if (i === pieces.length - 1) continue
        if (open.trim() !== '') yield lineOf(open, most)
        open = ''
      }
    }
    decode()
    if (open.trim() !== '') yield lineOf(open, most)
  } catch (error) {
    throw fileError(error, 'cannot read the texts', file)
  }
}

/** A line and what comes next in it, but no more of it than its first `most` characters and one that says that it goes on. */
function longer(line: string, next: string, most: number): string {
  const all = (line + next).trimStart()
  if (all.length <= most) return all
  const goesOn = all.slice(most).trim() !== ''
  return all.slice(0, most) + (goesOn ? '.' : '')
}

function lineOf(open: string, most: number): TextLine {
  const text = open.trim()
  return { text: text.slice(0, most), cut: text.length > most }
}
