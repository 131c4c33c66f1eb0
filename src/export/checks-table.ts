import { markdownTable, textTable } from '../eval/index.ts'
import type { CheckedVariant } from './check-folder.ts'

const HEADER = [
  'graph',
  'MB',
  'cosine',
  'difference',
  'decision accuracy',
  'lost',
  'won',
  'pruned items',
  'dropped items',
  'same ranges',
]

const number = (share: number): string => (Number.isNaN(share) ? '–' : (100 * share).toFixed(1))

/**
 * The graphs of an export beside the trained encoder, a row each: megabytes; smallest cosine and largest difference to it over all
 * inputs compared; with held-out items decision accuracy, decisions lost and won, items pruned, items of which something is
 * dropped, and items of which the same ranges are kept (shares in per cent).
 */
function rows(checks: readonly CheckedVariant[]): { header: string[]; rows: string[][] } {
  const first = checks.find(({ refinement }) => refinement !== undefined)?.refinement
  const width = first === undefined ? 4 : HEADER.length
  const trained =
    first === undefined
      ? []
      : [
          [
            ...['trained', '', '', ''],
            ...[number(first.trained.decisionAccuracy), '', ''],
            ...[number(first.trained.prunedItemRate), number(first.trained.droppedItemRate), ''],
          ],
        ]
  const written = checks.map(({ name, bytes, minCosine, maxDifference, refinement }) => [
    ...[name, (bytes / 1e6).toFixed(1), minCosine.toFixed(7), maxDifference.toExponential(1)],
    ...(refinement === undefined
      ? []
      : [
          ...[number(refinement.exported.decisionAccuracy), String(refinement.lost), String(refinement.gained)],
          ...[number(refinement.exported.prunedItemRate), number(refinement.exported.droppedItemRate)],
          `${Math.round(refinement.sameKept * refinement.instances)} of ${refinement.instances}`,
        ]),
  ])
  return { header: HEADER.slice(0, width), rows: [...trained, ...written] }
}

export const checksText = (checks: readonly CheckedVariant[]): string => {
  const table = rows(checks)
  return textTable(table.header, table.rows)
}

export const checksMarkdown = (checks: readonly CheckedVariant[]): string => {
  const table = rows(checks)
  return markdownTable(table.header, table.rows)
}
