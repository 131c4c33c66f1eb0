import { InputError } from '../support/errors.ts'

/** What an offset counts: UTF-16 code units (JavaScript), Unicode code points (Python), or UTF-8 bytes (Go, Rust). */
export type OffsetUnit = 'utf16' | 'codepoint' | 'byte'

/**
 * Spans `[start, end)` given in `unit`, as UTF-16 code units into `text`.
 *
 * @throws InputError for a span that is inverted, leaves the text, or has an end inside a character
 */
export function toUtf16Offsets(text: string, unit: OffsetUnit, spans: readonly [number, number][]): [number, number][] {
  const length = textLength(text, unit)
  for (const [start, end] of spans) {
    if (!Number.isInteger(start) || !Number.isInteger(end) || start < 0 || end < start || end > length) {
      throw new InputError(`Span [${start}, ${end}) is not a range within the text of ${length} ${UNIT_NAMES[unit]}.`)
    }
  }
  if (unit === 'utf16') return spans.map(([start, end]) => [start, end])

  const wanted = [...new Set(spans.flat())].sort((a, b) => a - b)
  const converted = new Map<number, number>()
  let at = 0
  let utf16 = 0
  for (const offset of wanted) {
    while (at < offset) {
      const code = text.codePointAt(utf16)!
      at += unit === 'codepoint' ? 1 : utf8Length(code)
      utf16 += code > 0xffff ? 2 : 1
    }
    if (at !== offset) throw new InputError(`Byte offset ${offset} lies inside a character of the text.`)
    converted.set(offset, utf16)
  }
  return spans.map(([start, end]) => [converted.get(start)!, converted.get(end)!])
}

/** What messages call a unit. */
export const UNIT_NAMES: Record<OffsetUnit, string> = {
  utf16: 'UTF-16 code units',
  codepoint: 'code points',
  byte: 'bytes',
}

/** The length of a text in `unit`. */
export function textLength(text: string, unit: OffsetUnit): number {
  if (unit === 'utf16') return text.length
  if (unit === 'byte') return new TextEncoder().encode(text).length
  let count = 0
  for (const _ of text) count++
  return count
}

/** Whether `offset` (UTF-16 code units) lies between the two halves of a surrogate pair. */
export function splitsCharacter(text: string, offset: number): boolean {
  return offset > 0 && offset < text.length && (text.codePointAt(offset - 1) ?? 0) > 0xffff
}

/** The span (UTF-16 code units) without the white space at its ends; empty where it holds nothing else. */
export function trimSpan(text: string, [start, end]: [number, number]): [number, number] {
  const inside = text.slice(start, end)
  const from = start + inside.length - inside.trimStart().length
  return [from, Math.max(from, start + inside.trimEnd().length)]
}

function utf8Length(code: number): number {
  return code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4
}

/**
 * The one place `[start, end)` (UTF-16 code units) where `quote` stands in `text`, letter for letter.
 *
 * @throws InputError when it stands nowhere (listing places that differ in case or white space only) or in several places
 *   (listing them)
 */
export function locateQuote(text: string, quote: string): [number, number] {
  if (quote.trim() === '') throw new InputError('A quote has at least one visible character.')
  const places = occurrences(text, quote, CANDIDATES + 1)
  const [first, second] = places
  if (first !== undefined && second === undefined) return first
  const shown = JSON.stringify(quote.length > 80 ? `${quote.slice(0, 80)}…` : quote)
  if (first !== undefined) {
    throw new InputError(
      `The quote ${shown} stands in several places: ${candidateList(text, places)}. Quote more of the text, or give spans.`,
    )
  }
  const near = nearOccurrences(text, quote)
  throw new InputError(
    near.length > 0
      ? `The quote ${shown} is not in the text letter for letter; close to it: ${candidateList(text, near)}.`
      : `The quote ${shown} is not in the text, nor anything that differs only in case or white space.`,
  )
}

const CANDIDATES = 5

function occurrences(text: string, quote: string, most: number): [number, number][] {
  const places: [number, number][] = []
  for (let at = text.indexOf(quote); at >= 0 && places.length < most; at = text.indexOf(quote, at + 1)) {
    places.push([at, at + quote.length])
  }
  return places
}

function nearOccurrences(text: string, quote: string): [number, number][] {
  const words = quote.trim().split(/\s+/)
  const pattern = new RegExp(words.map((word) => word.replace(/[\\^$.*+?()[\]{}|/]/g, '\\$&')).join('\\s+'), 'giu')
  const places: [number, number][] = []
  for (const match of text.matchAll(pattern)) {
    places.push([match.index, match.index + match[0].length])
    if (places.length > CANDIDATES) break
  }
  return places
}

function candidateList(text: string, places: [number, number][]): string {
  const listed = places.slice(0, CANDIDATES).map(([start, end]) => {
    const context = text.slice(Math.max(0, start - 15), Math.min(text.length, end + 15))
    return `[${start}, ${end}) ${JSON.stringify(context)}`
  })
  return listed.join('; ') + (places.length > CANDIDATES ? '; …' : '')
}
