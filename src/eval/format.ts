import type { Estimate } from './estimates.ts'

/** A table in Markdown. */
export function markdownTable(header: readonly string[], rows: readonly (readonly string[])[]): string {
  const cell = (text: string): string => text.replaceAll('|', '\\|').replaceAll('\n', ' ')
  const line = (cells: readonly string[]): string => `| ${cells.map(cell).join(' | ')} |`
  return [line(header), line(header.map(() => '---')), ...rows.map(line)].join('\n')
}

/** A table in plain text, columns aligned, for a terminal. */
export function textTable(header: readonly string[], rows: readonly (readonly string[])[]): string {
  const widths = header.map((name, i) => Math.max(name.length, ...rows.map((row) => row[i]!.length)))
  const line = (cells: readonly string[]): string =>
    cells
      .map((cell, i) => cell.padEnd(widths[i]!))
      .join('  ')
      .trimEnd()
  return [line(header), line(widths.map((width) => '-'.repeat(width))), ...rows.map(line)].join('\n')
}

/** A share in per cent, or a difference of two in points; a dash where there is none. */
export function percent(value: number | null | undefined, plus = false): string {
  if (value === null || value === undefined) return '–'
  return `${plus && value > 0 ? '+' : ''}${(100 * value).toFixed(1)}`
}

/** `12.3 [10.1, 14.5]`, in per cent or points. */
export function withInterval(estimate: Estimate | undefined, plus = false): string {
  if (estimate?.value === undefined || estimate.value === null) return '–'
  const interval = estimate.lo === null ? '' : ` [${percent(estimate.lo, plus)}, ${percent(estimate.hi, plus)}]`
  return percent(estimate.value, plus) + interval
}

/** The same for a number of tokens. */
export function tokens(estimate: Estimate | undefined, plus = false): string {
  if (estimate?.value === undefined || estimate.value === null) return '–'
  const number = (value: number): string => `${plus && value > 0 ? '+' : ''}${value.toFixed(1)}`
  const interval = estimate.lo === null ? '' : ` [${number(estimate.lo)}, ${number(estimate.hi!)}]`
  return number(estimate.value) + interval
}

/** A difference of two scores. */
export function signed(value: number | null): string {
  return value === null ? '–' : `${value > 0 ? '+' : ''}${value.toFixed(4)}`
}
