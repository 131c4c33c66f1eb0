import {
  buildHierarchy,
  type Item,
  milliseconds,
  type NodeInput,
  nodeInput,
  type VideoItem,
} from '../hierarchy/index.ts'
import { InputError } from '../support/errors.ts'
import { resolveInside } from '../support/files.ts'
import { lru } from '../support/lru.ts'
import type { Progress } from '../support/progress.ts'
import { MissingToolError } from './ffmpeg.ts'
import { decodeImage, type Picture } from './image.ts'
import { extractFrames, type Frame, type FrameOptions, probeVideo, type VideoIndex } from './video.ts'

/** The pixels that belong to a node: none for a text or a table. */
export interface NodeMedia {
  image?: Picture
  video?: Frame[]
}

export interface MediaOptions extends FrameOptions {
  /** Pictures of more pixels are refused. */
  maxPixels?: number | undefined
  /** What a file that cannot be read does: `stop` (default) throws, `skip` counts it and gives nothing. */
  onError?: 'stop' | 'skip' | undefined
}

export interface BrokenFile {
  item: string
  /** Relative to the dataset folder. */
  path: string
  reason: string
}

export interface MediaSummary {
  pictures: number
  frames: number
  /** Each file once. */
  broken: BrokenFile[]
}

/** Reads pictures and frames of a dataset's items; each video is looked through once. */
export interface MediaReader {
  /**
   * The pixels of a node. A video's times count from the start of its file: that is the source video, of which the item is
   * the part from `start` to `end`.
   *
   * @param input of `nodeInput`
   * @returns `undefined` for a file that cannot be read, with `onError: 'skip'`
   * @throws InputError naming the file; always for an item without a file, and when FFmpeg is not installed
   */
  read(item: Item, input: NodeInput, signal?: AbortSignal): Promise<NodeMedia | undefined>
  readonly summary: MediaSummary
}

/** Videos whose times are kept: eight bytes a frame. */
const VIDEOS_KEPT = 16

export function createMediaReader(folder: string, options: MediaOptions = {}): MediaReader {
  const summary: MediaSummary = { pictures: 0, frames: 0, broken: [] }
  const broken = new Set<string>()
  const videos = lru<VideoIndex>(VIDEOS_KEPT)
  const video = async (path: string, signal: AbortSignal | undefined): Promise<VideoIndex> =>
    videos.get(path) ?? videos.put(path, await probeVideo(path, { ...options, signal }))
  const skipping = async <T>(item: Item, path: string, work: () => Promise<T>): Promise<T | undefined> => {
    if (options.onError === 'skip' && broken.has(path)) return undefined
    try {
      return await work()
    } catch (error) {
      if (options.onError !== 'skip' || !(error instanceof InputError) || error instanceof MissingToolError) throw error
      broken.add(path)
      const prefix = `${error.file}: `
      const reason = error.message.startsWith(prefix) ? error.message.slice(prefix.length) : error.message
      summary.broken.push({ item: item.id, path, reason })
      return undefined
    }
  }
  return {
    summary,
    async read(item, input, signal = options.signal) {
      if (input.image !== undefined) {
        const { image } = input
        return skipping(item, image, async () => {
          const picture = await decodeImage(resolveInside(folder, image), options)
          summary.pictures++
          return { image: picture }
        })
      }
      if (input.video === undefined) return {}
      const { path, frames } = input.video
      if (path === undefined) {
        throw new InputError(`The item "${item.id}" names no "video" file, so there are no frames to read.`)
      }
      return skipping(item, path, async () => {
        const index = await video(resolveInside(folder, path), signal)
        const pictures = await extractFrames(index, frames, { ...options, signal })
        summary.frames += pictures.length
        return { video: pictures }
      })
    },
  }
}

/**
 * The pixels of a node, read once: {@link MediaReader.read} for a single node.
 *
 * @param folder dataset folder
 * @param input of `nodeInput`
 */
export async function readMedia(
  folder: string,
  item: Item,
  input: NodeInput,
  options: Omit<MediaOptions, 'onError'> = {},
): Promise<NodeMedia> {
  return (await createMediaReader(folder, options).read(item, input)) ?? {}
}

export interface MediaCheck extends MediaSummary {
  images: number
  videos: number
  /** Videos of which every frame that was looked at could be decoded. */
  decodedVideos: number
  /** Videos that name no file. */
  withoutFile: number
}

/** Frames of a check are small: what matters is that they can be decoded. */
const CHECK_SIZE = { width: 64, height: 36 }

/**
 * Decodes the file of every image item and, of every video item that names one, each frame that one of its leaves shows; tells
 * files that are broken and videos that end before their items do.
 *
 * @throws InputError when FFmpeg is not installed and a video is there
 */
export async function checkMedia(
  folder: string,
  items: AsyncIterable<Item>,
  options: { onProgress?: Progress | undefined; signal?: AbortSignal | undefined } = {},
): Promise<MediaCheck> {
  const { onProgress, signal } = options
  const reader = createMediaReader(folder, { onError: 'skip', size: CHECK_SIZE, signal })
  const check = { images: 0, videos: 0, decodedVideos: 0, withoutFile: 0 }
  let done = 0
  for await (const item of items) {
    signal?.throwIfAborted()
    if (item.modality === 'image') {
      check.images++
      await reader.read(item, { text: '', image: item.image })
    } else if (item.modality === 'video') {
      check.videos++
      if (item.video === undefined) check.withoutFile++
      else {
        const read = await reader.read(item, { text: '', video: { path: item.video, frames: framesToCheck(item) } })
        if (read !== undefined) check.decodedVideos++
      }
    }
    onProgress?.({ phase: 'decoding media', done: ++done })
  }
  return { ...check, ...reader.summary }
}

/** Milliseconds by which an item may end behind its video. */
const END_SLACK = 1000

/** The frames of every leaf, and one at the item's end. */
function framesToCheck(item: VideoItem): number[] {
  const hierarchy = buildHierarchy(item)
  const leaves = hierarchy.nodes.filter(({ children }) => children.length === 0)
  const frames = leaves.flatMap((leaf) => nodeInput(hierarchy, leaf, { title: false }).video!.frames)
  const end = Math.max(milliseconds(item.start), milliseconds(item.end) - END_SLACK)
  return [...new Set([...frames, end])].sort((a, b) => a - b)
}
