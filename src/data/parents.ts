import { type FileHandle, mkdtemp, open, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileError, openLineWriter } from '../support/files.ts'
import type { CuttableItem } from './cut.ts'
import { createColumn, createKeyTable } from './ids.ts'
import { readAt } from './index-file.ts'

/** An item that was cut, and what it became. */
export interface Parent {
  item: CuttableItem
  parts: { id: string; range: [number, number] }[]
}

/**
 * The items that were cut during an import, kept in a file of the system's temporary folder: gold is located in the whole item,
 * of which the dataset holds only the parts. Memory: about 50 bytes for each.
 */
export interface ParentStore {
  has(id: string): boolean
  add(parent: Parent): Promise<void>
  /** The parent of that id; undefined when no item of that id was cut. */
  find(id: string): Promise<Parent | undefined>
  close(): Promise<void>
}

export async function openParentStore(): Promise<ParentStore> {
  const folder = await mkdtemp(join(tmpdir(), 'canopy-parents-')).catch((error: unknown) => {
    throw fileError(error, 'cannot keep long items in a temporary folder', tmpdir())
  })
  const file = join(folder, 'parents.jsonl')
  const lines = await openLineWriter(file)
  const ids = createKeyTable()
  const offset = createColumn(0)
  const length = createColumn(0)
  let reader: FileHandle | undefined
  return {
    has: (id) => ids.find(id) >= 0,
    async add(parent) {
      const { entry } = ids.add(parent.item.id)
      offset.set(entry, lines.bytes)
      length.set(entry, (await lines.write(JSON.stringify(parent))) - 1)
    },
    async find(id) {
      const entry = ids.find(id)
      if (entry < 0) return undefined
      await lines.flush()
      reader ??= await open(file, 'r')
      const bytes = await readAt(reader, offset.get(entry), length.get(entry))
      return JSON.parse(bytes.toString('utf8')) as Parent
    },
    async close() {
      await reader?.close()
      await lines.abandon()
      await rm(folder, { recursive: true, force: true })
    },
  }
}
