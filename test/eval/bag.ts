import type { EvaluateOptions, NodeEmbedder } from '../../src/eval/index.ts'

const LIMIT = 40
export const words = (text: string): string[] => text.toLowerCase().match(/\p{L}+/gu) ?? []

/** Reads no pictures, and is asked for no tokens. */
export const textReader: NodeEmbedder['reader'] = {
  multimodal: false,
  encode: () => Promise.reject(new Error('not asked')),
}

/** A bag-of-words encoder that sees the first 40 words; `focus` says how much shared words count against length. */
export function bagOfWords(name: string, focus: number): NodeEmbedder {
  const dimension = 64
  const bucket = (word: string): number =>
    [...word].reduce((h, c) => (h * 31 + c.charCodeAt(0)) % 8191, 7) % (dimension - 1)
  return {
    fingerprint: name,
    reader: textReader,
    async embed(inputs) {
      const texts = inputs.map(({ text }) => text)
      const embeddings = new Float32Array(texts.length * dimension)
      const sequences = texts.map((text) => words(text).slice(0, LIMIT))
      for (const [i, sequence] of sequences.entries()) {
        const row = embeddings.subarray(i * dimension, (i + 1) * dimension)
        for (const word of sequence) row[bucket(word)]! += focus
        row[dimension - 1] = 1
      }
      const first = new Map<string, number>()
      const same = Int32Array.from(sequences, (sequence, i) => {
        const key = sequence.join(' ')
        if (!first.has(key)) first.set(key, i)
        return first.get(key)!
      })
      return { embeddings, same, truncated: texts.map((text) => words(text).length > LIMIT) }
    },
  }
}

export const frozen = bagOfWords('frozen', 0.2)
export const fineTuned = bagOfWords('tuned', 2)
/** Options of an evaluation by those encoders. */
export const optionsFor = (
  datasets: string[],
  output: string,
  more: Partial<EvaluateOptions> = {},
): EvaluateOptions => ({
  datasets,
  split: 'dev',
  query: fineTuned,
  frozen,
  fineTuned,
  names: { query: 'bag', frozen: 'bag', fineTuned: 'bag + adapter' },
  countTokens: (text) => words(text).length,
  tokenizer: 'bag',
  title: false,
  resamples: 200,
  output,
  ...more,
})
