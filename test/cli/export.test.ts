import { cpSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
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
    expect(stdout).toMatch(/Inputs compared: 4 of text, 1 of pictures \(0 over-long\)\.\n.*\n.*\nint8 +\d/)
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

  const bert = join(import.meta.dirname, '..', 'fixtures', 'tiny-bert', 'mean')
  const sample = join(import.meta.dirname, '..', '..', 'datasets', 'sample')
  const command = (...more: string[]): string[] => ['export', '--encoder', bert, ...more]

  it('compares decisions on a data set where an adapter has no run, and says what they cost', async () => {
    const output = join(temporaryFolder(), 'export')
    const data = ['--check-dataset', sample, '--check-split', 'dev', '--check-items', '6']
    const { code, stdout, stderr } = await run(
      ...command('--adapter', join(bert, 'adapter'), '--dtype', 'fp32', 'int8', ...data),
      ...['--margin', '0.03', '--keep-adapter', '--output', output],
    )
    expect(stderr).not.toContain('held-out items cannot be read')
    expect(code).toBe(0)
    expect(stdout).toMatch(/6 held-out items with \d+ decisions/)
    expect(stdout).toMatch(/^trained +\d/m)
    expect(stdout).toMatch(/^fp32 .* 0 +0 .* 6 of 6$/m)
    expect(stdout).toMatch(/^adapter beside .* 6 of 6$/m)
    expect(stderr).toMatch(
      /The graph in int8: on \d+ held-out decisions? a loss of less than .*--check-items, --check-dataset/,
    )
    expect(JSON.parse(readFileSync(join(output, 'canopy.json'), 'utf8')).margin).toBe(0.03)
    const none = await run(...command('--check-dataset', sample, '--check-split', 'nothing', '--output', output))
    expect([none.code, none.stderr]).toEqual([1, expect.stringMatching(/nothing/)])
  })

  it('prints the figures of every graph as JSON', async () => {
    const output = join(temporaryFolder(), 'export')
    const { stdout } = await run(
      ...command('--dtype', 'int8', 'fp16', '--check-dataset', sample, '--check-items', '4'),
      ...['--json', '--output', output],
    )
    const found = JSON.parse(stdout)
    expect(found).toMatchObject({ type: 'int8', loss: { allowed: 2 }, refinement: { instances: 4 } })
    expect(found.others.fp16.refinement.exported).toMatchObject({ decisionAccuracy: expect.any(Number) })
    expect(found.bytes).toBeGreaterThan(1000)
  })

  it.each([
    ['--max-accuracy-loss', '-1', /0 or more/],
    ['--margin', '-0.1', /margin/],
  ])('does not take %s %s', async (flag, value, why) => {
    const { code, stderr } = await run(...command(flag, value, '--output', join(temporaryFolder(), 'export')))
    expect([code, stderr]).toEqual([2, expect.stringMatching(why)])
  })

  it('leaves nothing where the disk is full', async () => {
    const parent = temporaryFolder()
    const { code, stderr } = await canopy(command('--dtype', 'fp32', 'int8', '--output', join(parent, 'export')), {
      shell: 'ulimit -f 40; exec "$@"',
    }).finished
    expect(code).toBe(1)
    expect(stderr).toMatch(/^error: .*export.*: .*(allows no file that large|disk is full)/m)
    expect(readdirSync(parent)).toEqual([])
  })

  it('bundles both encoders, so that the folder refines where there is no network', async () => {
    const output = join(temporaryFolder(), 'export')
    const exported = await run(...command('--adapter', join(bert, 'adapter'), '--bundle', '--output', output))
    expect(exported.code).toBe(0)
    // whoever reaches for the network ends the process
    const offline = join(temporaryFolder(), 'offline.mjs')
    writeFileSync(
      offline,
      `import dns from 'node:dns'
import net from 'node:net'
const none = () => { process.stderr.write('the network was asked\\n'); process.exit(9) }
net.Socket.prototype.connect = none
dns.lookup = none
dns.promises.lookup = none
globalThis.fetch = none
`,
    )
    const shell = `NODE_OPTIONS="--import=${pathToFileURL(offline)}" exec "$@"`
    const args = ['refine', '--encoder', output, '--query', 'What is old?', '--input', passage()]
    const { code, stdout, stderr } = await canopy(args, { shell }).finished
    expect([code, stderr]).toEqual([0, expect.not.stringContaining('network')])
    expect(stdout).toMatch(/[+-] The clock is old\./)
    const asked = await canopy(['refine', '--encoder', 'nobody/nothing', '--query', 'q', '--input', passage()], {
      shell,
    }).finished
    expect(asked.code).not.toBe(0)
  })
})
