import { setImmediate } from 'node:timers/promises'
import type { Device, Session } from '../../onnx/index.ts'
import { InputError } from '../../support/errors.ts'
import { compareWithCpu } from '../embedding/device-check.ts'
import { featureLevels, patchValues, type VisionConfig } from './config.ts'
import type { Grid } from './vision-positions.ts'

/** A vision tower. It takes native memory, weights above all, from the first features that are asked of it until it is closed. */
export interface Vision {
  readonly config: VisionConfig
  /** SHA-256 (hexadecimal) over the tower's sizes and weights: what decides the features of given pixels. */
  readonly fingerprint: string
  /**
   * Features of pictures or pairs of frames of one size. Those of a picture do not depend on the others.
   *
   * @param pixels float32 [pictures, height · width, values of a patch], the patches in the order of blocks that are merged
   * @param grid patches in height and width, multiples of `spatial_merge_size`
   * @returns float32 [pictures, 1 + DeepStack levels, height · width / merge², out_hidden_size]
   * @throws InputError for weights that give numbers that are not finite
   */
  features(pixels: Float32Array, grid: Grid, options?: { signal?: AbortSignal }): Promise<Float32Array>
  close(): Promise<void>
}

/** What a vision tower is made of, however it is stored. */
export interface VisionTower {
  config: VisionConfig
  fingerprint: string
  /** What errors about weights name. */
  file: string
  /** Most patches of one run; a picture of more runs alone. */
  patchesAtOnce: number
  open(): Promise<Session>
  /** One run: pixels [pictures, height · width, values] to features [pictures, levels, rows, width]. */
  run(session: Session, pixels: Float32Array, pictures: number, grid: Grid): Promise<Float32Array>
}

/**
 * The tower on a device, loaded when it is first needed, in runs that stay within its limit. On another device than the CPU the
 * first picture is computed on both and has to be the same.
 *
 * @param towerOn the same tower on any device
 */
export function lazyVision(device: Device, towerOn: (device: Device) => VisionTower): Vision {
  const tower = device === 'cpu' ? towerOn('cpu') : checkedTower(towerOn(device), device, towerOn('cpu'))
  const { config, fingerprint, file, patchesAtOnce } = tower
  const merge = config.spatial_merge_size
  let session: Promise<Session> | undefined
  let closed = false
  /** Runs under way, which closing waits for: a session that is released under them is none. */
  const running = new Set<Promise<unknown>>()

  const opened = async (): Promise<Session> => {
    if (closed) throw new Error('The vision tower has been closed')
    session ??= tower.open().catch((error: unknown) => {
      session = undefined
      throw error
    })
    return session
  }

  const run = async (pixels: Float32Array, pictures: number, grid: Grid): Promise<Float32Array> => {
    const result = opened().then((session) => tower.run(session, pixels, pictures, grid))
    running.add(result)
    return result.finally(() => running.delete(result))
  }

  return {
    config,
    fingerprint,
    async features(pixels, grid, { signal } = {}) {
      const [height, width] = grid
      const area = height * width
      const values = patchValues(config)
      if (!(height > 0 && width > 0) || height % merge !== 0 || width % merge !== 0)
        throw new RangeError(`A grid of ${height} × ${width} patches is no whole number of ${merge} × ${merge} blocks`)
      const pictures = pixels.length / (area * values)
      if (!Number.isInteger(pictures))
        throw new RangeError(`${pixels.length} numbers are no pictures of ${height} × ${width} patches of ${values}`)
      const size = (featureLevels(config) * area * config.out_hidden_size) / merge ** 2
      const out = new Float32Array(pictures * size)
      const atOnce = Math.max(1, Math.floor(patchesAtOnce / area))
      for (let first = 0; first < pictures; first += atOnce) {
        signal?.throwIfAborted()
        const count = Math.min(atOnce, pictures - first)
        const some = pixels.subarray(first * area * values, (first + count) * area * values)
        const features = await run(some, count, grid)
        if (features.length !== count * size)
          throw new InputError(
            `The vision tower gives ${features.length} numbers for ${count} pictures of ${height} × ${width} patches, where config.json says ${count * size}. Graph and configuration are of different models.`,
            { file },
          )
        if (!features.every(Number.isFinite))
          throw new InputError(
            `The vision tower gives numbers that are not finite for a picture of ${height} × ${width} patches; its weights are damaged or overflow.`,
            { file },
          )
        out.set(features, first * size)
        // running a graph blocks the event loop: let signals and timers in between runs
        await setImmediate()
      }
      return out
    },
    async close() {
      closed = true
      await Promise.allSettled(running)
      await (await session)?.release()
    },
  }
}

function checkedTower(tower: VisionTower, device: Device, cpu: VisionTower): VisionTower {
  let checked = false
  return {
    ...tower,
    async run(session, pixels, pictures, grid) {
      const features = await tower.run(session, pixels, pictures, grid)
      if (checked) return features
      const reference = await cpu.open()
      const first = pixels.subarray(0, pixels.length / pictures)
      const expected = await cpu.run(reference, first, 1, grid).finally(() => reference.release())
      compareWithCpu(features.subarray(0, expected.length), expected, device, "the vision tower's features")
      checked = true
      return features
    },
  }
}
