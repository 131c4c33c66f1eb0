import { createHash } from 'node:crypto'
import { cp, mkdtemp, readdir, readFile, rm, truncate, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { distill, resolveDistillSettings } from '../../src/distill/index.ts'
import { openEmbedder, readEncoder } from '../../src/encoder/index.ts'
import { openSafetensors } from '../../src/onnx/index.ts'
import { InputError } from '../../src/support/errors.ts'
import { exists } from '../../src/support/files.ts'
import { tinyBert } from '../encoder/fixtures.ts'
import { canopy, type Finished } from '../support/cli.ts'

const sample = resolve(import.meta.dirname, '../../datasets/sample')
const subjects = ['keeper', 'bridge', 'tower', 'river', 'garden', 'orchard', 'ferry', 'market']
const said = Array.from({ length: 200 }, (_, i) => {
  const [a, b] = [subjects[i % 8], subjects[(i * 3 + 1) % 8]]
  return `The ${a} of place ${i} lies near the ${b}. It was built in ${1700 + i} by people of the ${b}.`
}).join('\n')

const SETTINGS = `
hidden: 8
layers: 1
heads: 2
intermediate: 12
vocabulary: 250
maxLength: 40
sentences: 300
passages: 60
nodes: 60
questions: 60
heldOutShare: 0.1
heldOutTexts: 20
epochs: 1
batchTokens: 800
runTokens: 400
evaluateEvery: 4
checkpointEvery: 3
threads: 1
`

interface World {
  folder: string
  text: string
  config: string
}

async function world(folder: string): Promise<World> {
  const [text, config] = [join(folder, 'said.txt'), join(folder, 'settings.yaml')]
  await writeFile(text, said)
  await writeFile(config, SETTINGS)
  return { folder, text, config }
}

function command({ text, config }: Omit<World, 'folder'>, output: string, ...more: string[]): string[] {
  const sources = ['--text', text, '--dataset', `${sample}:train`, '--exclude', `${sample}:dev`]
  return ['distill', '--teacher', tinyBert('mean'), ...sources, '--config', config, '--output', output, ...more]
}

const run = (args: string[], shell?: string): Promise<Finished> =>
  canopy(args, shell === undefined ? {} : { shell }).finished

/** What `command` asks for, to be distilled in this process. */
const inProcess = async ({ text, config }: World) => ({
  ...{ teacher: await readEncoder(tinyBert('mean')), files: [text], command: ['canopy'] },
  datasets: [{ folder: sample, split: 'train' }],
  exclude: [{ folder: sample, split: 'dev' }],
  settings: await resolveDistillSettings(config),
})

const weightsOf = async (output: string): Promise<string> =>
  createHash('sha256')
    .update(await readFile(join(output, 'model', 'model.safetensors')))
    .digest('hex')

describe('canopy distill', { timeout: 240_000 }, () => {
  let here: World
  let whole: string
  let first: Finished
  beforeAll(async () => {
    here = await world(await mkdtemp(join(tmpdir(), 'canopy-test-')))
    whole = join(here.folder, 'whole')
    first = await run(command(here, whole))
  }, 240_000)
  afterAll(() => rm(here.folder, { recursive: true, force: true }))

  it('makes an encoder in float16 with a model card that says what was done, and loads as any other', async () => {
    expect(first.stderr).not.toContain('error')
    expect(first.code).toBe(0)
    expect(first.stdout).toMatch(/Mean cosine to the teacher on held-out texts \(at most 0\.\d{3} at this width\)/)
    const model = join(whole, 'model')
    const profile = await readEncoder(model)
    expect(profile).toMatchObject({
      architecture: 'bert',
      dimension: 8,
      maxLength: 40,
      normalize: true,
      pooling: 'mean',
    })
    const file = await openSafetensors(join(model, 'model.safetensors'))
    expect(new Set([...file.tensors.values()].map(({ dtype }) => dtype))).toEqual(new Set(['F16']))
    const embedder = await openEmbedder(profile, { threads: 1 })
    const { embeddings } = await embedder.embedTexts(['The keeper of the tower.'], 'node')
    await embedder.close()
    expect(Math.hypot(...embeddings)).toBeCloseTo(1, 5)
    const axes = await (await openSafetensors(join(whole, 'axes.safetensors'))).readTensor('axes')
    expect(axes).toHaveLength(8 * 32)

    const card = await readFile(join(model, 'README.md'), 'utf8')
    const { measured, steps } = JSON.parse(await readFile(join(whole, 'result.json'), 'utf8'))
    expect(card).toContain(`| all | ${measured.all.texts} | ${measured.all.mean.toFixed(3)} |`)
    expect(card).toContain(`\n${steps} steps of 800 tokens`)
    expect(card).toContain('`sample:dev`')
    expect(card).toContain(createHash('sha256').update(said).digest('hex'))
    expect(card).not.toContain(here.folder)
    expect(card).not.toContain(sample)
    expect(card).not.toMatch(/NaN|undefined|null/)
    expect(await exists(join(whole, 'unmeasured'))).toBe(false)
  })

  it('learns: held-out texts come nearer to the teacher, and dev is nowhere in what was read', async () => {
    const metrics = (await readFile(join(whole, 'metrics.jsonl'), 'utf8')).trimEnd().split('\n')
    const held = metrics
      .map((line) => JSON.parse(line).held_out_cosine as number | undefined)
      .filter((x) => x !== undefined)
    expect(held.at(-1)).toBeGreaterThan(held[0]!)
    const questions = (await readFile(join(sample, 'questions.jsonl'), 'utf8'))
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line))
    const dev = questions.filter(({ split }) => split === 'dev').map(({ question }) => question as string)
    const texts =
      (await readFile(join(whole, 'texts', 'training.jsonl'), 'utf8')) +
      (await readFile(join(whole, 'texts', 'held-out.jsonl'), 'utf8'))
    expect(dev.filter((question) => texts.includes(JSON.stringify(question)))).toEqual([])
  })

  it('run again says that it is finished and changes nothing', async () => {
    const before = await readdir(whole, { recursive: true })
    const card = await readFile(join(whole, 'model', 'README.md'), 'utf8')
    const again = await run(command(here, whole))
    expect(again).toMatchObject({ code: 0, stderr: '' })
    expect(again.stdout).toContain('The distillation is finished; nothing was done.')
    expect(await readdir(whole, { recursive: true })).toEqual(before)
    expect(await readFile(join(whole, 'model', 'README.md'), 'utf8')).toBe(card)
  })

  it('killed at any time and run again ends with the same bytes', async () => {
    const output = join(here.folder, 'killed')
    const expected = await weightsOf(whole)
    // what there is when it is killed: each stage's file, then steps of the training
    const stages = ['vocabulary.txt', 'teacher-held-out.f32', 'checkpoint.safetensors', 'unmeasured']
    let kills = 0
    for (const stage of stages) {
      const { process: child, finished } = canopy(command(here, output))
      while (child.exitCode === null && !(await exists(join(output, stage)))) await sleep(2)
      if (child.kill('SIGKILL')) kills++
      await finished
    }
    expect(kills).toBeGreaterThan(2)
    expect((await run(command(here, output))).code).toBe(0)
    expect(await weightsOf(output)).toBe(expected)
    const steps = (await readFile(join(output, 'metrics.jsonl'), 'utf8'))
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line).step)
    expect(steps).toEqual(steps.map((_, i) => i + 1))
  })

  it('stopped by Ctrl-C exits with 130 and goes on from there', async () => {
    const output = join(here.folder, 'stopped')
    const { process: child, finished } = canopy(command(here, output))
    while (child.exitCode === null && !(await exists(join(output, 'metrics.jsonl')))) await sleep(2)
    child.kill('SIGINT')
    const { code, stderr } = await finished
    expect(code).toBe(130)
    expect(stderr).toContain('SIGINT: finishing what is being computed; the same command goes on from there.')
    expect((await run(command(here, output))).code).toBe(0)
    expect(await weightsOf(output)).toBe(await weightsOf(whole))
  })

  it('refuses other settings, texts and splits in the same folder, and names them', async () => {
    const other = join(here.folder, 'other.txt')
    await writeFile(other, `${said}\nOne more line about a garden.`)
    const args = command(here, whole, '--epochs', '2')
    const { code, stderr } = await run(args)
    expect(stderr).toContain('differs in "epochs" (1, now 2). Take another --output')
    expect(code).toBe(1)
    const options = await inProcess(here)
    const refused = (given: Partial<typeof options & { output: string }>, message: string) =>
      expect(distill({ ...options, output: whole, ...given })).rejects.toThrow(message)
    await refused({ files: [other] }, 'differs in the texts.')
    await refused(
      { datasets: [...options.datasets, { folder: sample, split: 'dev' }] },
      'differs in the splits to learn from',
    )
    await refused({ exclude: [{ folder: sample, split: 'media-dev' }] }, 'differs in the splits excluded')
    const output = join(here.folder, 'nolog')
    await cp(whole, output, { recursive: true })
    await rm(join(output, 'distillation.json'))
    await refused({ output }, 'holds parts of a distillation, but not its distillation.json')
  })

  it('says which file of a stage is damaged', async () => {
    const output = join(here.folder, 'damaged')
    const damage: [string, RegExp][] = [
      ['student-tokens.bin', /student-tokens\.bin: The file of tokens is damaged/],
      ['teacher-training.f32', /teacher-training\.f32: The file of the teacher's embeddings is damaged/],
      ['teacher-held-out.f32', /teacher-held-out\.f32: The file of the teacher's embeddings is damaged/],
      ['axes.safetensors', /axes\.safetensors: the file is cut short|axes\.safetensors: /],
      ['checkpoint.safetensors', /checkpoint\.safetensors: /],
      ['texts/training.jsonl', /training\.jsonl/],
      ['distillation.json', /distillation\.json: The log of the distillation is damaged/],
    ]
    const options = await inProcess(here)
    for (const [name, message] of damage) {
      await rm(output, { recursive: true, force: true })
      await cp(whole, output, { recursive: true })
      await rm(join(output, 'result.json'))
      await truncate(join(output, name), 21)
      const error = await distill({ ...options, output }).catch((e: unknown) => e)
      expect(error).toBeInstanceOf(InputError)
      expect((error as Error).message).toMatch(message)
    }
  })

  it('takes texts and teacher from another distillation, for another size with the same result as by itself', async () => {
    const deeper = ['--layers', '2']
    const [taken, alone] = [join(here.folder, 'taken'), join(here.folder, 'alone')]
    expect((await run(command(here, taken, ...deeper, '--from', whole))).code).toBe(0)
    const options = await inProcess(here)
    await distill({ ...options, output: alone, settings: { ...options.settings, layers: 2 } })
    expect(await weightsOf(taken)).toBe(await weightsOf(alone))
    const output = join(here.folder, 'untaken')
    const seeded = { ...options, output, settings: { ...options.settings, seed: 2 } }
    await expect(distill({ ...seeded, from: whole })).rejects.toThrow('differs in "seed" (1, now 2). Leave --from out.')
    await expect(distill({ ...seeded, from: here.folder })).rejects.toThrow(
      'There is no distillation to take texts from',
    )
    expect(await exists(output)).toBe(false)
  })

  it('refuses what cannot work before anything is computed or written', async () => {
    const output = join(here.folder, 'refused')
    const refused = async (args: string[], message: string, status: number) => {
      const { code, stderr } = await run(args)
      expect(stderr).toContain(message)
      expect(code).toBe(status)
      expect(await exists(output)).toBe(false)
    }
    const wide = 'A student of width 64 ("hidden") cannot learn embeddings of 32 numbers'
    await refused(command(here, output, '--hidden', '64'), wide, 1)
    await refused(['distill', '--teacher', tinyBert('mean'), '--output', output], 'There is nothing to learn from', 2)
    await expect(resolveDistillSettings(here.config, { heads: 3 })).rejects.toThrow(
      '"heads" (3) must divide "hidden" (8)',
    )
    const binary = join(here.folder, 'binary.txt')
    await writeFile(binary, Buffer.from([0x50, 0x4b, 3, 4, 0, 0, 0, 8]))
    const options = await inProcess(here)
    const faults: [string, string][] = [
      [join(here.folder, 'none.txt'), 'none.txt: cannot read the file: no such file'],
      [join(sample, 'media'), 'it is a folder'],
      [binary, 'binary.txt: The file holds NUL characters'],
    ]
    for (const [file, message] of faults) {
      await expect(distill({ ...options, files: [file], output })).rejects.toThrow(message)
      expect(await exists(output)).toBe(false)
    }
    await expect(distill({ ...options, output: here.text })).rejects.toThrow(/said\.txt: cannot lock the run/)
  })

  it('reports a full disk, and goes on when there is room', async () => {
    const output = join(here.folder, 'full')
    const { code, stderr } = await run(command(here, output), 'ulimit -f 20; exec "$@"')
    expect(code).toBe(1)
    expect(stderr).toMatch(/cannot write|EFBIG/)
    expect(stderr).not.toContain('should not have')
    expect((await run(command(here, output))).code).toBe(0)
    expect(await weightsOf(output)).toBe(await weightsOf(whole))
  })

  it('learns from an ONNX graph, and of a teacher with a prompt the card says so', async () => {
    const output = join(here.folder, 'onnx')
    const onnx = resolve(import.meta.dirname, '../fixtures/onnx/tiny-bert-plain')
    const teacher = join(here.folder, 'prompted')
    await cp(onnx, teacher, { recursive: true })
    await writeFile(
      join(teacher, 'config_sentence_transformers.json'),
      JSON.stringify({ prompts: { query: 'query: ', document: 'passage: ' }, default_prompt_name: null }),
    )
    const args = command(here, output)
    args[args.indexOf('--teacher') + 1] = teacher
    const { code, stderr } = await run(args)
    expect(stderr).not.toContain('error')
    expect(code).toBe(0)
    expect(await readFile(join(output, 'model', 'README.md'), 'utf8')).toContain('its prompt for nodes, `passage: `')
  })
})
