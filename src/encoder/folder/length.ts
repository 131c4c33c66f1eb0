import { join } from 'node:path'
import { InputError } from '../../support/errors.ts'
import { standardsOf } from '../architecture.ts'
import { readJsonObject, readOptional } from './json-files.ts'
import { languageConfig } from './language-config.ts'
import { HOW_TO_GET, sentenceConfig } from './sentence-files.ts'

/** Most tokens of one input, and where that is said. */
export interface LengthLimit {
  tokens: number
  /** The file and its key, or whose code says it. */
  from: string
  /** Whether the model itself could take more: then the number may be raised where it stands. */
  raisable: boolean
}

/**
 * Where a text is cut: "max_seq_length" of sentence_bert_config.json, else "model_max_length" of tokenizer_config.json or what the
 * architecture's own code has; never behind the positions that config.json gives the model.
 *
 * @throws InputError where no file says it
 */
export async function readLengthLimit(modelFolder: string, config: Record<string, unknown>): Promise<LengthLimit> {
  const sentence = await readOptional(join(modelFolder, 'sentence_bert_config.json'), sentenceConfig)
  const { model_max_length: tokenizer } = await readJsonObject(join(modelFolder, 'tokenizer_config.json'), HOW_TO_GET)
  const { max_position_embeddings, n_positions } = languageConfig(config)
  const positions = max_position_embeddings ?? n_positions
  const architecture = String(config.model_type)
  // RoBERTa's position numbers start after the padding index, so that two of its 514 positions are never used
  const offset = ['roberta', 'xlm-roberta', 'camembert', 'mpnet'].includes(architecture) ? 2 : 0
  const stated = '"max_seq_length" of sentence_bert_config.json'
  const limits = [
    ...(sentence?.max_seq_length
      ? [{ tokens: sentence.max_seq_length, from: stated, raisable: true }]
      : [
          { tokens: tokenizer, from: '"model_max_length" of tokenizer_config.json', raisable: true },
          {
            tokens: standardsOf(architecture)?.maxLength,
            from: `what the released code has, where ${stated} says nothing else`,
            raisable: true,
          },
        ]),
    {
      tokens: typeof positions === 'number' && positions > 0 ? positions - offset : undefined,
      from: `"${max_position_embeddings === undefined ? 'n_positions' : 'max_position_embeddings'}" of config.json`,
      raisable: false,
    },
  ].filter((limit): limit is LengthLimit => isLength(limit.tokens))
  const [first, ...more] = limits
  if (first === undefined)
    throw new InputError(
      `The maximum length of a text is not known: give "max_seq_length" in sentence_bert_config.json or "model_max_length" in tokenizer_config.json.`,
      { file: modelFolder },
    )
  // of equal ones the last, behind which the others cannot be raised
  const least = more.reduce((least, limit) => (limit.tokens <= least.tokens ? limit : least), first)
  return { ...least, tokens: Math.floor(least.tokens) }
}

function isLength(tokens: unknown): tokens is number {
  return typeof tokens === 'number' && Number.isFinite(tokens) && tokens >= 1 && tokens < 1e9
}
