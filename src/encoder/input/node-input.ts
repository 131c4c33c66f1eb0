import { resolve } from 'node:path'
import { extentOf, type Hierarchy, nodeInput, type RenderOptions, type TreeNode } from '../../hierarchy/index.ts'
import { InputError } from '../../support/errors.ts'
import { resolveInside } from '../../support/files.ts'
import type { EncoderInput } from './sequence.ts'
import { UnreadableError } from './unreadable.ts'

/**
 * What an encoder reads of a node.
 *
 * @param folder the dataset's, in which its pictures and videos lie; undefined where paths are the user's own
 * @throws UnreadableError for a video item without a file, and for a path that leaves the folder
 */
export function encoderInput(
  hierarchy: Hierarchy,
  node: TreeNode,
  rendering: RenderOptions,
  folder: string | undefined,
): EncoderInput {
  const { text, image, video } = nodeInput(hierarchy, node, rendering)
  const located = (path: string): string => (folder === undefined ? resolve(path) : inside(folder, path))
  if (image !== undefined) return { text, images: [located(image)] }
  if (video === undefined) return { text }
  if (video.path === undefined)
    throw new UnreadableError(
      `The item "${hierarchy.item.id}" names no "video" file, so there are no frames to read; give it one.`,
    )
  const [start, end] = extentOf(hierarchy, node)
  return { text, video: { path: located(video.path), frames: video.frames, start, end } }
}

function inside(folder: string, path: string): string {
  try {
    return resolveInside(folder, path)
  } catch (error) {
    throw error instanceof InputError ? new UnreadableError(error.message, {}, error) : error
  }
}
