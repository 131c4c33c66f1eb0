import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import {
  type BertFolder,
  type BertSizes,
  bertTensorShapes,
  countWords,
  openEmbedder,
  readEncoder,
  wordPieceVocabulary,
  writeBertFolder,
} from '../../src/encoder/index.ts'
import { float32ToFloat16, openSafetensors, type Tensor } from '../../src/onnx/index.ts'
import { exists } from '../../src/support/files.ts'
import { createRandom } from '../../src/support/random.ts'
import { snapshot, temporaryFolder } from '../support/temporary.ts'

const sizes: BertSizes = { hidden: 16, layers: 1, heads: 2, intermediate: 24, maxLength: 32 }
const vocabulary = wordPieceVocabulary(countWords(['the keeper lit the lamp']), { size: 160 })

function contents(dtype: 'float32' | 'float16', changes: Partial<BertFolder> = {}): BertFolder {
  const random = createRandom('folder')
  const tensors = new Map<string, Tensor>()
  for (const [name, shape] of bertTensorShapes(sizes, vocabulary.length)) {
    const data = Float32Array.from({ length: shape.reduce((a, b) => a * b, 1) }, () => random.normal())
    tensors.set(name, dtype === 'float32' ? { dtype, shape, data } : { dtype, shape, data: float32ToFloat16(data) })
  }
  return { sizes, vocabulary, tensors, ...changes }
}

async function written(given: BertFolder): Promise<string> {
  const folder = join(temporaryFolder(), 'bert')
  await writeBertFolder(folder, given)
  return folder
}

describe('writeBertFolder', () => {
  it('stores float16 as it is, for embeddings near those of float32', async () => {
    const embeddings: Float32Array[] = []
    const folders = [await written(contents('float32')), await written(contents('float16'))]
    for (const folder of folders) {
      const embedder = await openEmbedder(await readEncoder(folder), { threads: 1 })
      embeddings.push((await embedder.embedTexts(['the lamp'], 'node')).embeddings)
      await embedder.close()
    }
    const [full, half] = embeddings as [Float32Array, Float32Array]
    expect(half).not.toEqual(full)
    for (const [i, value] of half.entries()) expect(value).toBeCloseTo(full[i]!, 2)
    const { tensors } = await openSafetensors(join(folders[1]!, 'model.safetensors'))
    expect(new Set([...tensors.values()].map(({ dtype }) => dtype))).toEqual(new Set(['F16']))
    expect([...tensors.keys()].sort()).toEqual([...contents('float16').tensors.keys()].sort())
    // what Python computes in: without it, sentence-transformers takes float16 from the weights, which a CPU is slow in
    expect(JSON.parse(await readFile(join(folders[1]!, 'config.json'), 'utf8')).dtype).toBe('float32')
  })

  it('writes the same bytes for the same contents, with further files', async () => {
    const files = { 'README.md': '# A model\n' }
    const folder = await written(contents('float16', { files }))
    expect(await readFile(join(folder, 'README.md'), 'utf8')).toBe('# A model\n')
    const again = await snapshot(await written(contents('float16', { files })))
    expect(Object.values(again)).toEqual(Object.values(await snapshot(folder)))
  })

  it.each<[string, (good: BertFolder) => Partial<BertFolder>, string]>([
    ['sizes', () => ({ sizes: { ...sizes, heads: 3 } }), 'heads (3) must divide hidden (16)'],
    ['a shape', () => ({ sizes: { ...sizes, maxLength: 31 } }), 'must have the shape [31, 16], not [32, 16]'],
    ['a missing tensor', () => ({ sizes: { ...sizes, layers: 2 } }), 'encoder.layer.1.attention.self.query.weight'],
    [
      'a tensor too many',
      ({ tensors }) => ({
        tensors: new Map([...tensors, ['extra', { dtype: 'float32', shape: [0], data: new Float32Array() }]]),
      }),
      'has no tensor "extra"',
    ],
    ['a doubled token', () => ({ vocabulary: [...vocabulary.slice(0, -1), 'a'] }), 'holds a token twice'],
    ['no special token', () => ({ vocabulary: ['x0', ...vocabulary.slice(1)] }), 'lacks the special token [PAD]'],
    ['a file of its own', () => ({ files: { 'config.json': '' } }), 'has a config.json of its own'],
    ['a path', () => ({ files: { '../README.md': '' } }), '"../README.md" is no name of a file'],
  ])('refuses %s that does not fit, and writes nothing', async (_, change, message) => {
    const folder = join(temporaryFolder(), 'bert')
    const good = contents('float32')
    const writing = writeBertFolder(folder, { ...good, ...change(good) })
    await expect(writing).rejects.toThrow(RangeError)
    await expect(writing).rejects.toThrow(message)
    expect(await exists(folder)).toBe(false)
  })
})
