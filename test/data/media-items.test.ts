import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { mayHoldMedia } from '../../src/data/index.ts'
import { lines, temporaryFolder } from '../support/temporary.ts'

const text = (length: number): object => ({ id: 'a', text: 'x'.repeat(length) })

it('a dataset may hold media where an item has such a modality, wherever the file is read in two', async () => {
  const folder = temporaryFolder()
  const holds = (...items: object[]): Promise<boolean> => {
    writeFileSync(join(folder, 'items.jsonl'), lines(...items))
    return mayHoldMedia({ folder })
  }
  expect(await holds(text(10), { id: 'v', modality: 'video', start: 0, end: 9 })).toBe(true)
  expect(await holds({ id: 'i', modality: 'image', image: 'i.png' })).toBe(true)
  expect(await holds(text(10), { id: 'b', text: 'They call it a "video" or an "image".' })).toBe(false)
  const before = lines(text(0), { id: 'v', modality: 'video' }).indexOf('"video"')
  for (let cut = 0; cut <= 7; cut++)
    expect(await holds(text((1 << 20) - before - cut), { id: 'v', modality: 'video' })).toBe(true)
  await expect(mayHoldMedia({ folder: join(folder, 'nowhere') })).rejects.toThrow(/nowhere.*cannot read the items/)
})
