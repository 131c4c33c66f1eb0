import { execFile } from 'node:child_process'
import { existsSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { promisify } from 'node:util'
import { describe, expect, it } from 'vitest'
import { temporaryFolder } from '../support/temporary.ts'

const root = resolve(import.meta.dirname, '..', '..')
const release = join(root, 'test', 'compatibility', '0.1.0')

describe('examples/train.mjs', () => {
  it('goes from gold to an exported encoder without the command line, and on from where it was', async () => {
    const output = join(temporaryFolder(), 'made')
    const encoder = join(release, 'export', 'query-encoder')
    const run = (): Promise<{ stdout: string; stderr: string }> =>
      promisify(execFile)(process.execPath, [
        ...[join(root, 'examples', 'train.mjs'), join(release, 'dataset'), encoder, output, '6'],
      ])
    const { stdout, stderr } = await run()
    expect(stderr).toBe('')
    expect(stdout).toMatch(/^350 pairs\nthe adapter of step \d: .*\nfrozen: [\d.]+ [\d.]+ [\d.]+\nfine-tuned: /)
    for (const name of ['run/adapter/adapter_model.safetensors', 'run/eval/margins.csv', 'export/onnx/model.onnx'])
      expect(existsSync(join(output, name)), name).toBe(true)
    expect((await run()).stdout).toBe(stdout)
  }, 60_000)
})
