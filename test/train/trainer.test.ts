import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { temporaryFolder } from '../support/temporary.ts'
import { createSetup } from './command.ts'
import { trainHere } from './training.ts'

describe('a measured token budget', () => {
  it('is no larger than the runs of the CPU, which puts small instances together up to 1024 tokens only', async () => {
    const folder = temporaryFolder()
    const notes: string[] = []
    const settings = { tokenBudget: 'auto', batchSize: 32, steps: 1, validationShare: 0 } as const
    const note = (message: string): unknown => notes.push(message)
    const { lines } = await trainHere(await createSetup(folder), join(folder, 'run'), settings, { note })
    expect(lines.at(-1)!.tokens).toBeGreaterThan(2048)
    expect(notes).toContainEqual(
      expect.stringMatching(/^The token budget of this run is 1024 \(tried 1024: \d+ tokens\/s, [\d.]+ GiB\)\.$/),
    )
    expect(JSON.parse(readFileSync(join(folder, 'run', 'config.json'), 'utf8')).tokenBudget).toBe(1024)
  })
})
