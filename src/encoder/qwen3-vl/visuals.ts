import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { MissingToolError, type Picture } from '../../media/index.ts'
import { InputError } from '../../support/errors.ts'
import type { EncoderProfile } from '../folder/profile.ts'
import type { ReaderOptions } from '../input/reader.ts'
import type { EncoderInput, FeatureStore } from '../input/sequence.ts'
import { lookInto, UnreadableError } from '../input/unreadable.ts'
import { isInParts, openExportedVision } from './exported.ts'
import { featureKey, openFeatureStore } from './features.ts'
import { pictureSource } from './frames.ts'
import { fileIdentity, openManifest } from './manifest.ts'
import { cutPatches, type Normalisation } from './patches.ts'
import { MAX_FRAMES, readProcessor } from './processor.ts'
import { openVision } from './vision.ts'
import type { Grid } from './vision-positions.ts'

/** Changes whenever the same files get other pixels. */
export const PIXELS_VERSION = 'pixels/1'

/** Bytes of pixels that the vision tower is given at once: more than one picture's is of use where it runs on a GPU. */
const BYTES_AT_ONCE = 64 << 20

/** A picture, or the frames of a video in pairs. */
export interface Seen {
  file: string
  /** One for the picture, or one for each pair. */
  grids: Grid[]
  /** Names their features, after computing those that are not kept. */
  keys(signal?: AbortSignal): Promise<string[]>
}

/** Looks at pictures and videos with the vision tower; keeps what it saw. */
export interface Visuals {
  readonly features: FeatureStore
  /**
   * What an input shows: its video first, then its pictures.
   *
   * @throws UnreadableError naming the file that cannot be read
   */
  look(input: EncoderInput, signal?: AbortSignal): Promise<Seen[]>
  close(): Promise<void>
}

interface Shot {
  file: string
  /** Tells the file, its content and the frames. */
  id: string
  /** How many pictures share a grid of patches. */
  together: number
  normalisation: Normalisation
  decode: () => Promise<Picture[]>
}

/** The error of a file, with the part of it that was to be read. */
function withPart(error: unknown, start: number, end: number | undefined): unknown {
  if (end === undefined || !(error instanceof InputError) || error instanceof MissingToolError) return error
  const part = `(in the part from ${start / 1000} s to ${end / 1000} s)`
  const place = `${error.file}: `
  const reason = error.message.startsWith(place) ? error.message.slice(place.length) : error.message
  return new InputError(`${reason} ${part}`, { file: error.file, line: error.line }, error)
}

/** @throws InputError for files of the model that are missing or don't fit together */
export async function openVisuals(profile: EncoderProfile, options: ReaderOptions): Promise<Visuals> {
  const { cache, threads, device, optimization } = options
  const vision = await (isInParts(profile) ? openExportedVision : openVision)(profile, {
    ...(threads === undefined ? {} : { threads }),
    ...(device === undefined ? {} : { device }),
    ...(optimization === undefined ? {} : { optimization }),
  })
  const { config, fingerprint } = vision
  const processor = await readProcessor(profile, config)
  const folder = cache ?? (await mkdtemp(join(tmpdir(), 'canopy-features-')))
  const features = await openFeatureStore(folder, fingerprint)
  const manifest = await openManifest(folder, [PIXELS_VERSION, fingerprint, processor])
  const source = pictureSource(config)

  /** Computes the features of pictures of one grid, several at once and those alone that are not kept; gives their keys. */
  const featureKeys = async (
    grid: Grid,
    all: Iterable<Float32Array>,
    signal: AbortSignal | undefined,
  ): Promise<string[]> => {
    const keys: string[] = []
    const waiting = new Map<string, Float32Array>()
    const compute = async (): Promise<void> => {
      const values = [...waiting.values()].reduce((sum, pixels) => sum + pixels.length, 0)
      const pixels = new Float32Array(values)
      let at = 0
      for (const some of waiting.values()) {
        pixels.set(some, at)
        at += some.length
      }
      const found = await vision.features(pixels, grid, signal === undefined ? {} : { signal })
      const size = found.length / waiting.size
      for (const [i, key] of [...waiting.keys()].entries()) features.put(key, found.subarray(i * size, (i + 1) * size))
      waiting.clear()
    }
    for (const pixels of all) {
      signal?.throwIfAborted()
      const key = featureKey(fingerprint, grid, pixels)
      keys.push(key)
      if (waiting.has(key) || features.has(key)) continue
      waiting.set(key, pixels)
      if (waiting.size * pixels.byteLength >= BYTES_AT_ONCE) await compute()
    }
    if (waiting.size > 0) await compute()
    return keys
  }
  /** What is known of a file, or what decoding it shows. */
  const seen = async ({ file, id, together, normalisation, decode }: Shot): Promise<Seen> => {
    const known = manifest.find(id)
    if (known?.every(({ key }) => features.has(key)))
      return { file, grids: known.map(({ grid }) => grid), keys: async () => known.map(({ key }) => key) }
    const pictures = await lookInto(file, decode)
    const { height, width } = pictures[0]!
    const grid: Grid = [height / config.patch_size, width / config.patch_size]
    const count = Math.ceil(pictures.length / together)
    function* patches(): Iterable<Float32Array> {
      for (let i = 0; i < count; i++)
        yield cutPatches(pictures.slice(i * together, (i + 1) * together), config, normalisation)
    }
    return {
      file,
      grids: Array.from({ length: count }, () => grid),
      async keys(signal) {
        const keys = await featureKeys(grid, patches(), signal)
        manifest.add(
          id,
          keys.map((key) => ({ key, grid })),
        )
        return keys
      },
    }
  }
  return {
    features,
    async look({ images = [], video }, signal) {
      const all: Seen[] = []
      if (video !== undefined) {
        const { path, frames, start, end } = video
        if (frames.length === 0 || frames.length > MAX_FRAMES)
          throw new UnreadableError(
            `${frames.length} frames of the video were asked for; the encoder reads 1 to ${MAX_FRAMES}`,
            { file: path },
          )
        const identity = await lookInto(path, () => fileIdentity(path, 'cannot read the video'))
        all.push(
          await seen({
            file: path,
            id: JSON.stringify(['video', identity, frames]),
            together: config.temporal_patch_size,
            normalisation: processor.video,
            decode: () =>
              source.frames(path, identity, frames, signal).catch((error: unknown) => {
                throw withPart(error, start, end)
              }),
          }),
        )
      }
      for (const path of images) {
        signal?.throwIfAborted()
        const identity = await lookInto(path, () => fileIdentity(path, 'cannot read the picture'))
        all.push(
          await seen({
            file: path,
            id: JSON.stringify(['image', identity]),
            together: 1,
            normalisation: processor.image,
            decode: async () => [await source.image(path)],
          }),
        )
      }
      return all
    },
    async close() {
      manifest.close()
      features.close()
      await vision.close()
      if (cache === undefined) await rm(folder, { recursive: true, force: true })
    },
  }
}
