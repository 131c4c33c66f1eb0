import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { checkText } from '../../src/cli/export.ts'
import { accuracyLoss, MOST_LOST, signTest } from '../../src/export/accuracy-loss.ts'
import type { CheckedVariant, ExportedEncoder, SelfCheck } from '../../src/export/index.ts'
import { type Refinement, refinementOf } from '../../src/export/self-check.ts'
import { buildTree, preOrder } from '../../src/hierarchy/index.ts'

const compared = { text: 9, table: 4, image: 2, video: 1 }
const check: SelfCheck = {
  ...{ compared, truncated: 1, cutAlike: true, minCosine: 0.9, maxDifference: 0.1 },
  bounds: { minCosine: 0.3, maxDifference: 1 },
}

/** Of `decisions`, four fifths are made right by the trained encoder. */
function refined(decisions: number, lost: number, gained: number): Refinement {
  const figures = { prunedItemRate: 1, droppedItemRate: 0 }
  return {
    ...{ instances: 40, sameKept: 0.95, decisions, lost, gained },
    trained: { ...figures, decisionAccuracy: 0.8 },
    exported: { ...figures, decisionAccuracy: 0.8 - (lost - gained) / decisions },
  }
}

const loss = (refinement: Refinement | undefined, minCosine = 0.99, allowed = MOST_LOST) =>
  accuracyLoss({ minCosine, ...(refinement !== undefined && { refinement }) }, allowed)

describe('decision accuracy', () => {
  it('is kept where no more is lost than is allowed', () => {
    expect(loss(refined(500, 12, 4))).toMatchObject({ verdict: 'kept', points: 1.6, allowed: 2 })
    expect(loss(refined(500, 0, 20))).toMatchObject({ verdict: 'kept', points: -4 })
  })

  it('is lost where more is, and chance does not explain it', () => {
    const found = loss(refined(500, 25, 5))
    expect(found).toMatchObject({ verdict: 'lost', points: 4 })
    expect(found.why).toBe(
      'decision accuracy falls by 4.0 points, from 80.0 to 76.0 % of 500 held-out decisions (25 become wrong, 5 right); at most 2 are allowed',
    )
    expect(loss(refined(500, 25, 5), 0.99, 5).verdict).toBe('kept')
    // embeddings that are nearly the same do not excuse it
    expect(loss(refined(500, 25, 5), 0.99999).verdict).toBe('lost')
  })

  it('is in doubt where more is lost on so few decisions that chance explains it', () => {
    // one of twenty is five points
    const found = loss(refined(20, 1, 0))
    expect(found).toMatchObject({ verdict: 'doubtful', points: 5, chance: 0.5 })
    expect(found.why).toContain('chance explains it (sign test, p = 0.50)')
    expect(loss(refined(20, 5, 0)).verdict).toBe('lost')
    // many decisions change either way
    expect(loss(refined(100, 23, 18)).verdict).toBe('doubtful')
  })

  it('is in doubt where too few decisions could tell a loss, unless the embeddings are nearly the same', () => {
    expect(loss(refined(20, 0, 0)).why).toBe(
      'on 20 held-out decisions a loss of less than 25.0 points cannot be told from chance; for the 2 that are allowed it takes 250',
    )
    expect(loss(refined(250, 0, 0)).verdict).toBe('kept')
    expect(loss(refined(4, 0, 0)).why).toBe(
      'on 4 held-out decisions no loss can be told from chance; for the 2 that are allowed it takes 250',
    )
    // however many there are, one may have become wrong
    expect(loss(refined(1000, 0, 0), 0.99, 0).why).toBe(
      'on 1000 held-out decisions a loss of less than 0.5 points cannot be told from chance',
    )
    expect(loss(refined(20_000, 0, 0), 0.99, 0.05).why).toBeUndefined()
    expect(loss(refined(1000, 0, 0), 0.99, 0.05).why).toContain('for the 0.05 that are allowed it takes 10000')
    expect(loss(refined(4, 4, 0), 0.99, 100).verdict).toBe('kept')
    expect(loss(refined(20, 0, 0), 0.99999).verdict).toBe('kept')
    expect(loss(undefined)).toMatchObject({ verdict: 'doubtful', why: 'no held-out decisions tell what it costs' })
    expect(loss(undefined, 1)).toEqual({ verdict: 'kept', allowed: 2 })
    // items without a decision
    expect(loss({ ...refined(1, 0, 0), decisions: 0 }).verdict).toBe('doubtful')
  })

  it('is compared with what a fair coin gives', () => {
    // all that n coins can show
    for (let n = 0; n <= 10; n++)
      for (let lost = 0; lost <= n; lost++) {
        const heads = Array.from({ length: 2 ** n }, (_, coins) => coins.toString(2).replaceAll('0', '').length)
        expect(signTest(lost, n - lost)).toBeCloseTo(heads.filter((k) => k >= lost).length / 2 ** n, 12)
      }
    expect(signTest(0, 0)).toBe(1)
    expect(signTest(5, 0)).toBeCloseTo(1 / 32, 12)
    expect(signTest(3, 1)).toBeCloseTo(5 / 16, 12)
    expect(signTest(3000, 3000)).toBeGreaterThan(0.5)
    expect(signTest(3300, 2700)).toBeLessThan(1e-10)
    fc.assert(
      fc.property(fc.nat(60), fc.nat(60), (lost, gained) => {
        // the splits at least as uneven the one way, and those more uneven the other way, are all there are
        expect(signTest(lost, gained) + (gained === 0 && lost === 0 ? 0 : signTest(gained + 1, lost - 1))).toBeCloseTo(
          1,
          9,
        )
      }),
    )
  })
})

describe('the decisions of two encoders', () => {
  it('are compared one by one', () => {
    const root = buildTree(4)
    const nodes = preOrder(root)
    const gold = [true, false, false, false]
    // gold leads to the left twice
    const tree = (right: readonly [boolean, boolean]) => ({
      ...{ nodes, gold },
      scores: nodes.map(({ from, to }) => {
        if (from === 0 && to === 4) return 0
        if (to - from === 2) return (from === 0) === right[0] ? 1 : -1
        return (from === 0) === right[1] ? 2 : 0
      }),
    })
    const found = refinementOf([tree([true, true]), tree([false, true])], [tree([true, false]), tree([true, true])])
    expect(found).toMatchObject({ instances: 2, decisions: 4, lost: 1, gained: 2, sameKept: 0 })
    // the second tree's root is entered on both sides, and so is the wrong one
    expect(found.trained.decisionAccuracy).toBe(0.5)
    expect(found.exported).toEqual({ decisionAccuracy: 0.75, prunedItemRate: 1, droppedItemRate: 1 })
  })
})

describe('what an export says of its self-check', () => {
  const exported = (found: SelfCheck, others: ExportedEncoder['others'] = {}): ExportedEncoder => ({
    ...checked('int8', found),
    ...{ type: 'int8', merged: 0, beside: 0, dequantised: 0, others },
  })
  const checked = (name: string, found: SelfCheck): CheckedVariant => ({
    name,
    ...found,
    bytes: 4.02e6,
    loss: accuracyLoss(found, 2),
  })

  it('names how many texts, tables, pictures and videos were compared', () => {
    const text = checkText(exported(check))
    expect(text).toContain('Inputs compared: 9 of text, 4 of tables, 2 of pictures, 1 of videos (1 over-long).')
    expect(text).toMatch(/graph +MB +cosine +difference\n.*\nint8 +4\.0 +0\.9000000 +1\.0e-1/)
    expect(text).not.toContain('decisions')
  })

  it('shows the figures of every graph beside those of the trained encoder', () => {
    const text = checkText(
      exported(
        { ...check, refinement: refined(120, 3, 1) },
        { int4: checked('int4', { ...check, refinement: refined(120, 30, 2) }) },
      ),
    )
    expect(text).toContain('40 held-out items with 120 decisions')
    expect(text).toMatch(/\ntrained +80\.0 +100\.0 +0\.0\n/)
    expect(text).toMatch(/\nint8 .* 78\.3 +3 +1 +100\.0 +0\.0 +38 of 40/)
    expect(text).toMatch(/\nint4 .* 56\.7 +30 +2 /)
  })
})
