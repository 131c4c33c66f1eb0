import { z } from 'zod'
import { PAIR_KINDS, type PairKind } from './pairs.ts'

export const PREFERENCES_SCHEMA = 'canopy-preferences/1'

/** The first line of a preferences file: what the pairs were made from. */
export interface PreferencesHeader {
  schema: typeof PREFERENCES_SCHEMA
  /** Name of the dataset. */
  dataset: string
  split: string
  /** SHA-256 (hexadecimal) of the split: its questions and the items they name. */
  hash: string
  /** Branching factor of the trees. */
  branching: number
  /** There when questions that are marked with a variant were left out. */
  variants?: 'leave-out'
}

/** One (question, gold item). Without decision nodes, `nodes` and `pairs` are empty. */
export interface PreferenceInstance {
  /** Id of the question. */
  question: string
  /** Id of the item. */
  item: string
  /** Leaf ranges `[from, to)` of the nodes that are in a pair, in pre-order of the tree. */
  nodes: [number, number][]
  /** Indices into `nodes`: the preferred one, the other one; and the kind of the pair. */
  pairs: [number, number, PairKind][]
}

const index = z.int().min(0)

export const headerSchema: z.ZodType<PreferencesHeader> = z.strictObject({
  schema: z.literal(PREFERENCES_SCHEMA),
  dataset: z.string().min(1),
  split: z.string().min(1),
  hash: z.string().regex(/^[0-9a-f]{64}$/, { error: 'expected 64 hexadecimal digits' }),
  branching: z.int().min(2),
  variants: z.literal('leave-out').exactOptional(),
})

export const instanceSchema: z.ZodType<PreferenceInstance> = z
  .strictObject({
    question: z.string().min(1),
    item: z.string().min(1),
    nodes: z.array(z.tuple([index, index])),
    pairs: z.array(z.tuple([index, index, z.enum(PAIR_KINDS)])),
  })
  .superRefine(({ nodes, pairs }, context) => {
    const issue = (path: (string | number)[], message: string): void => {
      context.addIssue({ code: 'custom', path, message })
    }
    const seen = new Set<string>()
    for (const [i, [from, to]] of nodes.entries()) {
      if (from >= to) issue(['nodes', i], `[${from}, ${to}) covers no leaf`)
      if (seen.size === seen.add(`${from}-${to}`).size) issue(['nodes', i], `[${from}, ${to}) is listed twice`)
    }
    for (const [i, [preferred, other]] of pairs.entries()) {
      const outside = [preferred, other].find((node) => node >= nodes.length)
      if (outside !== undefined) issue(['pairs', i], `node ${outside} is not among the ${nodes.length} nodes`)
      else if (preferred === other) issue(['pairs', i], `prefers node ${preferred} over itself`)
    }
  })
