import type { Item } from '../../hierarchy/index.ts'
import { exists, resolveInside } from '../../support/files.ts'
import { PLACES_KEPT } from './common.ts'

/** Items whose picture or video is not in the dataset folder yet: an import reads what is said of them, and no pixel. */
export interface MissingMedia {
  items: number
  /** The first `PLACES_KEPT` of their paths, relative to the folder. */
  paths: string[]
}

/**
 * Where the picture or video of an item has to lie; undefined for an item that names none.
 *
 * @throws InputError when that is outside of the dataset folder, or a URL
 */
export function mediaFile(item: Item, folder: string): string | undefined {
  const path = mediaPath(item)
  return path === undefined ? undefined : resolveInside(folder, path)
}

/** Counts an item whose picture or video is not there. */
export async function lookForMedia(item: Item, folder: string, missing: MissingMedia): Promise<void> {
  const file = mediaFile(item, folder)
  if (file === undefined || (await exists(file))) return
  if (++missing.items <= PLACES_KEPT) missing.paths.push(mediaPath(item)!)
}

function mediaPath(item: Item): string | undefined {
  return item.modality === 'image' ? item.image : item.modality === 'video' ? item.video : undefined
}
