import { cpSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { type Adapter, type EncoderProfile, loraA, loraB, readAdapter, readEncoder } from '../../src/encoder/index.ts'
import { mergedWeights } from '../../src/export/merge.ts'
import {
  type ExternalTensor,
  float32ToBfloat16,
  openSafetensors,
  type Tensor,
  writeSafetensors,
} from '../../src/onnx/index.ts'
import { tinyBert } from '../encoder/fixtures.ts'
import { temporaryFolder } from '../support/temporary.ts'

const folder = tinyBert('mean')

/** All merged weights, read three rows at a time. */
async function read(profile: EncoderProfile, adapter: Adapter | undefined): Promise<Map<string, Float32Array>> {
  const { references, of } = await mergedWeights(profile, adapter)
  const all = new Map<string, Float32Array>()
  for (const [name, tensor] of references) {
    const rows = of(tensor as ExternalTensor)
    const values: number[] = []
    for (let from = 0; from < rows.shape[0]!; from += 3)
      values.push(...(await rows.rows(from, Math.min(rows.shape[0]!, from + 3))))
    all.set(name, Float32Array.from(values))
  }
  return all
}

/** The fixture's folder with its tensors changed. */
async function changed(change: (name: string, tensor: Tensor) => [string, Tensor]): Promise<string> {
  const copy = join(temporaryFolder(), 'bert')
  cpSync(folder, copy, { recursive: true })
  const stored = await openSafetensors(join(copy, 'model.safetensors'))
  const tensors = new Map<string, Tensor>()
  for (const name of stored.tensors.keys()) tensors.set(...change(name, await stored.read(name)))
  rmSync(join(copy, 'model.safetensors'))
  await writeSafetensors(join(copy, 'model.safetensors'), tensors, { format: 'pt' })
  return copy
}

describe('mergedWeights', () => {
  it('adds (alpha / rank) B A to what the adapter changes, and leaves every other weight as it is', async () => {
    const profile = await readEncoder(folder)
    const adapter = await readAdapter(join(folder, 'adapter'), profile)
    const [base, merged] = [await read(profile, undefined), await read(profile, adapter)]
    expect([...merged.keys()]).toEqual([...base.keys()])

    const touched = new Set<string>()
    for (const { module, rank, alpha, inputs, outputs } of adapter.targets) {
      const name = `${module}.weight`
      touched.add(name)
      const [a, b] = [adapter.tensors.get(loraA(module))!, adapter.tensors.get(loraB(module))!]
      const before = base.get(name)!
      const after = merged.get(name)!
      let largest = 0
      for (let o = 0; o < outputs; o++)
        for (let i = 0; i < inputs; i++) {
          let sum = 0
          for (let r = 0; r < rank; r++) sum += b[o * rank + r]! * a[r * inputs + i]!
          expect(after[o * inputs + i]).toBeCloseTo(before[o * inputs + i]! + (alpha / rank) * sum, 6)
          largest = Math.max(largest, Math.abs(sum))
        }
      expect(largest).toBeGreaterThan(0.01)
    }
    expect(touched.size).toBeGreaterThan(5)
    const stored = await openSafetensors(profile.weights)
    for (const [name, values] of merged) if (!touched.has(name)) expect(values).toEqual(await stored.readTensor(name))
  })

  it('finds the modules behind the name of a model with a head', async () => {
    const copy = await changed((name, tensor) => [`bert.${name}`, tensor])
    const [plain, headed] = [await readEncoder(folder), await readEncoder(copy)]
    const adapter = await readAdapter(join(folder, 'adapter'), plain)
    const [a, b] = [await read(plain, adapter), await read(headed, adapter)]
    for (const [name, values] of a) expect(b.get(`bert.${name}`), name).toEqual(values)
  })

  it('reads bfloat16 as the float32 numbers that it stands for', async () => {
    const copy = await changed((name, { shape, data }) => [
      name,
      { dtype: 'bfloat16', shape, data: float32ToBfloat16(data as Float32Array) },
    ])
    const [exact, rounded] = [
      await read(await readEncoder(folder), undefined),
      await read(await readEncoder(copy), undefined),
    ]
    for (const [name, values] of rounded)
      expect(
        values.every((x, i) => Math.abs(x - exact.get(name)![i]!) <= 2 ** -8 * Math.abs(x)),
        name,
      ).toBe(true)
  })

  it('refuses an adapter for a module that is not there', async () => {
    const profile = await readEncoder(folder)
    const adapter = await readAdapter(join(folder, 'adapter'), profile)
    const target = { ...adapter.targets[0]!, module: 'encoder.layer.9.attention.self.query' }
    await expect(mergedWeights(profile, { ...adapter, targets: [target] })).rejects.toThrow(
      /changes encoder\.layer\.9\.attention\.self\.query, which the checkpoint does not have/,
    )
  })
})
