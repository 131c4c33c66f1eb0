/**
 * Which rules cut a text into sentences; part of what a node's string depends on, as ICU's own rules are. A browser does not say
 * which ICU it has.
 */
export const SEGMENTER_VERSION = `canopy-sentences/1 icu/${typeof process === 'undefined' ? 'unknown' : (process.versions?.icu ?? 'unknown')}`

const WINDOW = 4096

const segmenter = new Intl.Segmenter('en', { granularity: 'sentence' })

/**
 * The sentences of a text, as UTF-16 offsets `[start, end)`. They cover the text exactly: white space between two sentences
 * goes to the later one, leading white space to the first, trailing white space to the last. A text without any visible
 * character has none. Linear in the length of the text.
 *
 * Boundaries are those of Unicode's sentence segmentation (UAX #29), less those that `continues` takes back.
 */
export function segmentSentences(text: string): [number, number][] {
  const sentences: [number, number][] = []
  let start = 0
  let previous = 0
  for (const boundary of unicodeBoundaries(text)) {
    let end = boundary + (citations.exec(text.slice(boundary - 1, boundary + 32))?.[0].length ?? 1) - 1
    while (end > previous && isWhiteSpace(text, end - 1)) end--
    const visible = end > previous
    previous = Math.max(boundary, end)
    if (!visible || (boundary < text.length && continues(text, start, end))) continue
    sentences.push([start, end])
    start = end
  }
  if (text.slice(start).trim() !== '') sentences.push([start, text.length])
  const last = sentences.at(-1)
  if (last !== undefined) last[1] = text.length
  return sentences
}

/** Reference marks as Wikipedia sets them, behind the full stop: UAX #29 sees a boundary behind the bracket. */
const citations = /^(?:\[\d{1,3}\])+(?=\s)/

function isWhiteSpace(text: string, offset: number): boolean {
  return /\s/.test(text[offset]!)
}

/**
 * The ends of the sentences that UAX #29 finds, found in windows that restart at the last boundary: V8 copies the whole
 * input of a segmenter into every segment. A boundary counts only when the window shows what the rules look at behind it;
 * where a window shows none, it grows until it shows one.
 */
function* unicodeBoundaries(text: string): Generator<number> {
  const decided = /[\p{L}\p{STerm}\n\r\u0085\u2028\u2029]/u
  let start = 0
  let size = WINDOW
  while (start < text.length) {
    const end = Math.min(start + size, text.length)
    const window = text.slice(start, end)
    let accepted = 0
    for (const { index, segment } of segmenter.segment(window)) {
      const boundary = index + segment.length
      if (end < text.length && !decided.test(window.slice(boundary))) break
      accepted = boundary
      yield start + boundary
      if (size > WINDOW) break
    }
    start += accepted
    size = accepted === 0 ? size * 2 : WINDOW
  }
}

/** Written before a name or a number; a sentence hardly ever ends with them. */
const BEFORE_NAME = wordSet(
  'mr mrs ms mx messrs dr prof gen lt col maj sgt capt cpt cmdr adm rev fr hon gov sen rep pres supt asst',
  'mt ft v vs viz cf approx incl cpl ger i.e e.g a.k.a',
)
/** Written before a number: a sentence may end with them, but not where a number follows. */
const BEFORE_NUMBER = wordSet(
  'no nos vol vols p pp al fig figs ch chap sec sect art op eq ed est ca circa fl bef aft ver cat',
  'jan feb mar apr jun jul aug sep sept oct nov dec',
)
/** Both inside a sentence and at its end: the next word tells. */
const ANYWHERE = wordSet(
  'st inc ltd co corp bros jr sr esq al ca ave blvd rd hwy dept univ assn natl intl translit lit',
  'jan feb aug sept oct nov dec',
)
/** Words that, capitalised, start a sentence rather than go on with a name. */
const STARTERS = wordSet(
  'the a an he she it they we i you this that these those there here his her its their our my your',
  'in on at for from with by as to of after before during when while since until under upon within without through among',
  'although though however but and or so if because then thus therefore later also additionally finally instead meanwhile',
  'once today currently originally formerly following according both each some many most several all another one two three',
  'what who where why how which not no only other such',
)

function wordSet(...lines: string[]): Set<string> {
  return new Set(lines.join(' ').split(' '))
}

/**
 * Whether the sentence `[start, end)` goes on behind a boundary that UAX #29 saw at its end: after an abbreviation, an
 * initial or an enumerator, before a lower-case word, or where no white space follows a full stop, `?` or `!`.
 */
function continues(text: string, start: number, end: number): boolean {
  const before = text.slice(Math.max(start, end - 64), end)
  const rest = text.slice(end, end + 64)
  const after = rest.trimStart()
  const gap = rest.slice(0, rest.length - after.length)
  if (/\n\s*\n|\r\s*\r|\u2029/.test(gap.replaceAll('\r\n', '\n'))) return false

  // Bullets, quotes, dots, "1." and "(a)" belong to what follows them.
  if (end - start < before.length + 1 && /^[^\p{L}\p{N}]*$|^\s*\(?(\p{N}{1,3}|\p{L})[.)]$/u.test(before)) return true
  // A line that was broken inside a sentence, and `"Who's There?" is a song`.
  if (/^["'“‘(]?\p{Ll}|^[,;:)\]–—]/u.test(after) && !/[。！？]["'”’」』)]*$/.test(before)) return true
  if (/[\n\r]/.test(gap)) return false
  // An opening bracket behind a full stop, and `"Go?" (1972)`.
  if (/[([{„“«]$/.test(before) || (/(?:[?!…]|\.\.)["”’']?$/.test(before) && /^\(\d/.test(after))) return true
  if (gap === '' && /[.?!]["'”’)]*$/.test(before)) return true

  const abbreviation = /(?<![\p{L}\p{M}\p{N}.'’])([\p{L}\p{M}]+(?:\.-?[\p{L}\p{M}]+)*)\.["'”]?$/u.exec(before)?.[1]
  if (abbreviation === undefined) return false
  const word = abbreviation.toLowerCase()
  if (BEFORE_NAME.has(word)) return true
  const dotted =
    abbreviation.includes('.') && abbreviation.split('.').every((part) => part.replace('-', '').length <= 2)
  if (/^[(#]?\p{N}/u.test(after)) return BEFORE_NUMBER.has(word) || dotted || /^\p{Ll}$/u.test(abbreviation)
  if (!dotted && !/^(?:\p{Lu}|[bcdr])$/u.test(abbreviation) && !ANYWHERE.has(word)) return false
  const next = /^["'“‘(]*([\p{L}\p{M}]+)(?!\.)/u.exec(after)?.[1]
  return next === undefined || !STARTERS.has(next.toLowerCase())
}
