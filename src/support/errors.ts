/**
 * Something outside the program is wrong: a file, a setting, a model. The message is a sentence that names the thing,
 * its place and the way out; the command line prints it without a stack trace and exits with status 1.
 */
export class InputError extends Error {
  override name = 'InputError'
  /** The file (and 1-based line) at fault, when there is one. */
  readonly file: string | undefined
  readonly line: number | undefined

  constructor(message: string, place: { file?: string | undefined; line?: number | undefined } = {}, cause?: unknown) {
    const prefix =
      place.file === undefined ? '' : place.line === undefined ? `${place.file}: ` : `${place.file}:${place.line}: `
    super(prefix + message, cause === undefined ? undefined : { cause })
    this.file = place.file
    this.line = place.line
  }
}

/** The command was called in a way it does not understand; exit status 2. */
export class UsageError extends Error {
  override name = 'UsageError'
}

/** A message that another sentence follows. */
export const ended = (message: string): string => (/[.!?]$/.test(message) ? message : `${message}.`)
