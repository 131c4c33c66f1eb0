import { describe, expect, it } from 'vitest'
import { readEncoder } from '../../src/encoder/index.ts'
import { qwen3VlConfig } from '../../src/encoder/qwen3-vl/config.ts'
import { lazyVision, type VisionTower } from '../../src/encoder/qwen3-vl/lazy-vision.ts'
import { openVision } from '../../src/encoder/qwen3-vl/vision.ts'
import type { Device, Session } from '../../src/onnx/index.ts'
import { softwareVulkan } from '../support/vulkan.ts'
import { knownPixels, relativeError, tinyVision } from './vision-known.ts'

const canRun = softwareVulkan()

describe('the vision tower on another device', () => {
  it.runIf(canRun)('gives the features of the CPU', async () => {
    const profile = await readEncoder(tinyVision)
    const features = async (device: Device): Promise<Float32Array> => {
      const vision = await openVision(profile, { device, threads: 1 })
      return vision.features(knownPixels(8), [2, 4]).finally(() => vision.close())
    }
    expect(relativeError(await features('webgpu'), await features('cpu'))).toBeLessThan(1e-4)
  })

  it('is compared with the CPU once, on the first picture', async () => {
    const { profile, config } = await tiny()
    const asked: string[] = []
    const towerOn = (device: Device): VisionTower => ({
      ...{ config, fingerprint: '', file: profile.weights, patchesAtOnce: 8 },
      open: async () => ({ release: async () => void asked.push(`${device} released`) }) as unknown as Session,
      async run(_session, _pixels, pictures) {
        asked.push(`${device} ${pictures}`)
        return new Float32Array(pictures * 4 * 64).fill(1)
      },
    })
    const vision = lazyVision('webgpu', towerOn)
    await vision.features(knownPixels(12), [2, 2])
    expect(asked).toEqual(['webgpu 2', 'cpu 1', 'cpu released', 'webgpu 1'])
    await vision.close()
  })

  it('whose features are others is an error, not a result', async () => {
    const { profile, config } = await tiny()
    const vision = lazyVision('webgpu', (device) => ({
      ...{ config, fingerprint: '', file: profile.weights, patchesAtOnce: 8 },
      open: async () => ({ release: async () => {} }) as unknown as Session,
      run: async () => new Float32Array(4 * 64).map((_, i) => (device === 'cpu' ? i : -i)),
    }))
    await expect(vision.features(knownPixels(4), [2, 2])).rejects.toThrow(
      /On webgpu the vision tower's features.*--device cpu/,
    )
  })
})

async function tiny() {
  const profile = await readEncoder(tinyVision)
  return { profile, config: qwen3VlConfig(profile.config, profile.folder).vision_config }
}
