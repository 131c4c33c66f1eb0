import { readsPictures } from '../architecture.ts'
import type { EncoderProfile } from '../folder/profile.ts'
import { openReader } from './reader.ts'
import { loadTokenizer } from './tokenizer.ts'

/** Counts the tokens of nodes that are text. */
export interface NodeTokenCounter {
  /** Most tokens of a node. */
  maxLength: number
  /** Tokens of a node, prompt or template and special tokens included, however many that is. */
  countTokens(text: string): number
}

/**
 * Counts tokens as an encoder does, without computing anything. What a template puts around a text is measured once: a text that
 * begins with white space may have a token less.
 */
export async function nodeTokenCounter(profile: EncoderProfile): Promise<NodeTokenCounter> {
  if (!readsPictures(profile)) {
    const { maxLength, count } = await loadTokenizer(profile)
    return { maxLength, countTokens: (text) => count(profile.prompts.node + text) }
  }
  const reader = await openReader(profile)
  try {
    const { maxLength, count } = reader
    const [encoded] = await reader.encode([{ text: 'x' }], 'node')
    const around = encoded!.sequence.ids.length - count('x')
    return { maxLength, countTokens: (text) => count(text) + around }
  } finally {
    await reader.close()
  }
}
