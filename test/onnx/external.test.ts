import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { loadTensor } from '../../src/onnx/index.ts'

const folder = mkdtempSync(join(tmpdir(), 'canopy-external-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))
writeFileSync(join(folder, 'weights.bin'), Buffer.concat([Buffer.alloc(3), Buffer.from(Float32Array.of(1, -2).buffer)]))

describe('a tensor in a file', () => {
  const external = { file: 'weights.bin', offset: 3, length: 8 }

  it('is read from any offset', async () => {
    expect(await loadTensor('w', { dtype: 'float32', shape: [2], external }, folder)).toEqual({
      dtype: 'float32',
      shape: [2],
      data: Float32Array.of(1, -2),
    })
  })

  it('is an error where the file is missing or too short', async () => {
    const tensor = (more: object) => ({
      dtype: 'float32' as const,
      shape: [2],
      external: { ...external, ...more },
    })
    await expect(loadTensor('w', tensor({ file: 'none' }), folder)).rejects.toThrow(/none: the weights of "w"/)
    await expect(loadTensor('w', tensor({ offset: 4 }), folder)).rejects.toThrow(/ends before the 8 bytes of "w" at 4/)
    // refused before so much memory is asked for
    await expect(loadTensor('w', tensor({ length: 2 ** 50 }), folder)).rejects.toThrow(
      /ends before the 1125899906842624/,
    )
    await expect(loadTensor('w', tensor({}), undefined)).rejects.toThrow(/give its folder/)
  })
})
