import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { canopy } from '../support/cli.ts'

const fixtures = join(import.meta.dirname, '../fixtures')
const folder = mkdtempSync(join(tmpdir(), 'canopy-plan-'))
afterAll(() => rmSync(folder, { recursive: true }))

const run = (...args: string[]) => canopy(['plan', ...args]).finished

const written = (name: string, text: string): string => {
  const file = join(folder, name)
  writeFileSync(file, text)
  return file
}

describe('canopy plan', () => {
  it('plans from a folder, without reading its weights, what fits and with which flags', async () => {
    const { code, stdout } = await run('--encoder', join(fixtures, 'qwen3-vl'), '--memory', '1', '--gpu', '2')
    expect(code).toBe(0)
    expect(stdout).toContain('LoRA of rank 16 on 24 linear maps')
    for (const phase of [
      'pictures and frames',
      'encoding',
      'one training step',
      'a training run',
      'with items over the budget',
    ])
      expect(stdout).toMatch(new RegExp(`\\| ${phase} \\|( \\d+\\.\\d\\d \\|){6}`))
    expect(stdout).toMatch(/Training with a token budget of 4096 (fits|does not fit) into 1\.00 GiB/)
    expect(stdout).toMatch(/Flags of "canopy train": --rank 16 --token-budget \d+ --device cuda --precision bf16/)
    expect(stdout).toContain('Visual features in the cache on disk: 1 KiB a visual token')
  })

  it('prints the same numbers as JSON, from a configuration alone and for a model that no file here holds', async () => {
    const config = {
      ...{ model_type: 'qwen3', dtype: 'bfloat16', vocab_size: 151669, hidden_size: 1024, intermediate_size: 3072 },
      ...{ num_hidden_layers: 28, num_attention_heads: 16, num_key_value_heads: 8, head_dim: 128 },
    }
    const file = written('qwen3.json', JSON.stringify(config))
    const args = ['--token-budget', '1024', '--node-tokens', '256', '--memory', '16', '--json']
    const { code, stdout } = await run('--encoder', file, ...args)
    expect(code).toBe(0)
    const plan = JSON.parse(stdout)
    // a table of 151 669 x 1 024, and per layer 2 x 1 024 x (2 048 + 1 024) + 3 x 1 024 x 3 072 and the norms, and the last norm
    const layer = 2 * 1024 * (2048 + 1024) + 3 * 1024 * 3072 + 2 * 128 + 2 * 1024
    expect(plan.parameters).toMatchObject({ checkpoint: 151669 * 1024 + 28 * layer + 1024, vision: 0 })
    expect(plan).toMatchObject({
      architecture: 'qwen3',
      dtype: 'bfloat16',
      modules: 168,
      tokenBudget: 1024,
      nodeTokens: 256,
    })
    const [{ name, fits, largest, phases }] = plan.places
    expect([name, fits, plan.places.length]).toEqual(['CPU', true, 1])
    expect(largest.tokenBudget).toBeGreaterThan(1024)
    const [encoding, step] = phases
    // weights but the table stay as they are, 2 bytes a number
    expect(encoding.stored / (2 * (28 * layer + 1024))).toBeCloseTo(1, 3)
    expect(step.activations).toBeGreaterThan(5 * encoding.activations)
  })

  it('plans the longest node of a video, too, which an encoder of text has none of', async () => {
    const memory = ['--memory', '16', '--json']
    const placesOf = async (model: string, ...more: string[]) =>
      JSON.parse((await run('--encoder', join(fixtures, model), ...memory, ...more)).stdout).places
    const [{ longestVideo, phases }] = await placesOf('qwen3-vl')
    const { text_config } = JSON.parse(readFileSync(join(fixtures, 'qwen3-vl/config.json'), 'utf8'))
    expect(longestVideo).toMatchObject({ nodeTokens: Math.min(8192, text_config.max_position_embeddings), fits: true })
    expect(longestVideo.total).toBeGreaterThan(phases.at(-1).total)
    const [asked] = await placesOf('qwen3-vl', '--node-tokens', String(longestVideo.nodeTokens))
    expect(asked.phases.at(-1).total).toBe(longestVideo.total)
    expect((await placesOf('qwen3'))[0]).not.toHaveProperty('longestVideo')
  })

  it('says whether the memory is what is free here', async () => {
    const encoder = ['--encoder', join(fixtures, 'qwen3-vl')]
    const { stdout } = await run(...encoder)
    expect(stdout).toMatch(/into \d+\.\d\d GiB \(what is free here\)/)
    expect(stdout).toMatch(/The longest node of a video, \d+ tokens at most, makes that run take \d+\.\d\d GiB, which/)
    expect((await run(...encoder, '--memory', '4')).stdout).not.toContain('free here')
  })

  it('says so where nothing fits, which is no failure', async () => {
    const { code, stdout } = await run('--encoder', join(fixtures, 'tiny-bert/mean'), '--memory', '0.1')
    expect(code).toBe(0)
    expect(stdout).toContain(
      'Training on nodes of 64 tokens does not fit into 0.10 GiB, however small the token budget.',
    )
    expect(stdout).not.toContain('Flags of')
  })

  it.each([
    ['a folder without config.json', () => folder, /the configuration cannot be read \(ENOENT\)/],
    ['nothing there', () => join(folder, 'missing'), /there is no folder of that name, and no Hugging Face id/],
    ['an ONNX folder', () => join(fixtures, 'onnx/tiny-bert-plain'), /This is an ONNX folder.*a checkpoint/s],
    ['no JSON', () => written('broken.json', '{'), /broken\.json: this is no JSON/],
    ['no object', () => written('list.json', '[]'), /a configuration is a JSON object/],
    [
      'another architecture',
      () => written('t5.json', '{"model_type":"t5"}'),
      /"model_type" is "t5".*bert, qwen3, qwen3_vl/,
    ],
    ['a type that weights cannot have', () => written('int8.json', '{"model_type":"bert","dtype":"int8"}'), /--dtype/],
  ])('refuses %s', async (_, path, message) => {
    const { code, stdout, stderr } = await run('--encoder', path())
    expect([code, stdout]).toEqual([1, ''])
    expect(stderr).toMatch(message)
  })

  it('gives the flags of "canopy train" for the run that was planned', async () => {
    const targets = ['--targets', 'q_proj', 'layers\\.0\\..*v_proj']
    const { stdout } = await run('--encoder', join(fixtures, 'qwen3'), '--rank', '4', ...targets, '--memory', '4')
    expect(stdout).toContain("--rank 4 --targets q_proj 'layers\\.0\\..*v_proj' --token-budget 4096\n")
  })

  it('plans no nodes of more tokens than the encoder reads', async () => {
    const args = ['--encoder', join(fixtures, 'tiny-bert/mean'), '--memory', '64']
    const { max_position_embeddings: most } = JSON.parse(readFileSync(join(args[1]!, 'config.json'), 'utf8'))
    const { places, nodeTokens } = JSON.parse((await run(...args, '--json')).stdout)
    expect([nodeTokens, places[0].largest.nodeTokens]).toEqual([most, most])
    const { code, stderr } = await run(...args, '--node-tokens', String(most + 1))
    expect(code).toBe(1)
    expect(stderr).toContain(`--node-tokens is ${most + 1}, but an encoder of this configuration reads at most ${most}`)
  })

  it('counts a node over the budget whole: it is computed at once', async () => {
    const args = ['--encoder', join(fixtures, 'qwen3'), '--node-tokens', '2048', '--memory', '8', '--json']
    const [small, large] = await Promise.all(
      ['64', '2048'].map(async (budget) => JSON.parse((await run(...args, '--token-budget', budget)).stdout)),
    )
    expect(small.places[0].phases).toEqual(large.places[0].phases)
  })

  it('has an example, and refuses a budget and a memory that are none', async () => {
    expect((await run('--help')).stdout).toContain('$ canopy plan --encoder')
    expect((await run('--encoder', folder, '--token-budget', '1')).code).toBe(2)
    expect((await run('--encoder', folder, '--gpu', '0')).stderr).toContain('A number above 0 was expected.')
  })
})
