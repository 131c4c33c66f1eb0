import { describe, expect, it } from 'vitest'
import { verdictOf } from '../../src/eval/tables.ts'

type Interval = [value: number | null, lo: number | null, hi: number | null]

/** The verdict on fine-tuned against always-left and against permuted, which may not have been measured. */
function verdict(alwaysLeft: Interval, permuted: Interval | undefined, sources = 40): string | undefined {
  const row = ([value, lo, hi]: Interval) => ({ decision_accuracy: { value, lo, hi, n: 100 } })
  const mine = {
    'fine-tuned - always-left': row(alwaysLeft),
    ...(permuted !== undefined && { 'fine-tuned - permuted': row(permuted) }),
  }
  return verdictOf({ differences: { mine }, clusters: { mine: sources } }, 'mine', 'mine: ')
}

describe('the verdict on a fine-tuned encoder', () => {
  const above: Interval = [0.2, 0.1, 0.3]
  const reaching: Interval = [0.1, -0.1, 0.3]
  const without: Interval = [0.2, null, null]

  it('claims what both paired intervals show', () => {
    expect(verdict(above, above)).toBe(
      'mine: fine-tuned lies above always-left and above permuted: the paired intervals exclude 0.',
    )
  })

  it('says of the controls that are not beaten why', () => {
    expect(verdict(reaching, reaching)).toBe(
      'mine: fine-tuned is not shown to lie above always-left and permuted (the paired interval reaches 0).',
    )
    expect(verdict(above, reaching)).toBe(
      'mine: fine-tuned is not shown to lie above permuted (the paired interval reaches 0).',
    )
    expect(verdict([-0.2, -0.3, -0.1], reaching)).toBe(
      'mine: fine-tuned is not shown to lie above always-left (the paired interval lies below 0) and permuted (the paired interval reaches 0).',
    )
    expect(verdict([0, 0, 0], undefined)).toBe(
      'mine: fine-tuned is not shown to lie above always-left (the paired interval reaches 0) and permuted (not measured).',
    )
  })

  it('tells one source, which has no interval, from an interval that reaches 0', () => {
    expect(verdict(without, without, 1)).toBe(
      'mine: fine-tuned is not shown to lie above always-left and permuted (all questions share one source, so there is no interval).',
    )
    expect(verdict(without, without)).toContain('(there is no interval).')
  })

  it('is not given without a fine-tuned encoder', () => {
    const mine = { 'frozen - always-left': {} }
    expect(verdictOf({ differences: { mine }, clusters: { mine: 4 } }, 'mine')).toBeUndefined()
  })
})
