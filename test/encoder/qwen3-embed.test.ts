import { execFileSync } from 'node:child_process'
import { copyFileSync, existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import {
  type Embedder,
  type EmbedderOptions,
  type EncoderInput,
  encoderGraph,
  openEmbedder,
  readAdapter,
  readEncoder,
  type Side,
  textSequence,
} from '../../src/encoder/index.ts'
import { inHalfPrecision, openSession, type Tensor } from '../../src/onnx/index.ts'
import { hasFfmpeg } from '../media/ffmpeg-present.ts'
import { cosine, type Kind, type KnownInput, knownInputs, tinyQwen3 } from './qwen3-known.ts'

interface Entry {
  text: string
  side?: Side
  instruction?: string
  images?: string[]
  frames?: string[]
}

const entries = (kind: Kind): Record<string, Entry> =>
  JSON.parse(readFileSync(join(tinyQwen3(kind), 'expected.json'), 'utf8')).inputs

const folder = mkdtempSync(join(tmpdir(), 'canopy-embed-'))
afterAll(() => rmSync(folder, { recursive: true }))

/** A film without loss that shows the pictures frame0.png, frame1.png, …, ten seconds each. */
function film(): string {
  const file = join(folder, 'film.mkv')
  if (existsSync(file)) return file
  const pattern = join(tinyQwen3('qwen3-vl'), 'pictures', 'frame%d.png')
  execFileSync('ffmpeg', [
    ...['-v', 'error', '-framerate', '1/10', '-i', pattern, '-c:v', 'ffv1', '-pix_fmt', 'gbrp', file],
  ])
  return file
}

function inputOf({ text, images, frames }: Entry): EncoderInput {
  const picture = (name: string): string => join(tinyQwen3('qwen3-vl'), 'pictures', name)
  return {
    text,
    ...(images && { images: images.map(picture) }),
    ...(frames && { video: { path: film(), frames: frames.map((_, i) => 10_000 * i), start: 0 } }),
  }
}

/** Embeds what the reference has embedded, as far as it can be read here: a video only with ffmpeg. */
async function embedKnown(
  kind: Kind,
  options: EmbedderOptions = {},
): Promise<{ known: KnownInput; found: Float32Array; tokens: number; counts: Embedder['counts'] }[]> {
  const all = entries(kind)
  const known = (await knownInputs(kind)).filter(({ name }) => hasFfmpeg || all[name]!.frames === undefined)
  const found = []
  for (const side of ['query', 'node'] as const) {
    const own = known.filter(({ name }) => (all[name]!.side ?? (all[name]!.instruction ? 'query' : 'node')) === side)
    const instruction = own.map(({ name }) => all[name]!.instruction).find((text) => text !== undefined)
    const profile = await readEncoder(
      tinyQwen3(kind),
      instruction === undefined ? {} : { instructions: { [side]: instruction } },
    )
    const embedder = await openEmbedder(profile, { threads: 1, ...options })
    const { embeddings, tokens } = await embedder.embed(
      own.map(({ name }) => inputOf(all[name]!)),
      side,
    )
    await embedder.close()
    for (const [i, one] of own.entries())
      found.push({
        known: one,
        found: embeddings.slice(i * embedder.dimension, (i + 1) * embedder.dimension),
        tokens: tokens[i]!,
        counts: embedder.counts,
      })
  }
  return found
}

const KINDS = ['qwen3', 'qwen3-vl'] as const

describe.each(KINDS)('embeddings of %s', (kind) => {
  let frozen: Awaited<ReturnType<typeof embedKnown>>
  beforeAll(async () => {
    frozen = await embedKnown(kind)
  })

  it('are those of transformers, from texts and files', () => {
    for (const { known, found, tokens } of frozen) {
      expect([known.name, tokens]).toEqual([known.name, known.ids.length])
      expect(cosine(found, known.embedding), known.name).toBeGreaterThanOrEqual(0.99999)
    }
  })

  it('are those of PEFT with its adapter', async () => {
    const adapter = await readAdapter(join(tinyQwen3(kind), 'adapter'), await readEncoder(tinyQwen3(kind)))
    for (const { known, found } of await embedKnown(kind, { adapter }))
      expect(cosine(found, known.adapted), known.name).toBeGreaterThanOrEqual(0.99999)
  })

  it('are the same whether what inputs begin with is shared or not, for fewer tokens', async () => {
    const alone = await embedKnown(kind, { share: false })
    alone.forEach(({ found, counts }, i) => {
      const shared = frozen[i]!
      found.forEach((x, k) => {
        expect(Math.abs(x - shared.found[k]!)).toBeLessThan(1e-5)
      })
      expect(counts.computedTokens).toBe(counts.tokens)
      expect(shared.counts.tokens).toBe(counts.tokens)
    })
    if (kind === 'qwen3-vl') expect(frozen.at(-1)!.counts.computedTokens).toBeLessThan(alone.at(-1)!.counts.tokens)
  })
})

describe('embeddings of pictures', () => {
  const pictures = ['wide.png', 'tall.png', 'wide.png'].map((name) => ({
    text: '',
    images: [join(tinyQwen3('qwen3-vl'), 'pictures', name)],
  }))

  it('are computed once for equal ones, and found in the cache afterwards', async () => {
    const profile = await readEncoder(tinyQwen3('qwen3-vl'))
    const cache = join(folder, 'cache')
    const runs = []
    for (const _ of ['first', 'second']) {
      const embedder = await openEmbedder(profile, { threads: 1, cache })
      runs.push({ ...(await embedder.embed(pictures, 'node')), ...embedder.counts })
      await embedder.close()
    }
    expect(runs.map(({ computed, cached }) => [computed, cached])).toEqual([
      [2, 0],
      [0, 2],
    ])
    expect([...runs[0]!.same]).toEqual([0, 1, 0])
    expect(runs[1]!.embeddings).toEqual(runs[0]!.embeddings)
  })

  it('depend on the picture, not on its name', async () => {
    const copy = join(folder, 'copy.png')
    copyFileSync(pictures[0]!.images[0]!, copy)
    const embedder = await openEmbedder(await readEncoder(tinyQwen3('qwen3-vl')), { threads: 1 })
    const { same } = await embedder.embed([...pictures, { text: '', images: [copy] }], 'node')
    await embedder.close()
    expect([...same]).toEqual([0, 1, 0, 0])
  })

  it('are refused by an encoder of texts', async () => {
    const embedder = await openEmbedder(await readEncoder(tinyQwen3('qwen3')), { threads: 1 })
    await expect(embedder.embed(pictures, 'node')).rejects.toThrow(/wide\.png: The encoder qwen3 reads texts only/)
    await embedder.close()
  })
})

describe('half precision', () => {
  const cases = KINDS.flatMap((kind) => (['bf16', 'fp16'] as const).map((precision) => [precision, kind] as const))
  it.each(cases)('gives almost the same embeddings: %s, %s', async (precision, kind) => {
    const profile = await readEncoder(tinyQwen3(kind))
    const known = (await knownInputs(kind)).filter(({ isVisual }) => !isVisual.includes(true))
    const encoder = await encoderGraph(profile, [], 0)
    // rounded as kernels of the type would, which no CPU has
    const graph = inHalfPrecision(encoder.graph, precision, { trainable: [], emulate: true })
    const session = await openSession(graph, { threads: 1, externalFolder: encoder.externalFolder! })
    const { embeddings } = await session.run(encoder.feeds(known.map(({ ids }) => textSequence(Int32Array.from(ids)))))
    await session.release()
    known.forEach(({ name, embedding }, i) => {
      const found = (embeddings!.data as Float32Array).slice(i * profile.dimension, (i + 1) * profile.dimension)
      const similarity = cosine(found, embedding)
      expect(similarity, name).toBeGreaterThan(0.999)
      expect(similarity, name).toBeLessThan(1 - 1e-9)
    })
  })

  it.each(cases)('keeps positions far from 0 apart: %s, %s', async (precision, kind) => {
    const profile = await readEncoder(tinyQwen3(kind))
    const known = (await knownInputs(kind)).filter(({ isVisual }) => !isVisual.includes(true))
    const encoder = await encoderGraph(profile, [], 0)
    const graph = inHalfPrecision(encoder.graph, precision, { trainable: [], emulate: true })
    const session = await openSession(graph, { threads: 1, externalFolder: encoder.externalFolder! })
    const feeds = encoder.feeds(known.map(({ ids }) => textSequence(Int32Array.from(ids))))
    const near = await session.run(feeds)
    const positions = feeds.position_ids as Tensor
    // rotary positions count by their differences, so that all of them may begin later
    const later = { ...positions, data: (positions.data as Int32Array).map((position) => position + 6000) }
    const far = await session.run({ ...feeds, position_ids: later })
    await session.release()
    const [a, b] = [near, far].map(({ embeddings }) => embeddings!.data as Float32Array)
    known.forEach(({ name }, i) => {
      const range = [i * profile.dimension, (i + 1) * profile.dimension] as const
      expect(cosine(a!.slice(...range), b!.slice(...range)), name).toBeGreaterThan(0.9995)
    })
  })

  it('is refused where it cannot be computed', async () => {
    const profile = await readEncoder(tinyQwen3('qwen3'))
    await expect(openEmbedder(profile, { precision: 'bf16' })).rejects.toThrow(/CPU computes in float32 only/)
    const graph = await readEncoder(join(import.meta.dirname, '..', 'fixtures', 'onnx', 'tiny-bert-plain'), {
      pooling: 'mean',
    })
    await expect(openEmbedder(graph, { precision: 'fp16', device: 'webgpu' })).rejects.toThrow(/its own types/)
  })
})
