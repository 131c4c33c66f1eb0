import { existsSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { operatorCoverage, type Row } from './coverage.ts'

const folder = process.env.CANOPY_ONNX_TESTS
const found = folder !== undefined && existsSync(folder)
if (!found)
  console.log("CANOPY_ONNX_TESTS names no folder: the ONNX project's own tests of operators (data/node) are skipped")

describe.skipIf(!found)("the ONNX project's tests of its operators", () => {
  it('give what is stored, and their gradients agree with finite differences', async () => {
    const rows: Row[] = await operatorCoverage(folder as string)
    const failures = rows.flatMap(({ operator, forward, gradient }) =>
      [...forward.failed, ...gradient.failed].map(({ case: name, why }) => `${operator}, ${name}: ${why}`),
    )
    expect(failures).toEqual([])
    expect(rows.filter((row) => row.gradient.agrees > 0).length).toBeGreaterThan(80)
  }, 1_200_000)
})
