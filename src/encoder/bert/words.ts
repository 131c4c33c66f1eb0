/** Most characters of a word that the tokenizer splits into pieces: a longer one is [UNK] as a whole. */
export const LONGEST_WORD = 100

/** Punctuation and ideographs, each a word of its own. */
const ALONE = /[!-/:-@[-`{-~\p{P}\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u{20000}-\u{2fa1f}]/gu
/** What the tokenizer takes out: characters for control, format and private use, and halves of surrogate pairs. */
const UNREAD = /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\ufffd]/gu

/** Text of printable ASCII, which needs no Unicode: most words of most texts. */
const PLAIN = /^[\t\n\r -~]*$/
/** The words of a lower-cased plain text: letters and digits together, every punctuation mark alone. */
const PLAIN_WORDS = /[a-z0-9]+|[^a-z0-9\s]/g

/**
 * The words that BERT's uncased tokenizer sees in a text: lower-cased, accents stripped, split at white space, around every
 * punctuation mark and around every ideograph.
 */
export function bertWords(text: string): string[] {
  if (PLAIN.test(text)) return plainWords(text)
  // No rule looks across these spaces, so that each run between them may be read by itself.
  return text.split(/[ \t\n\r]+/).flatMap((run) => (PLAIN.test(run) ? plainWords(run) : unicodeWords(run)))
}

/**
 * How often each of BERT's words occurs in texts. Those of more than LONGEST_WORD characters, of which no piece is ever used, are left
 * out, so that long lines without a space cost no memory.
 *
 * @param into counts to add to, for texts that come bit by bit
 * @returns `into`
 */
export function countWords(texts: Iterable<string>, into = new Map<string, number>()): Map<string, number> {
  for (const text of texts) {
    for (const word of bertWords(text)) {
      const count = into.get(word)
      if (count !== undefined) into.set(word, count + 1)
      // A word may share the memory of its text, and would keep all of it; its copy does not.
      else if (!tooLong(word)) into.set(word.split('').join(''), 1)
    }
  }
  return into
}

/** Characters are counted only where code units, one or two a character, do not tell. */
function tooLong(word: string): boolean {
  return word.length > LONGEST_WORD && (word.length > 2 * LONGEST_WORD || Array.from(word).length > LONGEST_WORD)
}

function plainWords(text: string): string[] {
  return text.toLowerCase().match(PLAIN_WORDS) ?? []
}

/** The words of a text without the white space that BERT names: tabs, line ends and spaces. */
function unicodeWords(text: string): string[] {
  return text
    .replace(UNREAD, '')
    .replaceAll('Σ', 'σ') // lower-casing character by character, as the tokenizer does, knows no final sigma
    .toLowerCase()
    .normalize('NFD')
    .replace(/\p{Mn}/gu, '')
    .replace(ALONE, ' $& ')
    .split(/\s+/u)
    .filter((word) => word !== '')
}
