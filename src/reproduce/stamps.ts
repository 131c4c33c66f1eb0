import { readFile } from 'node:fs/promises'
import { z } from 'zod'
import { writeFileAtomic } from '../support/files.ts'

/** What a step depends on, or what it made, by name: settings, versions, hashes of content. */
export type Inputs = Record<string, string>

const SCHEMA = 'canopy-stamp/1'

const schema = z.object({
  schema: z.literal(SCHEMA),
  step: z.string(),
  /** What the output was made from: what is known beforehand, and what steps before it gave. */
  settings: z.record(z.string(), z.string()),
  content: z.record(z.string(), z.string()),
  /** Hashes of what the step made; absent while it is at work. */
  products: z.record(z.string(), z.string()).optional(),
  /** What it has to say about that. */
  result: z.unknown().optional(),
  seconds: z.number().optional(),
})

/** Left beside a step's output: what it was made from. Without `products` the step began and did not end. */
export type Stamp = z.output<typeof schema>

/** A missing or broken stamp is none: the step runs again. */
export async function readStamp(file: string): Promise<Stamp | undefined> {
  try {
    return schema.safeParse(JSON.parse(await readFile(file, 'utf8'))).data
  } catch {
    return undefined
  }
}

export async function writeStamp(file: string, stamp: Omit<Stamp, 'schema'>): Promise<void> {
  await writeFileAtomic(file, `${JSON.stringify({ schema: SCHEMA, ...stamp }, null, 2)}\n`)
}

/** In words, how `now` differs from `before`: `train.rank 8 -> 16`; none when all is the same. */
export function changes(before: Inputs, now: Inputs): string[] {
  const names = [...new Set([...Object.keys(before), ...Object.keys(now)])]
  return names.flatMap((name) => {
    const [old, current] = [before[name], now[name]]
    if (old === current) return []
    if (old === undefined) return [`${name} is new`]
    if (current === undefined) return [`${name} is gone`]
    return [isHash(old) && isHash(current) ? `${name} (its content)` : `${name} ${old} -> ${current}`]
  })
}

const isHash = (value: string): boolean => /^[0-9a-f]{64}$/.test(value)

/** A nested value as inputs: `{ train: { betas: [1, 2] } }` gives `train.betas: [1,2]`. */
export function flatInputs(value: object, prefix = ''): Inputs {
  return Object.fromEntries(
    Object.entries(value).flatMap(([name, entry]: [string, unknown]): [string, string][] => {
      if (entry === undefined) return []
      if (typeof entry === 'object' && entry !== null && !Array.isArray(entry))
        return Object.entries(flatInputs(entry, `${prefix}${name}.`))
      return [[`${prefix}${name}`, typeof entry === 'string' ? entry : JSON.stringify(entry)]]
    }),
  )
}
