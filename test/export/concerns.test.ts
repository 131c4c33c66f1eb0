import { describe, expect, it } from 'vitest'
import { checkText } from '../../src/cli/export.ts'
import { concerns } from '../../src/export/concerns.ts'
import type { ExportedEncoder, SelfCheck } from '../../src/export/index.ts'

const compared = { text: 9, table: 4, image: 2, video: 1 }
const check: SelfCheck = {
  ...{ compared, truncated: 1, cutAlike: true, minCosine: 0.9, maxDifference: 0.1 },
  bounds: { minCosine: 0.3, maxDifference: 1 },
}

function refined(instances: number, sameKept: number, exported: number, trained = 0.8): SelfCheck {
  const figures = { decisions: 3 * instances, prunedItemRate: 1, droppedItemRate: 0 }
  return {
    ...check,
    refinement: {
      ...{ instances, sameKept },
      trained: { ...figures, decisionAccuracy: trained },
      exported: { ...figures, decisionAccuracy: exported },
    },
  }
}

describe('a graph in few bits', () => {
  it('gives reason to measure it where other ranges are kept, or decisions get worse', () => {
    expect(concerns('int8', refined(40, 0.95, 0.79))).toEqual([])
    expect(concerns('int4', refined(40, 0.5, 0.81))).toEqual([
      'it keeps the same ranges of only 20 of 40 held-out items',
    ])
    expect(concerns('int4', refined(40, 1, 0.6))).toEqual([
      'its decision accuracy on them is 60.0 % where the trained encoder has 80.0 %',
    ])
    // an item without decisions
    expect(concerns('int8', refined(1, 1, Number.NaN, Number.NaN))).toEqual([])
  })

  it('gives reason to measure it where only the cosine tells, and it is low', () => {
    expect(concerns('int4', check)).toEqual([expect.stringMatching(/smallest cosine .* 0\.900, and no held-out items/)])
    expect(concerns('int8', { ...check, minCosine: 0.995 })).toEqual([])
    expect(concerns('fp16', check)).toEqual([])
  })
})

describe('what an export says of its self-check', () => {
  const exported = (found: SelfCheck): ExportedEncoder => ({
    ...found,
    ...{ type: 'int8', merged: 0, beside: 0, dequantised: 0 },
  })

  it('names how many texts, tables, pictures and videos were compared', () => {
    expect(checkText(exported(check))).toContain(
      'inputs compared 9 of text, 4 of tables, 2 of pictures, 1 of videos (1 over-long), smallest cosine 0.9000000',
    )
  })

  it('shows how small a number its shares are of', () => {
    expect(checkText(exported(refined(1, 0, 0, 0)))).toContain(
      'On 1 held-out item with 3 decisions, too few to judge by: decision accuracy 0.0 % trained, 0.0 % exported; the same ranges kept for 0 of 1.',
    )
    expect(checkText(exported(refined(40, 0.95, 0.79)))).toContain('On 40 held-out items with 120 decisions: decision')
  })
})
