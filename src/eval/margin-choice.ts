import { leafMargins } from '../refine/index.ts'
import { InputError } from '../support/errors.ts'
import { getOrMake } from './maps.ts'
import { atLeast, atMargins, countsForRecall, MARGIN_METRICS } from './margin-curve.ts'
import { type ModelEncoder, type ScoredInstance, scoreOf, tableRow } from './scored.ts'

/** Means over the validation items, without intervals. */
export type ValidationMeans = Pick<
  Record<(typeof MARGIN_METRICS)[number], number>,
  'retained_tokens' | 'gold_recall' | 'gold_precision' | 'gold_f1'
>

/** The margin that validation items ask for, and what they show. */
export interface MarginChoice {
  margin: number
  /** Gold items with two or more leaves, and different sources. */
  items: number
  sources: number
  /** Of these items, by row of the tables. */
  rows: Record<string, number>
  /** At margin 0. */
  rule: ValidationMeans
  /** At the chosen one. */
  chosen: ValidationMeans
}

/**
 * The smallest margin at which the mean gold recall over the gold items with two or more leaves is at least `recall`; variants,
 * which stand in no pooled figure, count only where there is nothing else. Of the margins that do the very same on these items, the one with the fewest digits.
 *
 * @param recall above 0, at most 1
 * @param named the validation data, for messages
 * @throws InputError when there is no such item, and naming an item without scores of the encoder
 */
export async function chooseMargin(
  instances: AsyncIterable<ScoredInstance>,
  encoder: ModelEncoder,
  recall: number,
  named: string,
): Promise<MarginChoice> {
  const found: ScoredInstance[] = []
  for await (const instance of instances) if (countsForRecall(instance)) found.push(instance)
  // What stands apart from the pooled figures of an evaluation has no say here either, unless there is nothing else.
  const plain = found.filter(({ variant }) => variant === undefined)
  const items = plain.length > 0 ? plain : found
  const rows = new Map<string, number>()
  const every: number[] = []
  const gold: { margin: number; share: number }[] = []
  for (const instance of items) {
    const scores = instance.scores[encoder]
    if (scores === undefined)
      throw new InputError(
        `Item "${instance.item}" of question "${instance.question}" in ${named} has no ${encoder} scores, so no margin can be picked on it.`,
      )
    rows.set(tableRow(instance), getOrMake(rows, tableRow(instance), () => 0) + 1)
    const margins = leafMargins(instance.root, scoreOf(instance.nodes, scores))
    const goldCount = instance.gold.filter(Boolean).length
    for (const [leaf, margin] of margins.entries()) {
      every.push(margin)
      if (instance.gold[leaf]) gold.push({ margin, share: 1 / goldCount })
    }
  }
  if (items.length === 0)
    throw new InputError(
      `No margin can be picked on ${named}: it has no gold item with two or more leaves that the encoder reads. Name other data by --validation-dataset and --validation-split.`,
    )
  const margin = fewestDigits(reaching(gold, recall * items.length), every)
  const means = (at: number): ValidationMeans => {
    const sums = new Float64Array(MARGIN_METRICS.length)
    for (const item of items) for (const [m, value] of atMargins(item, encoder, [at])[0]!.entries()) sums[m]! += value
    const of = (name: (typeof MARGIN_METRICS)[number]): number => sums[MARGIN_METRICS.indexOf(name)]! / items.length
    return {
      retained_tokens: of('retained_tokens'),
      gold_recall: of('gold_recall'),
      gold_precision: of('gold_precision'),
      gold_f1: of('gold_f1'),
    }
  }
  return {
    margin,
    items: items.length,
    sources: new Set(items.map(({ source }) => source)).size,
    rows: Object.fromEntries([...rows].sort(([a], [b]) => (a < b ? -1 : 1))),
    rule: means(0),
    chosen: means(margin),
  }
}

/** The smallest margin at which the shares of the gold leaves within it add up to `wanted`. */
function reaching(gold: { margin: number; share: number }[], wanted: number): number {
  const sorted = [...gold].sort((a, b) => a.margin - b.margin)
  let reached = 0
  for (const [i, { margin, share }] of sorted.entries()) {
    reached += share
    // Leaves of one margin come back together. Shares as thirds add up to a whole number but for rounding.
    if (sorted[i + 1]?.margin !== margin && reached >= wanted * (1 - 1e-12)) return margin
  }
  return sorted.at(-1)?.margin ?? 0
}

/** Of the margins from `margin` up to the next one at which a leaf comes back, the one with the fewest significant digits. */
function fewestDigits(margin: number, every: readonly number[]): number {
  if (margin === 0) return 0
  const next = every.reduce(
    (least, other) => (other > margin && other < least ? other : least),
    Number.POSITIVE_INFINITY,
  )
  for (let digits = 1; digits < 17; digits++) {
    const candidate = atLeast(margin, digits)
    if (candidate >= margin && candidate < next) return candidate
  }
  return margin
}
