import type { z } from 'zod'
import { InputError } from '../../support/errors.ts'

/**
 * A model's config.json as `schema` reads it.
 *
 * @throws InputError naming the field that is missing or asks for a variant that isn't supported
 */
export function checkModelConfig<T>(schema: z.ZodType<T>, config: Record<string, unknown>, file: string): T {
  const result = schema.safeParse(config)
  if (result.success) return result.data
  const issue = result.error.issues[0]
  const path = issue?.path.join('.') ?? ''
  const value = JSON.stringify(
    issue?.path.reduce<unknown>((v, k) => (v as Record<PropertyKey, unknown> | undefined)?.[k], config),
  )
  throw new InputError(`"${path}" is ${value ?? 'missing'}: ${issue?.message ?? 'not supported'}.`, { file })
}
