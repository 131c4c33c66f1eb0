import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { InputError } from '../../src/support/errors.ts'
import { resolveSettings, statedSettings } from '../../src/train/settings.ts'

let folder: string
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'canopy-settings-'))
})
afterAll(async () => {
  await rm(folder, { recursive: true, force: true })
})
async function file(name: string, content: string): Promise<string> {
  const path = join(folder, name)
  await writeFile(path, content)
  return path
}

describe('settings', () => {
  it('have a default each', async () => {
    const settings = await resolveSettings(undefined)
    expect(settings).toMatchObject({ loss: 'logistic', tau: 0.05, validationShare: 0.15, seed: 1, title: true })
    expect(settings.kindWeights).toEqual({
      'fully-gold': 1,
      'gold-child': 1,
      'non-gold-child': 1,
      'sibling-separation': 1,
    })
    expect(Object.values(settings)).not.toContain(undefined)
  })

  it('come from a YAML or JSON file, and flags win over it', async () => {
    const yaml = await file('a.yaml', 'tau: 0.1\nrank: 4\nkindWeights:\n  gold-child: 2\ntargets: [query, value]\n')
    const settings = await resolveSettings(yaml, { rank: 8, seed: undefined })
    expect(settings).toMatchObject({ tau: 0.1, rank: 8, seed: 1, targets: ['query', 'value'] })
    expect(settings.kindWeights).toMatchObject({ 'gold-child': 2, 'fully-gold': 1 })
    expect(await resolveSettings(await file('b.json', '{"title": false}'))).toMatchObject({ title: false })
    expect(await resolveSettings(await file('empty.yaml', '# nothing\n'))).toEqual(await resolveSettings(undefined))
  })

  it('let --epochs win over the steps of a file', async () => {
    const steps = await file('steps.yaml', 'steps: 100\n')
    expect(await resolveSettings(steps)).toMatchObject({ steps: 100 })
    expect(await resolveSettings(steps, { epochs: 2 })).toMatchObject({ steps: null, epochs: 2 })
  })

  it('take the instruction of one side from a flag and that of the other from the file', async () => {
    const both = await file('instructions.yaml', 'instructions: {query: Ask., node: Show.}\ndimensions: 64\n')
    const settings = await resolveSettings(both, { instructions: { node: 'Tell.' } })
    expect(settings.instructions).toEqual({ query: 'Ask.', node: 'Tell.' })
    expect(statedSettings(settings)).toEqual({ instructions: { query: 'Ask.', node: 'Tell.' }, dimensions: 64 })
    expect(statedSettings(await resolveSettings(undefined))).toEqual({ instructions: {} })
  })

  it('of Qwen3-VL-Embedding-2B are those of its makers where these say any', async () => {
    const settings = await resolveSettings(join(import.meta.dirname, '../../configs/qwen3-vl-2b.yaml'))
    expect(settings).toMatchObject({
      ...{ rank: 32, alpha: 32, dimensions: null, sharePrefixes: true },
      targets: ['q_proj', 'k_proj', 'v_proj', 'gate_proj', 'up_proj', 'down_proj'],
      instructions: { query: "Represent the user's input.", node: "Represent the user's input." },
    })
  })

  it('of Qwen3-Embedding give no instructions, which that encoder does not take', async () => {
    const settings = await resolveSettings(join(import.meta.dirname, '../../configs/qwen3-embedding.yaml'))
    expect(settings).toMatchObject({ rank: 32, alpha: 32, tokenBudget: 'auto', learningRate: 5e-5 })
    expect(statedSettings(settings)).toEqual({ instructions: {} })
  })

  it('that are wrong are named, with their file', async () => {
    const wrong = async (name: string, content: string): Promise<string> => {
      const path = await file(name, content)
      const error = await resolveSettings(path).catch((e: unknown) => e)
      expect(error).toBeInstanceOf(InputError)
      expect((error as InputError).file).toBe(path)
      return (error as InputError).message
    }
    expect(await wrong('u.yaml', 'learning_rate: 1\nrang: 2\n')).toMatch(
      /no setting is called "learning_rate" \(did you mean "learningRate"\?\), "rang"\./,
    )
    expect(await wrong('s.yaml', 'kindWeights: {goldChild: 1}\n')).toMatch(/did you mean "kindWeights\.gold-child"/)
    expect(await wrong('k.yaml', 'kindWeights: {golden: 1}\n')).toMatch(/"kindWeights\.golden"/)
    const none = '{fully-gold: 0, gold-child: 0, non-gold-child: 0, sibling-separation: 0}'
    expect(await wrong('n.yaml', `kindWeights: ${none}\n`)).toMatch(/"kindWeights": one of them is above 0/)
    expect(await wrong('t.yaml', 'tau: 0\nloss: cosine\n')).toMatch(/"loss".*"tau"|"tau".*"loss"/)
    expect(await wrong('l.yaml', '- 1\n')).toMatch(/settings by name/)
    expect(await wrong('y.yaml', 'tau: [1\n')).toMatch(/Not a valid config file/)
    await expect(resolveSettings(join(folder, 'absent.yaml'))).rejects.toThrow(/absent\.yaml.*cannot be read/)
    await expect(resolveSettings(undefined, { batchSize: 0.5 })).rejects.toThrow(/"batchSize"/)
  })
})
