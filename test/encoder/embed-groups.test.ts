import { expect, it, onTestFinished } from 'vitest'
import { openEmbedder, readEncoder } from '../../src/encoder/index.ts'
import { tinyBert } from './fixtures.ts'

const GROUPS = [
  ['The tower stands by the river.', 'Its clock was wound by Ada.', 'The tower stands by the river.'],
  ['The bell was cast later, in the year of the flood, by a founder from the town below the mill.'],
  ['The tower stands by the river.', 'Rye.', 'Floods took the wheel in spring. The mill ground rye for the town.'],
]

it('groups of inputs have the embeddings, bit by bit, that each has alone, and share none', async () => {
  const embedder = await openEmbedder(await readEncoder(tinyBert('mean')), { threads: 1 })
  onTestFinished(() => embedder.close())
  const inputs = GROUPS.flat().map((text) => ({ text }))
  const groups = GROUPS.map(({ length }) => length)
  const together = await embedder.embed(inputs, 'node', { groups })
  const { computed } = embedder.counts
  expect(computed).toBe(6)
  const alone: number[] = []
  for (const texts of GROUPS) alone.push(...(await embedder.embedTexts(texts, 'node')).embeddings)
  expect([...together.embeddings]).toEqual(alone)
  expect([...together.same]).toEqual([0, 1, 0, 3, 4, 5, 6])
  expect([...(await embedder.embed(inputs, 'node')).same]).toEqual([0, 1, 0, 3, 0, 5, 6])
})
