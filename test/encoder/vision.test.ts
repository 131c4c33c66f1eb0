import { cpSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { readEncoder } from '../../src/encoder/index.ts'
import { qwen3VlConfig } from '../../src/encoder/qwen3-vl/config.ts'
import { openExportedVision } from '../../src/encoder/qwen3-vl/exported.ts'
import { lazyVision, type Vision } from '../../src/encoder/qwen3-vl/lazy-vision.ts'
import { openVision, visionFingerprint } from '../../src/encoder/qwen3-vl/vision.ts'
import { plainVision } from '../../src/encoder/qwen3-vl/vision-graph.ts'
import { patchPositions } from '../../src/encoder/qwen3-vl/vision-positions.ts'
import {
  encodeModel,
  float32ToBfloat16,
  float32ToFloat16,
  GraphBuilder,
  openSafetensors,
  openSession,
  type Session,
  type Tensor,
  writeSafetensors,
} from '../../src/onnx/index.ts'
import { temporaryFolder } from '../support/temporary.ts'
import {
  joined,
  type KnownVision,
  knownPixels,
  knownVision,
  relativeError,
  tinyVision,
  VALUES,
} from './vision-known.ts'

const known = await knownVision()
const LEVELS = 4

type Tensors = Map<string, Tensor>

/** A copy of the checkpoint with other tensors, all float32 before `change` sees them, or another config. */
async function changed(
  change: (tensors: Tensors) => Tensors | undefined,
  config: (vision: Record<string, unknown>) => void = () => {},
): Promise<string> {
  const folder = join(temporaryFolder(), 'tiny')
  cpSync(tinyVision, folder, { recursive: true })
  const stored = await openSafetensors(join(folder, 'model.safetensors'))
  const tensors: Tensors = new Map()
  for (const [name, { shape }] of stored.tensors)
    tensors.set(name, { dtype: 'float32', shape, data: await stored.readTensor(name) })
  await writeSafetensors(join(folder, 'model.safetensors'), change(tensors) ?? tensors)
  const file = join(folder, 'config.json')
  const content = JSON.parse(readFileSync(file, 'utf8'))
  config(content.vision_config)
  writeFileSync(file, JSON.stringify(content))
  return folder
}

async function opened(folder = tinyVision, memory?: number): Promise<Vision> {
  return openVision(await readEncoder(folder), { threads: 1, ...(memory === undefined ? {} : { memory }) })
}

/** The features of all pairs of an input, each computed by itself. */
async function pairByPair(vision: Vision, { pixels, pairs }: KnownVision): Promise<Float32Array> {
  const parts: Float32Array[] = []
  let at = 0
  for (const [height, width] of pairs) {
    const end = at + height * width * VALUES
    parts.push(await vision.features(pixels.subarray(at, end), [height, width]))
    at = end
  }
  return joined(parts, LEVELS)
}

async function errorOf(folder: string): Promise<number> {
  const vision = await opened(folder)
  const wide = known.find(({ name }) => name === 'wide') as KnownVision
  const error = relativeError(await pairByPair(vision, wide), wide.features.data as Float32Array)
  await vision.close()
  return error
}

describe('the vision tower', () => {
  it('gives the features of transformers, each picture and each pair of frames by itself', async () => {
    const vision = await opened()
    for (const input of known)
      expect(
        relativeError(await pairByPair(vision, input), input.features.data as Float32Array),
        input.name,
      ).toBeLessThan(1e-5)
    await vision.close()
  })

  it('gives a picture the same features beside others, however runs are split', async () => {
    const pixels = knownPixels(5 * 24)
    const alone = await opened(tinyVision, 1)
    const one = await alone.features(pixels, [4, 6])
    await alone.close()
    for (const memory of [1 << 20, 1 << 30]) {
      const vision = await opened(tinyVision, memory)
      expect(relativeError(await vision.features(pixels, [4, 6]), one)).toBeLessThan(1e-6)
      await vision.close()
    }
    expect(one).toHaveLength(5 * LEVELS * 6 * 64)
  })

  it('reads weights of every float type, with and without the name of the model in front', async () => {
    expect(await errorOf(await changed(() => undefined))).toBeLessThan(1e-5)
    const recoded = (dtype: 'float16' | 'bfloat16', encode: (x: Float32Array) => Uint16Array) => (tensors: Tensors) =>
      new Map([...tensors].map(([n, t]) => [n, { ...t, dtype, data: encode(t.data as Float32Array) }]))
    // the numbers of the checkpoint are bfloat16's
    expect(await errorOf(await changed(recoded('bfloat16', float32ToBfloat16)))).toBeLessThan(1e-5)
    expect(await errorOf(await changed(recoded('float16', float32ToFloat16)))).toBeLessThan(1e-3)
    const renamed = (tensors: Tensors) => new Map([...tensors].map(([n, t]) => [n.replace(/^model\./, ''), t]))
    expect(await errorOf(await changed(renamed))).toBeLessThan(1e-5)
  })

  it('names a tensor that is missing or of another shape', async () => {
    const without = await changed((tensors) => {
      tensors.delete('model.visual.deepstack_merger_list.1.linear_fc2.bias')
      return tensors
    })
    await expect(opened(without)).rejects.toThrow(
      /model\.safetensors: The tensor "model\.visual\.deepstack_merger_list\.1\.linear_fc2\.bias" is missing/,
    )
    const wider = await changed(
      () => undefined,
      (vision) => {
        vision.intermediate_size = 64
      },
    )
    await expect(opened(wider)).rejects.toThrow(
      /"model\.visual\.blocks\.0\.mlp\.linear_fc1\.weight" is \[48, 32\].*\[64, 32\]/,
    )
    const textOnly = await changed((tensors) => new Map([...tensors].filter(([name]) => !name.includes('.visual.'))))
    await expect(opened(textOnly)).rejects.toThrow(/the weights beside it are those of a "qwen3"/)
  })

  it('names a weight that is stored in whole numbers instead of calling it missing', async () => {
    const quantised = await changed((tensors) => {
      const name = 'model.visual.blocks.1.attn.qkv.weight'
      const { shape } = tensors.get(name) as Tensor
      return tensors.set(name, { dtype: 'int8', shape, data: new Int8Array(96 * 32) })
    })
    await expect(opened(quantised)).rejects.toThrow(/blocks\.1\.attn\.qkv\.weight" is stored as I8.*quantised/)
  })

  it('reads weights in several files', async () => {
    const folder = await changed(() => undefined)
    const stored = await openSafetensors(join(folder, 'model.safetensors'))
    const parts: Tensors[] = [new Map(), new Map()]
    const weight_map: Record<string, string> = {}
    for (const [i, name] of [...stored.tensors.keys()].entries()) {
      parts[i % 2]?.set(name, await stored.read(name))
      weight_map[name] = `part-${i % 2}.safetensors`
    }
    for (const [i, part] of parts.entries()) await writeSafetensors(join(folder, `part-${i}.safetensors`), part)
    rmSync(join(folder, 'model.safetensors'))
    writeFileSync(join(folder, 'model.safetensors.index.json'), JSON.stringify({ metadata: {}, weight_map }))
    expect(await errorOf(folder)).toBeLessThan(1e-5)
  })

  it('finds weights that are not finite when they are used', async () => {
    const folder = await changed((tensors) => {
      ;(tensors.get('model.visual.merger.norm.bias')?.data as Float32Array)[0] = Number.NaN
      return tensors
    })
    const vision = await opened(folder)
    await expect(vision.features(knownPixels(4), [2, 2])).rejects.toThrow(/2 × 2 patches.*damaged or overflow/)
    await vision.close()
  })

  it('refuses pixels that fit no grid, stops when it is told to, and ends with its closing', async () => {
    const vision = await opened(tinyVision, 1)
    await expect(vision.features(knownPixels(6), [2, 3])).rejects.toThrow(/2 × 3 patches is no whole number of 2 × 2/)
    await expect(vision.features(knownPixels(4), [-2, -2])).rejects.toThrow(/-2 × -2 patches is no whole number/)
    await expect(vision.features(knownPixels(5), [2, 2])).rejects.toThrow(/no pictures of 2 × 2 patches/)
    const stop = new AbortController()
    const running = vision.features(knownPixels(400), [2, 2], { signal: stop.signal })
    setTimeout(() => stop.abort(new Error('enough')), 5)
    await expect(running).rejects.toThrow('enough')
    const late = vision.features(knownPixels(400), [2, 2])
    const ended = expect(late).rejects.toThrow(/has been closed/)
    await vision.close()
    await ended
    await expect(vision.features(knownPixels(4), [2, 2])).rejects.toThrow(/has been closed/)
  })

  it('of another model than config.json is an error where its features are more or fewer', async () => {
    const profile = await readEncoder(tinyVision)
    const config = qwen3VlConfig(profile.config, profile.folder).vision_config
    for (const rows of [3, 5]) {
      const vision = lazyVision('cpu', () => ({
        ...{ config, fingerprint: '', file: 'vision_encoder.onnx', patchesAtOnce: 8 },
        open: async () => ({ release: async () => {} }) as unknown as Session,
        run: async () => new Float32Array(rows * 64),
      }))
      await expect(vision.features(knownPixels(4), [2, 2])).rejects.toThrow(
        new RegExp(`vision_encoder\\.onnx: .*${rows * 64} numbers.*256.*different models`),
      )
    }
  })
})

describe('the fingerprint of a vision tower', () => {
  const fingerprint = async (folder: string): Promise<string> => visionFingerprint(await readEncoder(folder))

  it('changes with its weights and sizes, and not with the language model', async () => {
    const original = await fingerprint(await changed(() => undefined))
    expect(original).toMatch(/^[0-9a-f]{64}$/)
    const touch = (name: string) => (tensors: Tensors) => {
      ;(tensors.get(name)?.data as Float32Array)[0] = 0.5
      return tensors
    }
    expect(await fingerprint(await changed(touch('model.language_model.norm.weight')))).toBe(original)
    expect(await fingerprint(await changed(touch('model.visual.blocks.3.attn.qkv.bias')))).not.toBe(original)
    const activation = (vision: Record<string, unknown>) => {
      vision.hidden_act = 'gelu'
    }
    expect(await fingerprint(await changed(() => undefined, activation))).not.toBe(original)
    // the last layer's tensors are there, and not used
    const shallower = (vision: Record<string, unknown>) => {
      vision.depth = 3
    }
    expect(await fingerprint(await changed(() => undefined, shallower))).not.toBe(original)
  })

  it('is read again after weights could not be read', async () => {
    const profile = await readEncoder(
      await changed((tensors) => tensors.set('unknown', { dtype: 'float32', shape: [1], data: new Float32Array(1) })),
    )
    renameSync(profile.weights, `${profile.weights}.away`)
    await expect(visionFingerprint(profile)).rejects.toThrow(/model\.safetensors/)
    renameSync(`${profile.weights}.away`, profile.weights)
    expect(await visionFingerprint(profile)).toMatch(/^[0-9a-f]{64}$/)
  })

  it('of an exported one changes with its graph and with how it is run', async () => {
    const profile = await readEncoder(tinyVision)
    const folder = temporaryFolder()
    const exported = async (scale: number, optimization?: 'disabled'): Promise<string> => {
      const g = new GraphBuilder(17)
      g.output(g.mul(g.input('pixel_values', 'float32', ['patches', VALUES]), g.scalar(scale)), 'image_features')
      writeFileSync(join(folder, 'vision_encoder.onnx'), encodeModel(g.build()))
      const as = { ...profile, weights: join(folder, 'decoder_model_merged.onnx') }
      return (await openExportedVision(as, optimization === undefined ? {} : { optimization })).fingerprint
    }
    // in half precision, optimisation decides which results are rounded
    const all = [await exported(1), await exported(2), await exported(2, 'disabled')]
    expect(new Set(all).size).toBe(3)
    expect(await exported(2)).toBe(all[1])
  })
})

describe('the vision graph for other programs', () => {
  it('gives the features of transformers for several pictures and videos at once', async () => {
    const stored = await openSafetensors(join(tinyVision, 'model.safetensors'))
    const weights = new Map([...stored.tensors.keys()].map((name) => [name, stored.external(name)]))
    const config = qwen3VlConfig(JSON.parse(readFileSync(join(tinyVision, 'config.json'), 'utf8')), 'config.json')
    const graph = plainVision(config.vision_config, weights, 'model.safetensors')
    expect(graph.opset).toBe(17)
    expect(new Set(graph.nodes.map(({ domain }) => domain))).toEqual(new Set(['']))
    const session = await openSession(graph, { externalFolder: stored.folder, threads: 1 })
    for (const { name, grids, pixels, features } of known) {
      const { image_features: found } = await session.run({
        pixel_values: { dtype: 'float32', shape: [pixels.length / VALUES, VALUES], data: pixels },
        image_grid_thw: grids,
      })
      expect(found?.shape).toEqual(features.shape)
      expect(relativeError(found?.data as Float32Array, features.data as Float32Array), name).toBeLessThan(1e-5)
    }
    await session.release()
  })
})

describe('positions of patches', () => {
  const config = qwen3VlConfig(JSON.parse(readFileSync(join(tinyVision, 'config.json'), 'utf8')), '').vision_config

  it('go block by block, from corner to corner of the learned grid', () => {
    const { rows, shares } = patchPositions([2, 4], config)
    // corners of a grid of 8 × 8: patches 0, 5 (first row), 2, 7 (second row)
    expect([0, 5, 2, 7].map((patch) => [rows[4 * patch], shares[4 * patch]])).toEqual([0, 7, 56, 63].map((r) => [r, 1]))
    // the second of four along the width lies at 7/3
    expect([...rows.subarray(4, 6)]).toEqual([2, 3])
    expect([...shares.subarray(4, 8)]).toEqual([2 / 3, 1 / 3, 0, 0].map(Math.fround))
    for (let patch = 0; patch < 8; patch++)
      expect(shares.subarray(4 * patch, 4 * patch + 4).reduce((sum, share) => sum + share, 0)).toBeCloseTo(1, 6)
  })

  it('turn half of the angles by the row and half by the column', () => {
    const { cos, sin } = patchPositions([4, 4], config)
    // patch 6 is the first of the second row's second block
    const at = 6 * 8
    const angles = [1, 1e4 ** -0.25, 1e4 ** -0.5, 1e4 ** -0.75]
    const expected = [...angles, ...angles.map((angle) => 2 * angle)]
    expected.forEach((angle, i) => {
      expect(cos[at + i]).toBeCloseTo(Math.cos(angle), 6)
      expect(sin[at + i]).toBeCloseTo(Math.sin(angle), 6)
    })
  })
})

describe('the vision part of config.json', () => {
  const read = (change: (config: Record<string, never>) => void): (() => unknown) => {
    const config = JSON.parse(readFileSync(join(tinyVision, 'config.json'), 'utf8'))
    change(config)
    return () => qwen3VlConfig(config, 'config.json')
  }
  const vision = (changes: object) => read((config) => Object.assign(config.vision_config as never, changes))

  it('takes transformers’ defaults for what is not said', () => {
    const config = vision({ rope_parameters: undefined, patch_size: undefined, hidden_act: undefined })() as ReturnType<
      typeof qwen3VlConfig
    >
    expect(config.vision_config).toMatchObject({ rope_theta: 10000, patch_size: 16, hidden_act: 'gelu_pytorch_tanh' })
  })

  it('may state the base of the rotary angles where any version of transformers reads it', () => {
    for (const stated of [
      { rope_parameters: { rope_theta: 500 } },
      { rope_parameters: null, rope_theta: 500 },
      { rope_parameters: null, rope_scaling: { rope_type: 'axial', rope_theta: 500 } },
      { rope_parameters: { rope_type: 'axial' }, rope_theta: 500 },
    ]) {
      const config = vision(stated)() as ReturnType<typeof qwen3VlConfig>
      expect(config.vision_config.rope_theta, JSON.stringify(stated)).toBe(500)
    }
  })

  it('is refused with the field that does not fit', () => {
    expect(vision({ depth: undefined })).toThrow(/^config\.json: "vision_config\.depth" is missing/)
    expect(vision({ num_heads: 3 })).toThrow(
      /"vision_config\.hidden_size" is 32: is no multiple of four times num_heads/,
    )
    expect(vision({ num_position_embeddings: 60 })).toThrow(/num_position_embeddings" is 60: is no square/)
    expect(vision({ deepstack_visual_indexes: [0, 4] })).toThrow(/deepstack_visual_indexes" is \[0,4\].*below depth/)
    expect(vision({ hidden_act: 'quick_gelu' })).toThrow(/"vision_config\.hidden_act" is "quick_gelu"/)
    expect(vision({ rope_parameters: { rope_type: 'yarn' } })).toThrow(/rope_type" is "yarn"/)
    expect(vision({ rope_scaling: { type: 'linear' } })).toThrow(/rope_scaling\.type" is "linear"/)
    expect(vision({ in_channels: 1 })).toThrow(/in_channels" is 1/)
    expect(vision({ out_hidden_size: 32 })).toThrow(/out_hidden_size" is 32: is not the hidden_size of text_config/)
    expect(read((config) => Object.assign(config, { model_type: 'qwen2_vl' }))).toThrow(/"model_type" is "qwen2_vl"/)
  })
})
