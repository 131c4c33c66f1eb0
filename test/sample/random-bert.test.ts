import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import {
  createRandomBert,
  loadTokenizer,
  openEmbedder,
  type RandomBertOptions,
  readEncoder,
} from '../../src/encoder/index.ts'
import { openSafetensors } from '../../src/onnx/index.ts'
import { snapshot, temporaryFolder } from '../support/temporary.ts'

const texts = [
  'The keeper lit the lamp. The keeper climbed the stairs, and the lamp burned all night.',
  'Bees carry honey home; bees carry wax, too.',
  "A café at the harbour's end sells 42 kinds of bread.",
]

async function made(options: Partial<RandomBertOptions> = {}): Promise<string> {
  const folder = join(temporaryFolder(), 'bert')
  const sizes = { hidden: 16, heads: 2, layers: 2, intermediate: 24, maxLength: 32, vocabularySize: 200 }
  await createRandomBert(folder, { seed: 1, vocabularyFrom: texts, ...sizes, ...options })
  return folder
}

describe('createRandomBert', () => {
  it('writes the same bytes for the same seed, other weights for another', async () => {
    const first = await snapshot(await made())
    const values = (files: Record<string, string>) => Object.values(files)
    expect(values(await snapshot(await made()))).toEqual(values(first))
    const other = values(await snapshot(await made({ seed: 2 })))
    expect(other.filter((content, i) => content !== values(first)[i])).toHaveLength(1)
  })

  it('has the tensors of BertModel in their shapes', async () => {
    const file = await openSafetensors(join(await made(), 'model.safetensors'))
    const shapes = Object.fromEntries([...file.tensors].map(([name, { shape }]) => [name, shape]))
    expect(Object.keys(shapes)).toHaveLength(5 + 2 * 16 + 2)
    expect(shapes).toMatchObject({
      'embeddings.word_embeddings.weight': [200, 16],
      'embeddings.position_embeddings.weight': [32, 16],
      'embeddings.token_type_embeddings.weight': [2, 16],
      'embeddings.LayerNorm.bias': [16],
      'encoder.layer.1.attention.self.query.weight': [16, 16],
      'encoder.layer.1.attention.output.LayerNorm.weight': [16],
      'encoder.layer.1.intermediate.dense.weight': [24, 16],
      'encoder.layer.1.output.dense.weight': [16, 24],
      'pooler.dense.bias': [16],
    })
    for (const name of file.tensors.keys()) expect([...(await file.readTensor(name))].every(Number.isFinite)).toBe(true)
  })

  it('is read as a checkpoint with mean pooling, normalised, without prompts', async () => {
    const profile = await readEncoder(await made())
    expect(profile).toMatchObject({
      architecture: 'bert',
      pooling: 'mean',
      normalize: true,
      maxLength: 32,
      dimension: 16,
    })
    expect(profile.prompts).toEqual({ query: '', node: '' })
  })

  it('has a tokenizer that knows the texts', async () => {
    const folder = await made({ vocabularySize: 300 })
    const tokenizer = await loadTokenizer(await readEncoder(folder))
    const vocabulary = (await readFile(join(folder, 'vocab.txt'), 'utf8')).trimEnd().split('\n')
    const tokens = (text: string) => Array.from(tokenizer.encode(text).ids, (id) => vocabulary[id])
    expect(tokens('The KEEPER lit the lamp.')).toEqual(['[CLS]', 'the', 'keeper', 'lit', 'the', 'lamp', '.', '[SEP]'])
    expect(tokens(`${texts.join(' ')} Zebra? (x = 7) {y}`)).not.toContain('[UNK]')
    expect(tokenizer.vocabularySize).toBe(vocabulary.length)
  })

  it('finds texts of equal length more alike the more words they share', async () => {
    const embedder = await openEmbedder(await readEncoder(await made({ hidden: 64, heads: 4 })), { threads: 1 })
    const { embeddings } = await embedder.embedTexts(
      ['the keeper climbed the stairs', 'the keeper burned the lamp', 'bees carry honey and wax'],
      'node',
    )
    await embedder.close()
    const cosine = (a: number, b: number) =>
      Array.from({ length: 64 }, (_, i) => embeddings[a * 64 + i]! * embeddings[b * 64 + i]!).reduce((x, y) => x + y)
    expect(cosine(0, 0)).toBeCloseTo(1, 5)
    expect(cosine(0, 1)).toBeGreaterThan(cosine(0, 2) + 0.1)
  })

  it('refuses sizes that do not fit each other', async () => {
    await expect(made({ heads: 3 })).rejects.toThrow('heads (3) must divide hidden (16)')
    await expect(made({ layers: 0 })).rejects.toThrow(RangeError)
  })
})
