import { cpSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { openSafetensors, type Tensor, writeSafetensors } from '../../src/onnx/index.ts'
import { canopy } from '../support/cli.ts'
import { temporaryFolder } from '../support/temporary.ts'

const encoder = join(import.meta.dirname, '..', 'fixtures', 'qwen3-vl')
const adapter = join(encoder, 'adapter')

const run = (...args: string[]) => canopy(args).finished

/** A text to refine. */
function passage(): string {
  const file = join(temporaryFolder(), 'passage.txt')
  writeFileSync(file, 'The clock is old. It runs. Who knows how long.')
  return file
}

describe('canopy export', () => {
  it('writes a folder that other verbs open by the first of its types, without being told which', async () => {
    const output = join(temporaryFolder(), 'export')
    const { code, stdout, stderr } = await run(
      ...['export', '--encoder', encoder, '--adapter', adapter, '--dtype', 'int8', 'fp16', '--output', output],
    )
    expect(code).toBe(0)
    expect(stdout).toMatch(/int8: Self-check: inputs compared 4 of text, 1 of pictures \(0 over-long\)/)
    expect(stderr).not.toContain('changes nothing')
    const refine = ['refine', '--encoder', output, '--query-encoder', encoder, '--query', 'What?', '--input', passage()]
    const scores = async (...more: string[]): Promise<string> => {
      const finished = await run(...refine, ...more)
      expect(finished.stderr).toBe('')
      return finished.stdout
    }
    const byDefault = await scores()
    expect(await scores('--onnx-file', 'decoder_model_merged_int8.onnx')).toBe(byDefault)
    expect(await scores('--onnx-file', 'decoder_model_merged_fp16.onnx')).not.toBe(byDefault)
    const wrong = await run(...refine, '--onnx-file', 'decoder_model_merged.onnx')
    expect(wrong.code).toBe(1)
    expect(wrong.stderr).toMatch(
      /that can be chosen are decoder_model_merged_fp16\.onnx, decoder_model_merged_int8\.onnx: name one \(--onnx-file/,
    )
  })

  it('warns of an adapter that changes nothing', async () => {
    const folder = join(temporaryFolder(), 'adapter')
    cpSync(adapter, folder, { recursive: true })
    const file = join(folder, 'adapter_model.safetensors')
    const stored = await openSafetensors(file)
    const tensors = new Map<string, Tensor>()
    for (const name of stored.tensors.keys()) {
      const tensor = await stored.read(name)
      if (name.includes('lora_B')) (tensor.data as Float32Array).fill(0)
      tensors.set(name, tensor)
    }
    await writeSafetensors(file, tensors)
    const output = join(temporaryFolder(), 'export')
    const { code, stderr } = await run('export', '--encoder', encoder, '--adapter', folder, '--output', output)
    expect(code).toBe(0)
    expect(stderr).toMatch(/warning: The adapter .* changes nothing: .*the encoder as it was/)
  })
})
