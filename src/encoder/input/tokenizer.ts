import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { InputError } from '../../support/errors.ts'
import { exists } from '../../support/files.ts'
import { languageConfig } from '../folder/language-config.ts'
import type { EncoderProfile } from '../folder/profile.ts'
import { type TokenReader, tokenReader } from './tokens.ts'

/** How many texts are tokenised before others have their turn: it blocks the event loop. */
export const TEXTS_AT_ONCE = 256

/** A turn of a conversation, as chat templates of Hugging Face models take it. */
export interface ChatMessage {
  role: 'system' | 'user'
  content: ({ type: 'text'; text: string } | { type: 'image' } | { type: 'video' })[]
}

export interface Tokenizer extends TokenReader {
  /** A conversation as a chat template (Jinja) writes it, with the beginning of the answer where the encoder reads that. */
  chat(template: string, messages: readonly ChatMessage[]): string
  padId: number
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

  const json = await readTokenizerJson(file)
  const { AutoTokenizer } = await import('@huggingface/transformers')
  const tokenizer = await AutoTokenizer.from_pretrained(folder, { local_files_only: true }).catch((error: unknown) => {
    throw new InputError(`The tokenizer cannot be loaded: ${(error as Error).message}`, { file }, error)
  })

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

  const reader = tokenReader(tokenizer, {
    json,
    lowerCase: profile.lowerCase,
    maxLength: Math.min(options.maxLength ?? profile.maxLength, profile.maxLength),
    fromLeft: tokenizer.config?.truncation_side === 'left',
    file,
  })
  if (profile.architecture === 'bert' && (reader.prefix.length === 0 || reader.suffix.length === 0))
    throw new InputError(
      'The tokenizer puts no [CLS] and [SEP] around a text ("post_processor" is missing), as a BERT encoder needs. Load and save it once with Hugging Face transformers.',
      { file },
    )
  return {
    ...reader,
    chat: (template, messages) =>
      tokenizer.apply_chat_template(messages as never, {
        chat_template: template,
        add_generation_prompt: profile.opensAnswer,
        tokenize: false,
      }) as string,
    padId,
    vocabularySize,
  }
}

async function readTokenizerJson(file: string): Promise<unknown> {
  try {
    return JSON.parse(await readFile(file, 'utf8'))
  } catch (error) {
    throw new InputError(`The file is not valid JSON (${(error as Error).message}).`, { file }, error)
  }
}
