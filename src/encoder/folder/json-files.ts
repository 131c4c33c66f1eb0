import { readFile } from 'node:fs/promises'
import type { z } from 'zod'
import { InputError } from '../../support/errors.ts'
import { exists, fileError } from '../../support/files.ts'

/**
 * Reads a JSON object.
 *
 * @param howToGet a sentence for where to get a file that is not there; may be empty
 * @throws InputError naming the file that is missing or no JSON object
 */
export async function readJsonObject(file: string, howToGet: string): Promise<Record<string, unknown>> {
  const value = await readJson(file, howToGet)
  if (value === null || typeof value !== 'object' || Array.isArray(value))
    throw new InputError('a JSON object was expected.', { file })
  return value as Record<string, unknown>
}

async function readJson(file: string, howToGet: string): Promise<unknown> {
  const text = await readFile(file, 'utf8').catch((error: unknown) => {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT')
      throw new InputError(`There is no such file. ${howToGet}`.trim(), { file })
    throw fileError(error, 'cannot read the file', file)
  })
  try {
    return JSON.parse(text)
  } catch (error) {
    throw new InputError(`The file is not valid JSON (${(error as Error).message}).`, { file }, error)
  }
}

/** Reads a file of a certain form; undefined where there is none. */
export async function readOptional<T>(file: string, schema: z.ZodType<T>): Promise<T | undefined> {
  return (await exists(file)) ? check(schema, await readJson(file, ''), file) : undefined
}

/** A value of a certain form; an InputError that names the file and the field otherwise. */
export function check<T>(schema: z.ZodType<T>, value: unknown, file: string): T {
  const result = schema.safeParse(value)
  if (result.success) return result.data
  const issue = result.error.issues[0]
  throw new InputError(`${issue?.path.length ? `"${issue.path.join('.')}": ` : ''}${issue?.message ?? 'malformed'}.`, {
    file,
  })
}
