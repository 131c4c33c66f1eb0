import { encode } from 'html-entities'

/** Text that is HTML already. Made by {@link html} and {@link trusted} only. */
export class Html {
  readonly text: string
  constructor(text: string) {
    this.text = text
  }
}

type Part = Html | string | number | undefined | false | readonly Part[]

/** HTML from a template: whatever is put into it is escaped, unless it is {@link Html}; lists are joined, absent parts left out. */
export function html(strings: TemplateStringsArray, ...parts: Part[]): Html {
  return new Html(strings.map((text, i) => text + (i < parts.length ? textOf(parts[i]) : '')).join(''))
}

/** Declares text to be HTML: only for what this program made itself and no data went into unescaped. */
export const trusted = (text: string): Html => new Html(text)

function textOf(part: Part): string {
  if (part === undefined || part === false) return ''
  if (part instanceof Html) return part.text
  if (typeof part === 'string' || typeof part === 'number') return encode(String(part), { mode: 'specialChars' })
  return part.map(textOf).join('')
}

/**
 * JSON that can stand inside a `script` element: no character ends the element, starts a comment in it or ends a line of
 * JavaScript.
 */
export function inlineJson(value: unknown): string {
  return JSON.stringify(value).replace(
    /[<>&\u2028\u2029]/g,
    (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`,
  )
}
