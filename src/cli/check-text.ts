import type { CheckReport } from '../data/index.ts'
import type { MediaCheck } from '../media/index.ts'
import type { GoldRow } from '../preferences/index.ts'
import type { EncoderCount } from './check-encoder.ts'
import type { Output } from './output.ts'

/** What is found in a folder that can be read as a dataset. */
export interface Insight {
  branching: number
  gold: GoldRow[]
  encoder?: EncoderCount
  /** Items whose picture or video the encoder cannot read, and why. */
  unreadable?: { item: string; reason: string }[]
  media?: MediaCheck
}

/**
 * Prints what a dataset folder holds.
 *
 * @param needsMedia whether missing pictures and videos are among the faults
 */
export function printReport(report: CheckReport, needsMedia: boolean, out: Output): void {
  out.line(
    `${report.folder}: ${report.faults === 0 ? 'no fault' : report.faults === 1 ? '1 fault' : `${report.faults} faults`}`,
  )
  out.line(`  items: ${counts(report.items) || 'none'}`)
  if (report.items.text > 0) {
    out.line(`  text leaves: ${report.leaves}; texts of one leaf only: ${report.oneLeafItems}`)
  }
  if (report.missingMedia > 0) {
    const whose = needsMedia ? '' : ' (no fault for encoders that read only text; --media names them)'
    out.line(`  pictures and videos that are not in the folder: ${report.missingMedia}${whose}`)
  }
  for (const [name, split] of Object.entries(report.splits)) {
    out.line(
      `  split "${name}": ${split.questions} questions, ${split.gold} gold items, ${split.withoutGold} questions without gold, ${split.withRetrieved} with retrieved items`,
    )
  }
}

/** Prints what there is to learn, what an encoder would see of it, and which media can be decoded. */
export function printInsight({ encoder, gold, media }: Insight, out: Output): void {
  if (encoder !== undefined) out.line(`  ${encoder.encoder}, at most ${encoder.maxLength} tokens a node:`)
  for (const row of gold) printRow(row, out)
  if (media !== undefined) printMedia(media, out)
}

function printRow(row: GoldRow, out: Output): void {
  const { decisions, pairs, controls, tokens } = row
  out.line(
    `  "${row.split}" of ${row.benchmark}: ${row.questions} questions; gold items: ${counts(row.instances) || 'none'}`,
  )
  if (row.notText > 0) {
    const counted = tokens === undefined ? '; they are counted here, and with --encoder only if it reads them' : ''
    out.line(`      ${row.notText} of them are images or videos, which an encoder of text cannot read${counted}`)
  }
  if (row.unreadable > 0) out.line(`      ${row.unreadable} of them cannot be read`)
  const { oneLeaf, noGoldLeaf } = row.withoutDecision
  if (oneLeaf + noGoldLeaf > 0) {
    out.line(
      `      nothing to decide on ${oneLeaf + noGoldLeaf}: ${oneLeaf} of one leaf, ${noGoldLeaf} without a gold leaf`,
    )
  }
  out.line(`      ${decisions.total} decision nodes${list(decisions.cases)}; ${pairs.total} pairs${list(pairs.kinds)}`)
  if (decisions.total > 0) {
    const shares = Object.entries(controls).map(([name, share]) => `${name} ${(100 * share).toFixed(1)} %`)
    out.line(`      decision accuracy without reading: ${shares.join(', ')}`)
  }
  if (tokens === undefined) return
  const sizes = Object.entries(tokens.sizes).filter(([, { nodes }]) => nodes > 0)
  const shown = sizes.map(
    ([modality, { nodes, tokens: all, longest }]) => `${modality} ${all} in ${nodes} nodes, the longest ${longest}`,
  )
  if (shown.length > 0) out.line(`      tokens: ${shown.join('; ')}`)
  out.line(
    `      cut: ${tokens.truncatedRoots} of ${tokens.items} roots (${percent(tokens.truncatedRoots, tokens.items)}), ` +
      `${tokens.truncatedNodes} of ${tokens.nodes} nodes (${percent(tokens.truncatedNodes, tokens.nodes)})`,
  )
  out.line(
    `      pairs dropped, both nodes being the same tokens: ${tokens.droppedPairs.total} (${percent(tokens.droppedPairs.total, pairs.total)})${list(tokens.droppedPairs.kinds)}`,
  )
}

function printMedia(media: MediaCheck, out: Output): void {
  const { pictures, images, videos, decodedVideos, withoutFile, frames } = media
  const nameless = withoutFile === 0 ? '' : `, ${withoutFile} of them without a file to read`
  out.line(
    `  media: ${pictures} of ${images} pictures decoded; ${decodedVideos} of ${videos} videos${nameless}; ${frames} frames`,
  )
}

/** `3 text, 2 table`, what is none left out. */
const counts = (of: Record<string, number>): string =>
  Object.entries(of)
    .filter(([, n]) => n > 0)
    .map(([name, n]) => `${n} ${name}`)
    .join(', ')

const list = (of: Record<string, number>): string => (counts(of) === '' ? '' : ` (${counts(of)})`)

const percent = (part: number, of: number): string => (of === 0 ? '0 %' : `${((100 * part) / of).toFixed(1)} %`)
