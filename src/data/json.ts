/**
 * `JSON.parse` that loses no digit: a whole number beyond 2^53 becomes a string of its digits, as identifiers of the official
 * Natural Questions files are. Everything else is what `JSON.parse` gives.
 *
 * @throws SyntaxError as `JSON.parse` does
 */
export function parseJsonLossless(text: string): unknown {
  return JSON.parse(/\d{16}/.test(text) ? quoteLargeIntegers(text) : text)
}

const INTEGER = /-?\d{16,}(?![\d.eE])/y

function quoteLargeIntegers(text: string): string {
  const parts: string[] = []
  let copied = 0
  let at = 0
  while (at < text.length) {
    const code = text.charCodeAt(at)
    if (code === QUOTE) {
      at = endOfString(text, at)
    } else if (code === MINUS || (code >= ZERO && code <= NINE)) {
      INTEGER.lastIndex = at
      const digits = INTEGER.exec(text)?.[0]
      if (digits !== undefined && !Number.isSafeInteger(Number(digits)) && /^-?[1-9]/.test(digits)) {
        parts.push(text.slice(copied, at), '"', digits, '"')
        copied = at + digits.length
        at = copied
      } else {
        // the rest of this number, so that its tail is not taken for a number of its own
        NUMBER.lastIndex = at
        at += Math.max(1, NUMBER.exec(text)?.[0].length ?? 1)
      }
    } else at++
  }
  return parts.length === 0 ? text : parts.join('') + text.slice(copied)
}

const NUMBER = /[-+.\deE]+/y
const QUOTE = 0x22
const BACKSLASH = 0x5c
const MINUS = 0x2d
const ZERO = 0x30
const NINE = 0x39

/** The offset after the string that opens at `start`. */
function endOfString(text: string, start: number): number {
  for (let from = start + 1; ; ) {
    const quote = text.indexOf('"', from)
    if (quote < 0) return text.length
    let backslashes = 0
    while (text.charCodeAt(quote - 1 - backslashes) === BACKSLASH && quote - 1 - backslashes > start) backslashes++
    if (backslashes % 2 === 0) return quote + 1
    from = quote + 1
  }
}

/** JSON with the keys of every object in code-unit order, no white space and no absent fields: equal content, equal string. */
export function canonicalJson(value: unknown): string {
  if (Array.isArray(value) && value.every(isKeyless)) return JSON.stringify(value)
  if (Array.isArray(value)) return `[${value.map((element) => canonicalJson(element ?? null)).join(',')}]`
  if (value !== null && typeof value === 'object') {
    const fields = Object.entries(value)
      .filter(([, field]) => field !== undefined)
      .sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0))
    return `{${fields.map(([key, field]) => `${JSON.stringify(key)}:${canonicalJson(field)}`).join(',')}}`
  }
  return JSON.stringify(value)
}

/** Whether no object, and so no order of keys, is in the value: then `JSON.stringify` is canonical, and fast. */
const isKeyless = (value: unknown): boolean =>
  value === null || typeof value !== 'object' || (Array.isArray(value) && value.every(isKeyless))
