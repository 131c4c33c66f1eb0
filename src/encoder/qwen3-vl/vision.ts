import { createHash } from 'node:crypto'
import { bytesOfData, type Device, openSession, type Tensor } from '../../onnx/index.ts'
import { openWeights } from '../architecture.ts'
import type { EncoderProfile } from '../folder/profile.ts'
import { featureLevels, patchValues, qwen3VlConfig, type VisionConfig } from './config.ts'
import { lazyVision, type Vision } from './lazy-vision.ts'
import { packedVision } from './vision-graph.ts'
import { type Grid, patchPositions } from './vision-positions.ts'
import { visionPrefix } from './vision-tower.ts'

/** Changes whenever the same pictures get other features. */
const VISION_VERSION = 'vision/1'

/** What decides features besides tensors and their shapes; a checkpoint may hold more layers than `depth` says. */
const SETTINGS = [
  'depth',
  'num_heads',
  'patch_size',
  'temporal_patch_size',
  'spatial_merge_size',
  'deepstack_visual_indexes',
  'hidden_act',
  'rope_theta',
] as const

export interface VisionOptions {
  threads?: number
  /** Where the tower runs; the CPU by default. */
  device?: Device
  /** Most bytes that the pictures of one run take beside the weights; 1 GiB by default. A picture that takes more runs alone. */
  memory?: number
}

/**
 * Opens the vision tower of a Qwen3-VL checkpoint. Its weights are loaded when features are first asked for.
 *
 * @throws InputError for a checkpoint without a vision tower, naming the setting or the tensor
 */
export async function openVision(profile: EncoderProfile, options: VisionOptions = {}): Promise<Vision> {
  const { memory, threads, device = 'cpu' } = options
  const config = qwen3VlConfig(profile.config, profile.folder).vision_config
  const { weights, folder } = await openWeights(profile)
  const graph = packedVision(config, weights, profile.weights)
  const fingerprint = await visionFingerprint(profile)
  return lazyVision(device, (place) => ({
    config,
    fingerprint,
    file: profile.weights,
    patchesAtOnce: patchesAtOnce(config, memory),
    open: () =>
      openSession(graph, {
        externalFolder: folder,
        device: place,
        ...(threads === undefined ? {} : { threads }),
      }),
    async run(session, pixels, pictures, grid) {
      const shape = [pictures, grid[0] * grid[1], patchValues(config)]
      const { features } = await session.run({
        pixels: { dtype: 'float32', shape, data: pixels },
        ...positionFeeds(grid, config),
      })
      return features?.data as Float32Array
    },
  }))
}

function positionFeeds(grid: Grid, config: VisionConfig): Record<string, Tensor> {
  const { rows, shares, cos, sin } = patchPositions(grid, config)
  const area = rows.length / 4
  const angles = cos.length / area
  return {
    rows: { dtype: 'int32', shape: [area, 4], data: rows },
    shares: { dtype: 'float32', shape: [area, 4], data: shares },
    cos: { dtype: 'float32', shape: [area, angles], data: cos },
    sin: { dtype: 'float32', shape: [area, angles], data: sin },
  }
}

/** Most patches that a run of a tower takes, unless one picture has more, so that its pictures take no more than `memory` bytes. */
export function patchesAtOnce(config: VisionConfig, memory = 1 << 30): number {
  return memory / bytesPerPatch(config)
}

/**
 * Bytes that a patch takes while a run is at its widest: its pixels, the sum of its learned positions, and in a block either
 * queries, keys and values before and after turning, or both sides of the activation; and what it adds to the features.
 */
function bytesPerPatch(config: VisionConfig): number {
  const { hidden_size: hidden, intermediate_size: wide, out_hidden_size: out, spatial_merge_size: merge } = config
  const block = Math.max(9 * hidden, 3 * hidden + 2 * wide)
  return 4 * (patchValues(config) + hidden + block + (2 * featureLevels(config) * out) / merge ** 2)
}

const fingerprints = new Map<string, Promise<string>>()

/**
 * The fingerprint of an encoder's vision tower, for which its weights are read once while the process lives. Neither the language
 * model nor prompts and lengths are part of it.
 *
 * @throws InputError for a checkpoint without a vision tower
 */
export function visionFingerprint(profile: EncoderProfile): Promise<string> {
  const known = fingerprints.get(profile.fingerprint)
  if (known !== undefined) return known
  const computed = computeFingerprint(profile).catch((error: unknown) => {
    fingerprints.delete(profile.fingerprint)
    throw error
  })
  fingerprints.set(profile.fingerprint, computed)
  return computed
}

async function computeFingerprint(profile: EncoderProfile): Promise<string> {
  const config = qwen3VlConfig(profile.config, profile.folder).vision_config
  const { stored } = await openWeights(profile)
  const prefix = visionPrefix(stored.tensors.keys(), profile.weights)
  const hash = createHash('sha256')
  hash.update(JSON.stringify([VISION_VERSION, SETTINGS.map((name) => config[name])]))
  const names = [...stored.tensors.keys()].filter((name) => name.startsWith(prefix)).sort()
  for (const name of names) {
    const { dtype, shape, data } = await stored.read(name)
    hash.update(JSON.stringify([name.slice(prefix.length), dtype, shape]))
    hash.update(bytesOfData(data))
  }
  return hash.digest('hex')
}
