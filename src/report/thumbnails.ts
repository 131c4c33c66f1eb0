import sharp from 'sharp'
import { type Hierarchy, nodeInput } from '../hierarchy/index.ts'
import { type BrokenFile, createMediaReader, type MediaReader, type Picture } from '../media/index.ts'
import type { Thumbnail } from './viewer-data.ts'

/** Longest side in pixels: a report holds hundreds of them. */
const SIDE = 192

/**
 * Small pictures of an item's leaves: of an image the image, of a video the first frame of each segment.
 *
 * @returns one for each leaf, null where the file cannot be read
 */
export type Thumbnails = (folder: string, hierarchy: Hierarchy, signal?: AbortSignal) => Promise<(Thumbnail | null)[]>

/** Makes thumbnails; files that cannot be read are listed in `broken` and left out. */
export function createThumbnails(): { thumbnails: Thumbnails; broken: () => BrokenFile[] } {
  const readers = new Map<string, MediaReader>()
  return {
    broken: () => [...readers.values()].flatMap(({ summary }) => summary.broken),
    async thumbnails(folder, hierarchy, signal) {
      const reader = readers.get(folder) ?? createMediaReader(folder, { onError: 'skip' })
      readers.set(folder, reader)
      const leaves = hierarchy.nodes.filter(({ children }) => children.length === 0)
      const pictures: (Thumbnail | null)[] = []
      for (const leaf of leaves) {
        const input = nodeInput(hierarchy, leaf, { title: false })
        const first = input.video && { ...input, video: { ...input.video, frames: input.video.frames.slice(0, 1) } }
        const media = await reader.read(hierarchy.item, first ?? input, signal)
        const picture = media?.image ?? media?.video?.[0]
        pictures.push(picture === undefined ? null : await thumbnail(picture))
      }
      return pictures
    },
  }
}

async function thumbnail({ data, width, height }: Picture): Promise<Thumbnail> {
  const { data: bytes, info } = await sharp(data, { raw: { width, height, channels: 3 } })
    .resize({ width: SIDE, height: SIDE, fit: 'inside', withoutEnlargement: true })
    .webp({ quality: 70 })
    .toBuffer({ resolveWithObject: true })
  return { src: `data:image/webp;base64,${bytes.toString('base64')}`, width: info.width, height: info.height }
}
