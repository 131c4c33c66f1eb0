import type { z } from 'zod'
import { parseWith } from '../data/index.ts'
import { InputError } from '../support/errors.ts'

/** @throws InputError naming file and line */
export function parseJson(text: string, file: string, line?: number): unknown {
  try {
    return JSON.parse(text)
  } catch (error) {
    throw new InputError(`not valid JSON: ${(error as Error).message}`, { file, line }, error)
  }
}

/** @throws InputError naming file and line, and what is wrong there */
export function parseJsonAs<T>(schema: z.ZodType<T>, text: string, file: string, what: string, line?: number): T {
  return parseWith(schema, parseJson(text, file, line), { file, line }, what)
}
