import { cpSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { canopy } from '../support/cli.ts'
import { temporaryFolder } from '../support/temporary.ts'
import { createSetup } from '../train/command.ts'

const forms = join(import.meta.dirname, '..', 'fixtures', 'onnx')
const model = (form: string): string => join(forms, form, 'onnx', 'model.onnx')

async function run(...args: string[]) {
  const finished = await canopy(args).finished
  expect(finished.stderr + finished.stdout).not.toContain('something went wrong')
  return finished
}

/** An encoder as transformers.js users have it: two graphs, config and tokenizer, nothing about pooling. */
function transformersJsFolder(): string {
  const folder = join(temporaryFolder(), 'encoder')
  mkdirSync(join(folder, 'onnx'), { recursive: true })
  for (const name of ['config.json', 'tokenizer.json', 'tokenizer_config.json'])
    cpSync(join(forms, 'tiny-bert-plain', name), join(folder, name))
  cpSync(model('tiny-bert-plain'), join(folder, 'onnx', 'model.onnx'))
  cpSync(model('tiny-bert-int8'), join(folder, 'onnx', 'model_quantized.onnx'))
  return folder
}

describe('canopy train --list-modules', () => {
  it('prints the modules of an ONNX folder and asks for nothing else', async () => {
    const { code, stdout } = await run('train', '--encoder', join(forms, 'tiny-bert-int8'), '--list-modules')
    expect(code).toBe(0)
    expect(stdout).toMatch(/^encoder\.layer\.0\.attention\.self\.query +32 x 32 +int8 {2}default$/m)
    expect(stdout).toMatch(/^12 linear modules, 12 of them adapted by default\.$/m)
  })

  it('prints those of a checkpoint as JSON', async () => {
    const checkpoint = join(forms, '..', 'tiny-bert', 'mean')
    const { code, stdout } = await run('train', '--encoder', checkpoint, '--list-modules', '--json')
    expect(code).toBe(0)
    const modules = JSON.parse(stdout)
    expect(modules).toHaveLength(12)
    const first = { module: 'encoder.layer.0.attention.self.query', inputs: 32, outputs: 32 }
    expect(modules[0]).toEqual({ ...first, standard: true, storage: 'fp32' })
  })

  it('does not make the other flags optional for training', async () => {
    const { code, stderr } = await run('train', '--encoder', join(forms, 'tiny-bert-plain'))
    expect(code).toBe(2)
    expect(stderr).toMatch(/required option '--dataset/)
  })
})

describe('an encoder of transformers.js', () => {
  it('is trained, evaluated, refined with and exported, by its quantised graph if that is asked for', async () => {
    const { dataset, preferences } = await createSetup(temporaryFolder(), 12)
    const folder = transformersJsFolder()
    const places = temporaryFolder()
    // modules do not depend on pooling
    const graph = ['--onnx-file', 'onnx/model_quantized.onnx']
    const listed = await run('train', '--encoder', folder, ...graph, '--list-modules')
    expect(listed.stdout).toMatch(/self\.query +32 x 32 +int8/)
    const some = ['--dataset', dataset, '--split', 'train', '--output', join(places, 'none')]
    const unstated = await run('evaluate', '--encoder', folder, ...some)
    expect(unstated.code).toBe(1)
    expect(unstated.stderr).toMatch(/how token vectors become one embedding is not known.*--pooling/)

    const encoder = ['--encoder', folder, '--onnx-file', 'model_quantized.onnx', '--pooling', 'mean', '--normalize']
    const data = ['--dataset', dataset, '--preferences', preferences]
    const few = ['--steps', '2', '--batch-size', '4', '--rank', '2', '--selection', 'loss', '--threads', '1']
    const trained = await run('train', ...encoder, ...data, ...few, '--output', join(places, 'run'))
    expect(trained.stderr).toMatch(/the file's operators round what they multiply to integers/)
    expect(trained.code).toBe(0)
    const adapter = ['--adapter', join(places, 'run', 'adapter')]

    const split = ['--dataset', dataset, '--split', 'train', '--allow-overlap', '--no-report', '--resamples', '10']
    const evaluated = await run('evaluate', ...encoder, ...adapter, ...split, '--output', join(places, 'eval'))
    expect(evaluated.code).toBe(0)
    expect(evaluated.stdout).toMatch(/fine-tuned/)

    const input = join(places, 'item.txt')
    writeFileSync(input, 'The otter sleeps under the lantern. The violin is older than the canal.')
    const question = ['--query', 'Who sleeps?', '--input', input, '--json']
    const refined = await run('refine', ...encoder, ...adapter, ...question)
    expect(refined.code).toBe(0)
    expect(JSON.parse(refined.stdout)).toHaveLength(1)

    const exported = join(places, 'export')
    const done = await run('export', ...encoder, ...adapter, '--output', exported, '--bundle', '--json')
    expect(done.code).toBe(0)
    expect(JSON.parse(done.stdout)).toMatchObject({ merged: 0, beside: 12 })
    expect((await run('refine', '--encoder', exported, ...question)).code).toBe(0)

    // the quantised graph is found in the folder, since it is the query encoder that was trained with
    const plain = join(places, 'plain')
    expect((await run('export', ...encoder, ...adapter, '--output', plain)).code).toBe(0)
    const query = ['--query-encoder', folder, '--pooling', 'mean', '--normalize']
    expect((await run('refine', '--encoder', plain, ...query, ...question)).code).toBe(0)

    // the other graph of the folder is another encoder
    const other = encoder.map((word) => (word === 'model_quantized.onnx' ? 'model.onnx' : word))
    const wrong = await run('export', ...other, ...adapter, '--output', join(places, 'wrong'))
    expect(wrong.code).toBe(1)
    expect(wrong.stderr).toMatch(
      /was trained over the encoder.*two ONNX graphs of one folder \(--onnx-file, in a program/,
    )
  })

  it('says which targets there are when one names none, before anything is written', async () => {
    const { dataset, preferences } = await createSetup(temporaryFolder(), 12)
    const output = join(temporaryFolder(), 'run')
    const data = ['--dataset', dataset, '--preferences', preferences, '--output', output, '--targets', 'q_proj']
    const { code, stderr } = await run('train', '--encoder', join(forms, 'tiny-bert-fused'), ...data)
    expect(code).toBe(1)
    expect(stderr).toMatch(/"q_proj" names no linear module.*encoder\.layer\.\*\.attention\.self\.query/)
    expect(existsSync(join(output, 'config.json'))).toBe(false)
  })
})

describe('canopy export of an encoder that nobody trained', () => {
  it('takes how many numbers of an embedding count, and writes it down for whoever loads the folder', async () => {
    const output = join(temporaryFolder(), 'exported')
    const encoder = join(forms, '..', 'qwen3')
    const stated = ['--dimensions', '16', '--query-instruction', 'Find "it".']
    const refused = await run('export', '--encoder', encoder, '--output', output, ...stated)
    expect(refused.stderr).toMatch(/takes no instructions/)
    const { code } = await run('export', '--encoder', encoder, '--output', output, ...stated.slice(0, 2))
    expect(code).toBe(0)
    const read = (name: string): object => JSON.parse(readFileSync(join(output, name), 'utf8'))
    expect(read('canopy.json')).toMatchObject({ dimensions: 16 })
    expect(read('config_sentence_transformers.json')).toMatchObject({ truncate_dim: 16 })
  })
})
