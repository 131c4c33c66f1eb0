import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { createSetup, type Setup } from './command.ts'
import { trainHere } from './training.ts'

let folder: string
let setup: Setup
beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'canopy-too-few-'))
  setup = await createSetup(folder, 12)
})
afterAll(() => rmSync(folder, { recursive: true, force: true }))

describe('a run of few steps', () => {
  const fewSteps = (warnings: string[]): string[] => warnings.filter((text) => /^\d+ steps? in all/.test(text))

  it('is warned of once where its epochs come to so few, with what to change', async () => {
    const { warnings, result } = await trainHere(setup, join(folder, 'epochs'), { steps: undefined, epochs: 2 })
    expect(result.steps).toBeLessThan(20)
    expect(fewSteps(warnings)).toEqual([
      `${result.steps} steps in all are few, so that the adapter may hardly change a decision: raise --epochs, or lower --batch-size.`,
    ])
  })

  it('is not warned of where the steps were asked for, or there are enough', async () => {
    expect(fewSteps((await trainHere(setup, join(folder, 'asked'), { steps: 2 })).warnings)).toEqual([])
    const enough = await trainHere(setup, join(folder, 'enough'), { steps: undefined, epochs: 10, batchSize: 4 })
    expect(enough.result.steps).toBeGreaterThanOrEqual(20)
    expect(fewSteps(enough.warnings)).toEqual([])
  })
})
