import { cpSync, mkdirSync, renameSync, rmSync, symlinkSync, truncateSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { openEmbedder, readEncoder } from '../../src/encoder/index.ts'
import { float32ToBfloat16, openSafetensors, type Tensor, writeSafetensors } from '../../src/onnx/index.ts'
import { temporaryFolder } from '../support/temporary.ts'
import { expected, largestDifference, tinyBert } from './fixtures.ts'

const { texts, embeddings, node } = expected('mean')

function copy(): string {
  const folder = join(temporaryFolder(), 'tiny')
  cpSync(tinyBert('mean'), folder, { recursive: true })
  return folder
}

async function tensorsOf(folder: string): Promise<Map<string, Tensor>> {
  const stored = await openSafetensors(join(folder, 'model.safetensors'))
  const tensors = new Map<string, Tensor>()
  for (const name of stored.tensors.keys()) tensors.set(name, await stored.read(name))
  return tensors
}

async function embed(folder: string): Promise<Float32Array> {
  const embedder = await openEmbedder(await readEncoder(folder), { threads: 1 })
  const result = await embedder.embedTexts(texts, 'node')
  await embedder.close()
  return result.embeddings
}

describe('weights', () => {
  it('may lie in several files that an index joins', async () => {
    const folder = copy()
    const tensors = [...(await tensorsOf(folder))]
    rmSync(join(folder, 'model.safetensors'))
    const names = ['model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors']
    const weightMap: Record<string, string> = {}
    for (const [part, name] of names.entries()) {
      const some = tensors.filter((_, i) => i % 2 === part)
      await writeSafetensors(join(folder, name), new Map(some))
      for (const [tensor] of some) weightMap[tensor] = name
    }
    writeFileSync(join(folder, 'model.safetensors.index.json'), JSON.stringify({ weight_map: weightMap }))
    expect(largestDifference(await embed(folder), node)).toBeLessThan(1e-5)
    rmSync(join(folder, names[1] as string))
    await expect(readEncoder(folder)).rejects.toThrow(/part model-00002-of-00002\.safetensors.*is missing/)
  })

  it('may lie in the only file of an index', async () => {
    const folder = copy()
    const name = 'model-00001-of-00001.safetensors'
    const weightMap = Object.fromEntries([...(await tensorsOf(folder)).keys()].map((tensor) => [tensor, name]))
    renameSync(join(folder, 'model.safetensors'), join(folder, name))
    writeFileSync(join(folder, 'model.safetensors.index.json'), JSON.stringify({ weight_map: weightMap }))
    expect(largestDifference(await embed(folder), node)).toBeLessThan(1e-5)
  })

  it('may be symbolic links out of the folder, as in the Hugging Face cache', async () => {
    const folder = copy()
    const blobs = join(folder, '..', 'blobs')
    mkdirSync(blobs)
    renameSync(join(folder, 'model.safetensors'), join(blobs, '0123abcd'))
    symlinkSync(join('..', 'blobs', '0123abcd'), join(folder, 'model.safetensors'))
    expect(largestDifference(await embed(folder), node)).toBeLessThan(1e-5)
  })

  it('may be bfloat16, computed in float32', async () => {
    const folder = copy()
    const tensors = await tensorsOf(folder)
    for (const [name, { shape, data }] of tensors)
      tensors.set(name, { dtype: 'bfloat16', shape, data: float32ToBfloat16(data as Float32Array) })
    await writeSafetensors(join(folder, 'model.safetensors'), tensors)
    const difference = largestDifference(await embed(folder), embeddings)
    expect(difference).toBeGreaterThan(1e-4)
    expect(difference).toBeLessThan(0.05)
  })

  it('may call the tensors of LayerNorm gamma and beta', async () => {
    const folder = copy()
    const renamed = [...(await tensorsOf(folder))].map(([name, tensor]): [string, Tensor] => [
      name.replace('LayerNorm.weight', 'LayerNorm.gamma').replace('LayerNorm.bias', 'LayerNorm.beta'),
      tensor,
    ])
    await writeSafetensors(join(folder, 'model.safetensors'), new Map(renamed))
    expect(largestDifference(await embed(folder), node)).toBeLessThan(1e-5)
  })

  it('that are cut off are refused by name', async () => {
    const folder = copy()
    truncateSync(join(folder, 'model.safetensors'), 50_000)
    await expect(embed(folder)).rejects.toThrow(/model\.safetensors/)
  })

  it('that are not finite are found when they are used', async () => {
    const folder = copy()
    const tensors = await tensorsOf(folder)
    ;(tensors.get('encoder.layer.1.output.LayerNorm.bias')?.data as Float32Array)[3] = Number.NaN
    await writeSafetensors(join(folder, 'model.safetensors'), tensors)
    await expect(embed(folder)).rejects.toThrow(/model\.safetensors: .*not finite/)
  })
})
