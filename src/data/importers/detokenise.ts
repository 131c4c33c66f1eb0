/** Text put together from tokens, and where each token stands in it (UTF-16 `[start, end)`; `undefined` for a tag). */
export interface Detokenised {
  text: string
  spans: ([number, number] | undefined)[]
}

export interface PageToken {
  token: string
  html: boolean
}

/**
 * The text of a range of Natural Questions' page tokens.
 *
 * The rule: tags are left out. Between two tokens stands a line break when a tag of a block (paragraph, heading, list entry, table
 * row, …) lies between them, else one blank, else nothing where the left token opens (`(`, `[`, `{`, `$`, `£`, `€`, `#`, an
 * opening quotation mark) or the right one closes (`.`, `,`, `;`, `:`, `!`, `?`, `%`, `°`, `)`, `]`, `}`, `…`, a closing quotation
 * mark, or a clitic such as `'s` and `n't`), and nothing on either side of `-` and `/`, and of `–` between numbers. The
 * tokeniser's `` `` `` and `''` become `"`; a lone `"` opens and closes in turn.
 */
export function detokenise(tokens: readonly PageToken[]): Detokenised {
  const spans: Detokenised['spans'] = []
  let text = ''
  let previous: Mark | undefined
  let block = false
  let quoteIsOpen = false
  for (const [i, { token, html }] of tokens.entries()) {
    if (html) {
      block ||= BLOCK_TAG.test(token)
      spans.push(undefined)
      continue
    }
    if (token.trim() === '') {
      spans.push(undefined)
      continue
    }
    const mark = markOf(token, quoteIsOpen, neighbourIsNumber(tokens, i))
    if (mark.quote !== undefined) quoteIsOpen = mark.quote === 'opens'
    if (previous !== undefined) text += block ? '\n' : previous.joinsRight || mark.joinsLeft ? '' : ' '
    const start = text.length
    text += mark.text
    spans.push([start, text.length])
    previous = mark
    block = false
  }
  return { text, spans }
}

interface Mark {
  text: string
  joinsLeft: boolean
  joinsRight: boolean
  quote?: 'opens' | 'closes'
}

const BLOCK_TAG =
  /^<\/?(?:p|div|h[1-6]|ul|ol|li|dl|dt|dd|table|tbody|thead|tr|caption|blockquote|pre|br|hr|center|section)(?:[\s_/>]|$)/i
const OPENS = new Set(['(', '[', '{', '$', '£', '€', '#', '“', '‘'])
const CLOSES = new Set(['.', ',', ';', ':', '!', '?', '%', '°', ')', ']', '}', '…', '...', '”', '’', "'", '′', '″'])
const CLITIC = /^(?:['’](?:s|re|ve|ll|d|m|t)|n['’]t)$/i

function markOf(token: string, quoteIsOpen: boolean, betweenNumbers: boolean): Mark {
  if (token === '``') return { text: '"', joinsLeft: false, joinsRight: true, quote: 'opens' }
  if (token === "''") return { text: '"', joinsLeft: true, joinsRight: false, quote: 'closes' }
  if (token === '"') {
    return quoteIsOpen
      ? { text: '"', joinsLeft: true, joinsRight: false, quote: 'closes' }
      : { text: '"', joinsLeft: false, joinsRight: true, quote: 'opens' }
  }
  if (token === '-' || token === '/' || (token === '–' && betweenNumbers)) {
    return { text: token, joinsLeft: true, joinsRight: true }
  }
  return { text: token, joinsLeft: CLOSES.has(token) || CLITIC.test(token), joinsRight: OPENS.has(token) }
}

function neighbourIsNumber(tokens: readonly PageToken[], i: number): boolean {
  return /\d$/.test(tokens[i - 1]?.token ?? '') && /^\d/.test(tokens[i + 1]?.token ?? '')
}
