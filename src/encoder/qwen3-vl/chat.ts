import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { z } from 'zod'
import { InputError } from '../../support/errors.ts'
import { exists } from '../../support/files.ts'
import { readJsonObject } from '../folder/json-files.ts'
import type { EncoderProfile } from '../folder/profile.ts'
import type { ChatMessage, Tokenizer } from '../input/tokenizer.ts'

/** What the system turn says where no instruction is given (QwenLM/Qwen3-VL-Embedding, qwen3_vl_embedding.py). */
export const DEFAULT_INSTRUCTION = "Represent the user's input."

/** Stands for an input without text, picture and video. */
const NOTHING = 'NULL'

/** Where the text of an input stands, when a template is taken apart; templates that trim their parts leave it as it is. */
const MARK = '\u{E000}text\u{E000}'

// what Python's str.strip() takes away: JavaScript's trim() keeps U+001C to U+001F and U+0085, and takes U+FEFF
const BLANKS = '[\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]+'
const OUTER_BLANKS = new RegExp(`^${BLANKS}|${BLANKS}$`, 'gu')

/**
 * An instruction as the system turn has it: stripped, a full stop after it unless it ends in punctuation (Unicode category P); the
 * default one where nothing is left.
 */
export function systemInstruction(instruction: string): string {
  const stripped = instruction.replace(OUTER_BLANKS, '')
  if (stripped === '') return DEFAULT_INSTRUCTION
  return /\p{P}$/u.test(stripped) ? stripped : `${stripped}.`
}

/** What an input shows: a video first, then pictures, then its text. */
export interface ChatParts {
  text: string
  images: number
  video: boolean
}

/** The system turn and the user's. */
export function conversation(instruction: string, { text, images, video }: ChatParts): ChatMessage[] {
  const content: ChatMessage['content'] = [
    ...(video ? [{ type: 'video' as const }] : []),
    ...Array.from({ length: images }, () => ({ type: 'image' as const })),
    ...(text === '' ? [] : [{ type: 'text' as const, text }]),
  ]
  return [
    { role: 'system', content: [{ type: 'text', text: systemInstruction(instruction) }] },
    { role: 'user', content: content.length > 0 ? content : [{ type: 'text', text: NOTHING }] },
  ]
}

/** A model's chat template, for one instruction. */
export interface Chat {
  /** An input as the template writes it, one placeholder for each picture and video. */
  write(parts: ChatParts): string
  /** Tokens behind a text: the end of the user's turn and the beginning of the answer. */
  suffix: number[]
  /** How many tokens stand before a text that is alone. */
  prefixLength: number
  /** Where the template was found. */
  file: string
}

/**
 * @param placeholders special tokens that stand for pictures and videos
 * @throws InputError where the template cannot be run, does not write the text as it is, or lets it run into what follows; and for
 *   an instruction that spells a placeholder
 */
export function openChat(
  tokenizer: Tokenizer,
  { template, file }: ChatTemplate,
  instruction: string,
  placeholders: readonly string[],
): Chat {
  const spelled = placeholders.find((token) => instruction.includes(token))
  if (spelled !== undefined)
    throw new InputError(`The instruction "${instruction}" holds ${spelled}, which stands for a picture. Leave it out.`)
  const write = (parts: ChatParts): string => {
    try {
      return tokenizer.chat(template, conversation(instruction, parts))
    } catch (error) {
      throw new InputError(`The chat template cannot be run: ${(error as Error).message}`, { file }, error)
    }
  }
  const marked = write({ text: MARK, images: 0, video: false })
  const [before, after, ...more] = marked.split(MARK)
  if (before === undefined || after === undefined || more.length > 0)
    throw new InputError('The chat template does not write the text of a user turn once.', { file })
  const suffix = tokenizer.pieces(after)
  const whole = tokenizer.pieces(`${before}a${after}`)
  const ends = suffix.every((id, i) => whole[whole.length - suffix.length + i] === id)
  if (suffix.length === 0 || !ends)
    throw new InputError('The chat template has no special token behind a text, so where a text ends is not known.', {
      file,
    })
  return { write, suffix, prefixLength: tokenizer.pieces(before).length, file }
}

export interface ChatTemplate {
  template: string
  /** Where it was found. */
  file: string
}

/**
 * The chat template (Jinja) of a model folder: "chat_template" of processor_config.json, else of chat_template.json, else
 * chat_template.jinja, in the order in which the processors of transformers look; else "chat_template" of tokenizer_config.json.
 *
 * @throws InputError where there is none
 */
export async function readChatTemplate({ modelFolder }: EncoderProfile): Promise<ChatTemplate> {
  for (const name of ['processor_config.json', 'chat_template.json', 'chat_template.jinja', 'tokenizer_config.json']) {
    const file = join(modelFolder, name)
    if (!(await exists(file))) continue
    const template = name.endsWith('.jinja')
      ? await readFile(file, 'utf8')
      : templateIn((await readJsonObject(file, '')).chat_template)
    if (template !== undefined) return { template, file }
  }
  throw new InputError(
    `No chat template in ${modelFolder}: inputs cannot be written without it. Take chat_template.json (or chat_template.jinja) from the model's repository.`,
    { file: join(modelFolder, 'chat_template.json') },
  )
}

/** A template, or the one named `default` of several. */
function templateIn(found: unknown): string | undefined {
  if (typeof found === 'string') return found
  const several = z.array(z.looseObject({ name: z.string(), template: z.string() })).safeParse(found)
  return several.data?.find(({ name }) => name === 'default')?.template
}
