/** Text as Markdown shows it unchanged, in one line: between more backquotes than it has in a row. */
export function code(text: string): string {
  const line = text.replace(/\s+/g, ' ')
  const marks = longerThan(line, 0)
  const space = /^`|`$/.test(line) ? ' ' : ''
  return marks + space + line + space + marks
}

/** Text as Markdown shows it unchanged, in one line of a block of its own. */
export function fenced(text: string): string {
  const line = text.replace(/\s+/g, ' ')
  const marks = longerThan(line, 2)
  return `${marks}sh\n${line}\n${marks}`
}

/** Markdown in a cell of a table, which a bar would end, between backquotes, too. */
export const cell = (markdown: string): string => markdown.replaceAll('|', '\\|')

/** More backquotes than the text has in a row, and more than `least`. */
function longerThan(text: string, least: number): string {
  return '`'.repeat(1 + Math.max(least, ...(text.match(/`+/g) ?? []).map((run) => run.length)))
}
