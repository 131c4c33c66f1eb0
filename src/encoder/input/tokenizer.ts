import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { InputError } from '../../support/errors.ts'
import { exists } from '../../support/files.ts'
import { languageConfig } from '../folder/language-config.ts'
import type { EncoderProfile } from '../folder/profile.ts'

/** How many texts are tokenised before others have their turn: it blocks the event loop. */
export const TEXTS_AT_ONCE = 256

/** A turn of a conversation, as chat templates of Hugging Face models take it. */
export interface ChatMessage {
  role: 'system' | 'user'
  content: ({ type: 'text'; text: string } | { type: 'image' } | { type: 'video' })[]
}

export interface Tokenizer {
  /**
   * The token ids of a complete text (prompt included), special tokens included, at most `maxLength` of them. A longer text
   * loses its last tokens (or its first, where the tokenizer is set up so), never the special tokens around it.
   */
  encode(text: string): { ids: Int32Array; truncated: boolean }
  /** How many tokens the whole text has, special tokens included, however many that is. */
  count(text: string): number
  /** The ids of a text as it stands: uncut, no special tokens around it; special tokens that it spells become theirs. */
  pieces(text: string): number[]
  /** A conversation as a chat template (Jinja) writes it, with the beginning of the answer where the encoder reads that. */
  chat(template: string, messages: readonly ChatMessage[]): string
  padId: number
  maxLength: number
  /** One more than the largest token id. */
  vocabularySize: number
}

/**
 * Loads a tokenizer.json through transformers.js, without any network access.
 *
 * Token ids equal those of Hugging Face `tokenizers` with `truncation=True, max_length=profile.maxLength`; truncation and
 * padding settings inside tokenizer.json are ignored.
 *
 * @param options.maxLength a lower limit than the profile's
 * @throws InputError when a file is missing or malformed, or when the vocabulary does not fit the model
 */
export async function loadTokenizer(profile: EncoderProfile, options: { maxLength?: number } = {}): Promise<Tokenizer> {
  const folder = profile.modelFolder
  const file = join(folder, 'tokenizer.json')
  for (const name of ['tokenizer.json', 'tokenizer_config.json'])
    if (!(await exists(join(folder, name))))
      throw new InputError(`No ${name} in ${folder}: take it from the model's repository.`, {
        file: join(folder, name),
      })

  const settings = await readSettings(file)
  const { AutoTokenizer } = await import('@huggingface/transformers')
  const tokenizer = await AutoTokenizer.from_pretrained(folder, { local_files_only: true }).catch((error: unknown) => {
    throw new InputError(`The tokenizer cannot be loaded: ${(error as Error).message}`, { file }, error)
  })
  const bare = (text: string): number[] => tokenizer.encode(text, { add_special_tokens: false })

  let vocabularySize = 0
  for (const id of tokenizer.get_vocab().values()) vocabularySize = Math.max(vocabularySize, Number(id) + 1)
  const { vocab_size: rows } = languageConfig(profile.config)
  if (typeof rows === 'number' && vocabularySize > rows)
    throw new InputError(
      `The tokenizer does not fit the model: its ids go up to ${vocabularySize - 1}, the model has embeddings for 0 to ${rows - 1}. Use the tokenizer files of the same model.`,
      { file },
    )
  const padId = tokenizer.pad_token_id ?? 0
  const modelPad = profile.config.pad_token_id
  if (typeof modelPad === 'number' && tokenizer.pad_token_id !== undefined && modelPad !== padId)
    throw new InputError(
      `The tokenizer does not fit the model: its padding token is ${padId}, the model's is ${modelPad} (pad_token_id of config.json). Use the tokenizer files of the same model.`,
      { file },
    )

  const { prefix, suffix } = specialTokens(tokenizer.encode('a'), bare('a'), file)
  if (profile.architecture === 'bert' && (prefix.length === 0 || suffix.length === 0))
    throw new InputError(
      'The tokenizer puts no [CLS] and [SEP] around a text ("post_processor" is missing), as a BERT encoder needs. Load and save it once with Hugging Face transformers.',
      { file },
    )
  const room = Math.min(options.maxLength ?? profile.maxLength, profile.maxLength) - prefix.length - suffix.length
  if (!(room >= 1))
    throw new InputError(`A maximum length of ${options.maxLength ?? profile.maxLength} leaves no room for a text.`, {
      file,
    })
  const maxLength = room + prefix.length + suffix.length
  const fromLeft = tokenizer.config?.truncation_side === 'left'

  const prepare = (text: string): string => {
    const lowered = profile.lowerCase && !settings.lowerCaseModule ? lowerCase(text) : text
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
    chat: (template, messages) =>
      tokenizer.apply_chat_template(messages as never, {
        chat_template: template,
        add_generation_prompt: profile.opensAnswer,
        tokenize: false,
      }) as string,
    padId,
    maxLength,
    vocabularySize,
  }
}

/** Lower case character by character, so that no character's case depends on its neighbours. */
function lowerCase(text: string): string {
  return Array.from(text, (c) => c.toLowerCase()).join('')
}

/** The ids that the tokenizer puts around a text: `full` is `around` with something before and after it. */
function specialTokens(full: number[], around: number[], file: string): { prefix: number[]; suffix: number[] } {
  for (let at = 0; at + around.length <= full.length; at++)
    if (around.every((id, i) => full[at + i] === id))
      return { prefix: full.slice(0, at), suffix: full.slice(at + around.length) }
  throw new InputError('The special tokens around a text cannot be told from the text itself.', { file })
}

interface Normalizer {
  type?: string
  lowercase?: boolean
  normalizers?: Normalizer[]
}

/** What tokenizer.json says about lower case. */
async function readSettings(file: string): Promise<{ lowerCases: boolean; lowerCaseModule: boolean }> {
  let json: { normalizer?: Normalizer | null; model?: unknown }
  try {
    json = JSON.parse(await readFile(file, 'utf8'))
  } catch (error) {
    throw new InputError(`The file is not valid JSON (${(error as Error).message}).`, { file }, error)
  }
  if (json === null || typeof json !== 'object' || typeof json.model !== 'object')
    throw new InputError('The file holds no tokenizer: "model" is missing.', { file })
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
