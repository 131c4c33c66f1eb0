import { cpSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { loraA, loraB, readAdapter, readEncoder } from '../../src/encoder/index.ts'
import { mergedWeights } from '../../src/export/merge.ts'
import { openSafetensors, type Tensor, writeSafetensors } from '../../src/onnx/index.ts'
import { tinyBert } from '../encoder/fixtures.ts'
import { temporaryFolder } from '../support/temporary.ts'

const folder = tinyBert('mean')

describe('mergedWeights', () => {
  it('adds (alpha / rank) B A to what the adapter changes, and leaves every other weight as it is', async () => {
    const profile = await readEncoder(folder)
    const adapter = await readAdapter(join(folder, 'adapter'), profile)
    const [base, merged] = [await mergedWeights(profile, undefined), await mergedWeights(profile, adapter)]
    expect([...merged.keys()]).toEqual([...base.keys()])

    const changed = new Set<string>()
    for (const { module, rank, alpha, inputs, outputs } of adapter.targets) {
      const name = `${module}.weight`
      changed.add(name)
      const [a, b] = [adapter.tensors.get(loraA(module))!, adapter.tensors.get(loraB(module))!]
      const before = (base.get(name) as Tensor).data as Float32Array
      const after = (merged.get(name) as Tensor).data as Float32Array
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
    expect(changed.size).toBeGreaterThan(5)
    const stored = await openSafetensors(profile.weights)
    for (const [name, tensor] of merged)
      if (!changed.has(name)) expect((tensor as Tensor).data).toEqual(await stored.readTensor(name))
  })

  it('finds the modules behind the name of a model with a head', async () => {
    const copy = join(temporaryFolder(), 'bert')
    cpSync(folder, copy, { recursive: true })
    const stored = await openSafetensors(join(copy, 'model.safetensors'))
    const tensors = new Map<string, Tensor>()
    for (const name of stored.tensors.keys()) tensors.set(`bert.${name}`, await stored.read(name))
    rmSync(join(copy, 'model.safetensors'))
    await writeSafetensors(join(copy, 'model.safetensors'), tensors, { format: 'pt' })
    const [plain, headed] = [await readEncoder(folder), await readEncoder(copy)]
    const adapter = await readAdapter(join(folder, 'adapter'), plain)
    const [a, b] = [await mergedWeights(plain, adapter), await mergedWeights(headed, adapter)]
    for (const [name, tensor] of a) expect(b.get(`bert.${name}`), name).toEqual(tensor)
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
