export interface BertSizes {
  /** Width of the hidden states and of the embeddings. */
  hidden: number
  layers: number
  /** Attention heads; divides `hidden`. */
  heads: number
  /** Width of the feed-forward layers. */
  intermediate: number
  /** Most tokens of an encoded text; also the number of positions. */
  maxLength: number
}

/** @throws RangeError when a size is no whole number of 1 or more, or the heads do not divide the width */
export function checkBertSizes({ hidden, layers, heads, intermediate, maxLength }: BertSizes): void {
  for (const [name, value] of Object.entries({ hidden, layers, heads, intermediate, maxLength })) {
    if (!Number.isSafeInteger(value) || value < 1)
      throw new RangeError(`${name} must be a whole number of 1 or more, not ${value}`)
  }
  if (hidden % heads !== 0) throw new RangeError(`heads (${heads}) must divide hidden (${hidden})`)
}

/** The shape of every tensor of Hugging Face's BertModel, by its name there, from the embeddings up. */
export function bertTensorShapes(sizes: BertSizes, vocabularySize: number): Map<string, number[]> {
  const { hidden, layers, intermediate, maxLength } = sizes
  const shapes = new Map<string, number[]>()
  const linear = (module: string, inputs: number, outputs: number): void => {
    shapes.set(`${module}.weight`, [outputs, inputs]).set(`${module}.bias`, [outputs])
  }
  const layerNorm = (module: string): void => {
    shapes.set(`${module}.weight`, [hidden]).set(`${module}.bias`, [hidden])
  }

  shapes.set('embeddings.word_embeddings.weight', [vocabularySize, hidden])
  shapes.set('embeddings.position_embeddings.weight', [maxLength, hidden])
  shapes.set('embeddings.token_type_embeddings.weight', [2, hidden])
  layerNorm('embeddings.LayerNorm')
  for (let layer = 0; layer < layers; layer++) {
    const module = `encoder.layer.${layer}`
    for (const part of ['query', 'key', 'value']) linear(`${module}.attention.self.${part}`, hidden, hidden)
    linear(`${module}.attention.output.dense`, hidden, hidden)
    layerNorm(`${module}.attention.output.LayerNorm`)
    linear(`${module}.intermediate.dense`, hidden, intermediate)
    linear(`${module}.output.dense`, intermediate, hidden)
    layerNorm(`${module}.output.LayerNorm`)
  }
  linear('pooler.dense', hidden, hidden)
  return shapes
}
