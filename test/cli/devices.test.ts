import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { canopy, type Finished } from '../support/cli.ts'

// What the built command line does with --device and --precision, and `canopy doctor`.

const encoder = resolve(import.meta.dirname, '../fixtures/tiny-bert/mean')
const dataset = resolve(import.meta.dirname, '../../datasets/sample')
const run = (...args: string[]): Promise<Finished> => canopy(args).finished

let folder: string
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'canopy-devices-'))
})
afterAll(() => rmSync(folder, { recursive: true, force: true }))

describe('the command line', () => {
  it('checks the machine: status 0 without a fault, 1 with one', async () => {
    const { code, stdout } = await run('doctor', '--json')
    const { ok, findings } = JSON.parse(stdout) as { ok: boolean; findings: { name: string; status: string }[] }
    expect([code, ok]).toEqual([0, true])
    const cuda = findings.find(({ name }) => name === 'device cuda')!
    const asked = await run('doctor', '--device', 'cuda')
    expect(asked.code).toBe(cuda.status === 'ok' ? 0 : 1)
    expect(asked.stdout).toMatch(cuda.status === 'ok' ? /ok +device cuda/ : /fault device cuda.*1 fault, see above/s)
  })

  it('refuses a device that is not there, wherever something is computed, and leaves nothing behind', async () => {
    if ((await run('doctor', '--device', 'cuda')).code === 0) return
    const preferences = join(folder, 'sample.jsonl')
    writeFileSync(join(folder, 'text.txt'), 'One sentence. And another.')
    await run('preferences', '--dataset', dataset, '--split', 'train', '--output', preferences)
    const device = ['--encoder', encoder, '--device', 'cuda']
    const output = (name: string) => ['--output', join(folder, name)]
    const failed = await Promise.all([
      run('train', ...device, ...output('run'), '--dataset', dataset, '--preferences', preferences),
      run('evaluate', ...device, ...output('results'), '--dataset', dataset, '--split', 'dev'),
      run('refine', ...device, '--query', 'Who?', '--input', join(folder, 'text.txt')),
      run('export', ...device, ...output('export')),
    ])
    for (const { code, stderr } of failed) {
      expect(stderr).toMatch(/^error: (CUDA's part|onnxruntime-node has no cuda)/m)
      expect(code).toBe(1)
    }
    expect(readdirSync(folder)).toEqual(['sample.jsonl', 'text.txt'])
  })

  it('refuses a precision that the device lacks, and what is no device, precision or budget', async () => {
    const train = ['train', '--encoder', encoder, '--dataset', dataset, '--preferences', 'none', '--output', 'none']
    const half = await run(...train, '--precision', 'fp16')
    writeFileSync(join(folder, 'passage.txt'), 'One sentence. And another.')
    const others = await Promise.all([
      run(
        'evaluate',
        '--encoder',
        encoder,
        '--dataset',
        dataset,
        '--split',
        'dev',
        '--output',
        'none',
        '--precision',
        'fp16',
      ),
      run(
        'refine',
        '--encoder',
        encoder,
        '--query',
        'Who?',
        '--input',
        join(folder, 'passage.txt'),
        '--precision',
        'fp16',
      ),
    ])
    for (const { code, stderr } of [half, ...others])
      expect([code, stderr]).toEqual([1, expect.stringMatching(/float32 only.*--device cuda or webgpu/)])
    for (const wrong of [
      ['--device', 'tpu'],
      ['--precision', 'int8'],
      ['--token-budget', 'some'],
    ])
      expect((await run(...train, ...wrong)).code).toBe(2)
  })
})
