import { InputError } from '../../support/errors.ts'

/** What is asked of a tokenizer of transformers.js. */
export interface BareTokenizer {
  encode(text: string, options?: { add_special_tokens?: boolean }): number[]
}

export interface TokenReaderOptions {
  /** tokenizer.json as it stands. */
  json: unknown
  /** `do_lower_case` of sentence_bert_config.json: texts are lower-cased on top of what the tokenizer does. */
  lowerCase?: boolean
  /** Most tokens of a text, special tokens included. */
  maxLength: number
  /** `truncation_side` of tokenizer_config.json is "left": what is too long loses its beginning. */
  fromLeft?: boolean
  /** Name of tokenizer.json in messages. */
  file?: string
}

/** Texts as ids, cut where the encoder's trained length ends. */
export interface TokenReader {
  /**
   * The token ids of a complete text (prompt included), special tokens included, at most `maxLength` of them. A longer text
   * loses its last tokens (or its first, where the tokenizer is set up so), never the special tokens around it.
   */
  encode(text: string): { ids: Int32Array; truncated: boolean }
  /** How many tokens the whole text has, special tokens included, however many that is. */
  count(text: string): number
  /** The ids of a text as it stands: uncut, no special tokens around it; special tokens that it spells become theirs. */
  pieces(text: string): number[]
  /** What stands around every text. */
  prefix: readonly number[]
  suffix: readonly number[]
  maxLength: number
}

/**
 * Reads texts with a tokenizer as training did it, wherever transformers.js runs. Its own truncation takes the closing special token
 * off an over-long text, and is not used.
 *
 * @throws InputError for a tokenizer.json without a tokenizer, and for a maximum length that leaves no room for a text
 */
export function tokenReader(tokenizer: BareTokenizer, options: TokenReaderOptions): TokenReader {
  const { file, fromLeft = false, lowerCase = false } = options
  const place = { file }
  const settings = lowerCaseSettings(options.json, place)
  const bare = (text: string): number[] => tokenizer.encode(text, { add_special_tokens: false })
  const { prefix, suffix } = specialTokens(tokenizer.encode('a'), bare('a'), place)
  const room = options.maxLength - prefix.length - suffix.length
  if (!(room >= 1)) throw new InputError(`A maximum length of ${options.maxLength} leaves no room for a text.`, place)

  const prepare = (text: string): string => {
    const lowered = lowerCase && !settings.lowerCaseModule ? lowerCased(text) : text
    // lower-casing character by character, as the reference does, knows no final sigma; JavaScript's does
    return settings.lowerCases ? lowered.replaceAll('Σ', 'σ') : lowered
  }
  return {
    encode(text) {
      const all = bare(prepare(text))
      const truncated = all.length > room
      const kept = truncated ? (fromLeft ? all.slice(-room) : all.slice(0, room)) : all
      const ids = new Int32Array(prefix.length + kept.length + suffix.length)
      ids.set(prefix)
      ids.set(kept, prefix.length)
      ids.set(suffix, prefix.length + kept.length)
      return { ids, truncated }
    },
    count: (text) => bare(prepare(text)).length + prefix.length + suffix.length,
    pieces: (text) => bare(prepare(text)),
    prefix,
    suffix,
    maxLength: room + prefix.length + suffix.length,
  }
}

/** Lower case character by character, so that no character's case depends on its neighbours. */
function lowerCased(text: string): string {
  return Array.from(text, (c) => c.toLowerCase()).join('')
}

/** The ids that the tokenizer puts around a text: `full` is `around` with something before and after it. */
function specialTokens(
  full: number[],
  around: number[],
  place: { file: string | undefined },
): { prefix: number[]; suffix: number[] } {
  for (let at = 0; at + around.length <= full.length; at++)
    if (around.every((id, i) => full[at + i] === id))
      return { prefix: full.slice(0, at), suffix: full.slice(at + around.length) }
  throw new InputError('The special tokens around a text cannot be told from the text itself.', place)
}

interface Normalizer {
  type?: string
  lowercase?: boolean
  normalizers?: Normalizer[]
}

/** What tokenizer.json says about lower case. */
function lowerCaseSettings(
  tokenizer: unknown,
  place: { file: string | undefined },
): { lowerCases: boolean; lowerCaseModule: boolean } {
  const json = tokenizer as { normalizer?: Normalizer | null; model?: unknown } | null | undefined
  if (json === null || typeof json !== 'object' || typeof json.model !== 'object')
    throw new InputError('The file holds no tokenizer: "model" is missing.', place)
  const parts: Normalizer[] = []
  const collect = (normalizer: Normalizer | null | undefined): void => {
    if (normalizer === null || normalizer === undefined) return
    parts.push(normalizer)
    for (const part of normalizer.normalizers ?? []) collect(part)
  }
  collect(json.normalizer)
  const lowerCaseModule = parts.some((part) => part.type === 'Lowercase')
  return { lowerCaseModule, lowerCases: lowerCaseModule || parts.some((part) => part.lowercase === true) }
}
