import type { Evaluation } from './evaluation.ts'
import { TOKENS_PER_PICTURE } from './items.ts'
import type { Collected } from './results.ts'
import type { ModelEncoder } from './scored.ts'

/** What pictures count as, as a sentence without a full stop. */
export const PICTURE_TOKENS = `Images, and each frame of a video, count as ${TOKENS_PER_PICTURE} tokens`

/** How many unreadable items are named. */
const NAMED = 3

/**
 * Which items are left out because they cannot be read.
 *
 * @param unreadable item -> why
 */
export function unreadableNotes(unreadable: ReadonlyMap<string, string>): string[] {
  if (unreadable.size === 0) return []
  const named = [...unreadable].slice(0, NAMED).map(([item, reason]) => `"${item}": ${reason}`)
  const more = unreadable.size > NAMED ? `; and ${unreadable.size - NAMED} more` : ''
  return [
    `${unreadable.size} items are left out of every figure, whose picture or video cannot be read (${named.join('; ')}${more})`,
  ]
}

/** What the source of the scores has to say. */
export interface NotedScores {
  /** Encoders that have scores. */
  models: readonly ModelEncoder[]
  /** Why a benchmark has no permuted row. */
  unpermuted: string
  /** What is to be said once everything is scored. */
  notes?: () => string[]
}

/** What a reader of the tables has to know, in sentences without a full stop. */
export function notesOn(
  { models, unpermuted, notes }: NotedScores,
  evaluation: Evaluation,
  { missing }: Collected,
): string[] {
  const { counts, apart } = evaluation
  const found: string[] = []
  if (!models.includes('fine-tuned')) {
    found.push('Fine-tuned and permuted are absent: only the frozen encoder was evaluated')
  } else if (!models.includes('permuted')) {
    found.push('Permuted is absent: without it nobody can tell whether the questions were read')
  }
  for (const row of [...(missing.get('permuted') ?? [])].sort()) {
    if (models.includes('permuted')) found.push(`Permuted is absent for ${row}, ${unpermuted}`)
  }
  for (const [row, { goldItems, goldItemsNotText, otherItemsNotText }] of Object.entries(counts)) {
    if (goldItemsNotText + otherItemsNotText === 0) continue
    const rest = goldItems === 0 ? '; nothing of it is left to measure' : ''
    found.push(
      `${row}: ${goldItemsNotText} gold items and ${otherItemsNotText} other retrieved items are images or videos, which an encoder of text cannot read; they are left out of every figure${rest}`,
    )
  }
  if (apart.length > 0) {
    found.push(
      `Shown apart, and in no pooled figure and no mean: ${apart.join(', ')} (questions of a kind of their own, permuted among themselves)`,
    )
  }
  return [...found, ...(notes?.() ?? [])]
}
