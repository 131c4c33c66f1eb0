import { MissingToolError } from '../../media/index.ts'
import { InputError } from '../../support/errors.ts'

/**
 * One item's own picture or video cannot be read; all others can go on without it. What goes wrong with the encoder's files, with a
 * cache or with a device is none.
 */
export class UnreadableError extends InputError {
  override name = 'UnreadableError'
}

/**
 * Looks into an item's own file.
 *
 * @param file what the error names
 * @throws UnreadableError where the file is at fault; other errors, as that FFmpeg is not installed, as they are
 */
export async function lookInto<T>(file: string, look: () => Promise<T>): Promise<T> {
  try {
    return await look()
  } catch (error) {
    if (!(error instanceof InputError) || error instanceof MissingToolError) throw error
    const place = `${file}: `
    const reason = error.message.startsWith(place) ? error.message.slice(place.length) : error.message
    throw new UnreadableError(reason, { file }, error)
  }
}

/** An error of a verb that leaves out what cannot be read: where no file is at fault, it says why it stopped. */
export function beyondSkipping(error: unknown, onError: 'stop' | 'skip'): unknown {
  if (onError === 'stop' || !(error instanceof MissingToolError)) return error
  return new MissingToolError(
    `${error.message} No video is at fault, so that --on-error skip leaves none out for it.`,
    {},
    error,
  )
}

/** The error of an item that stops what goes through many: with the item's name and the way out. */
export function stoppedBy(item: string, error: UnreadableError): UnreadableError {
  const reason = error.message.replace(/\.$/, '')
  return new UnreadableError(
    `${reason}. Repair it, or leave out its item (${JSON.stringify(item)}) and all others like it with --on-error skip; "canopy check <dataset> --encoder <folder>" names them.`,
    {},
    error,
  )
}
