import { describe, expect, it } from 'vitest'
import type { Output } from '../../src/cli/output.ts'
import { printResult, reporter } from '../../src/cli/train-text.ts'
import type { TrainResult } from '../../src/train/index.ts'

/** An output that keeps its lines. */
function kept(): { out: Output; lines: string[] } {
  const lines: string[] = []
  const nothing = (): void => {}
  const out: Output = {
    ...{ json: nothing, warn: nothing, progress: nothing, done: nothing },
    line: (text = '') => lines.push(text),
  }
  return { out, lines }
}

const validation = {
  ...{ decision_accuracy: 0.5, mean_decision_accuracy: 0.75, edge_accuracy: 0.6, pair_accuracy: 0.7, loss: 0.25 },
  ...{ decisions: 8, pairs: 20, benchmarks: { one: 0.5, two: 1 } },
}

describe('what training says', () => {
  it('has the training loss, the step of how many and the time left wherever it validates', () => {
    const { out, lines } = kept()
    const report = reporter(out)
    const step = { seconds: 1, tokens: 10, pairs: 2, epoch: 1 }
    report({ step: 0, validation }, { totalSteps: 3 })
    report({ ...step, step: 1, loss: 0.5 }, { totalSteps: 3 })
    report({ ...step, step: 2, loss: 0.3, validation }, { totalSteps: 3 })
    report({ ...step, step: 3, loss: 0.1, validation }, { totalSteps: 3 })
    expect(lines.length).toBe(3)
    expect(lines[0]).toMatch(/^frozen encoder: validation decisions 50\.0 % \(one 50\.0 %, two 100\.0 %\)/)
    expect(lines[1]).toMatch(/^step 2 of 3, epoch 1: training loss 0\.4000; validation .*loss 0\.2500; \d+ s left$/)
    expect(lines[2]).toMatch(/^step 3 of 3, epoch 1: training loss 0\.3000; validation .*loss 0\.2500$/)
  })

  it.each([
    ['decision_accuracy', 'validation decision accuracy 50.0 %, frozen 50.0 %'],
    ['mean_decision_accuracy', 'validation mean decision accuracy of the benchmarks 75.0 %, frozen 75.0 %'],
    ['loss', 'validation loss 0.2500, frozen 0.2500'],
  ] as const)('names what selected the adapter: %s', (selection, text) => {
    const { out, lines } = kept()
    const result: TrainResult = {
      ...{ adapter: 'adapter', steps: 3, alreadyFinished: true, frozen: validation, skipped: 0 },
      selected: { step: 2, validation },
      instances: { train: 1, validation: 1, leftOut: 0 },
      work: { steps: 0, seconds: 0, tokens: 0, computedTokens: 0, pairs: 0, peakMemory: 0 },
    }
    printResult(out, result, selection)
    expect(lines).toContain(`Selected step 2 of 3: ${text}.`)
  })
})
