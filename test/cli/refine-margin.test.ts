import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { mkdir } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { stripVTControlCharacters } from 'node:util'
import { Command } from 'commander'
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest'
import { register } from '../../src/cli/refine.ts'
import { createRandomBert } from '../../src/encoder/bert/random.ts'
import {
  CANOPY_FILE,
  canopySettings,
  defaultTargets,
  initialLora,
  linearModules,
  type RefinedItem,
  readEncoder,
  selectTargets,
  writeAdapter,
} from '../../src/encoder/index.ts'
import { buildTree, preOrder } from '../../src/hierarchy/index.ts'
import { refine } from '../../src/refine/index.ts'

const folder = mkdtempSync(join(tmpdir(), 'canopy-refine-margin-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))
const encoder = join(folder, 'bert')
const adapter = join(folder, 'adapter')
const passage = join(folder, 'passage.txt')
const sentences = ['river', 'castle', 'engine', 'orchard', 'library', 'harbour', 'glacier', 'violin'].map(
  (noun, i) => `The ${noun} number ${i} was described in an old chronicle.`,
)

async function canopyRefine(...more: string[]): Promise<string> {
  let stdout = ''
  vi.spyOn(process.stdout, 'write').mockImplementation((chunk) => {
    stdout += String(chunk)
    return true
  })
  vi.spyOn(process.stderr, 'write').mockImplementation(() => true)
  try {
    const program = new Command('canopy').exitOverride().configureOutput({ writeErr: () => {} })
    register(program)
    for (const command of program.commands) command.exitOverride().configureOutput({ writeErr: () => {} })
    const pair = ['--encoder', encoder, '--adapter', adapter, '--threads', '1']
    const asked = ['--query', 'Which castle stands there?', '--input', passage]
    await program.parseAsync(['node', 'canopy', 'refine', ...pair, ...asked, ...more])
    return stripVTControlCharacters(stdout)
  } finally {
    vi.restoreAllMocks()
  }
}
const refined = async (...more: string[]): Promise<RefinedItem> => JSON.parse(await canopyRefine(...more, '--json'))[0]
const ranges = (item: RefinedItem): [number, number][] => item.kept.map(({ from, to }) => [from, to])

describe('canopy refine with a margin', () => {
  const withMargin = (margin: unknown): void => {
    const file = join(adapter, CANOPY_FILE)
    writeFileSync(file, JSON.stringify({ ...JSON.parse(readFileSync(file, 'utf8')), margin }))
  }
  beforeAll(async () => {
    await createRandomBert(encoder, {
      ...{ seed: 5, vocabularyFrom: sentences, hidden: 32, layers: 1, heads: 2, intermediate: 64, maxLength: 128 },
    })
    writeFileSync(passage, sentences.join(' '))
    const profile = await readEncoder(encoder)
    const targets = selectTargets(linearModules(profile), defaultTargets(profile)).map((module) => ({
      ...{ ...module, rank: 2, alpha: 2 },
    }))
    await mkdir(adapter, { recursive: true })
    await writeAdapter(
      adapter,
      { targets, tensors: initialLora(targets, '1'), baseFingerprint: profile.fingerprint },
      profile,
    )
    const settings = canopySettings(profile, profile, { title: false, tableFormat: 'markdown', branching: 2 })
    writeFileSync(join(adapter, CANOPY_FILE), JSON.stringify(settings))
  })

  it('keeps what the rule with that margin keeps; that of canopy.json unless another is stated', async () => {
    const rule = await refined()
    const root = buildTree(rule.leaves)
    const nodes = preOrder(root)
    const score = (node: (typeof nodes)[number]): number => rule.nodes[nodes.indexOf(node)]!.score
    const by = (margin: number) => refine(root, score, { margin }).map(({ from, to }) => [from, to])
    expect(ranges(rule)).toEqual(by(0))
    expect(by(0)).not.toEqual(by(2))
    expect(ranges(await refined('--margin', '2'))).toEqual(by(2))
    withMargin(2)
    expect(ranges(await refined())).toEqual(by(2))
    expect(ranges(await refined('--margin', '0'))).toEqual(by(0))
    const shown = await canopyRefine()
    expect(shown).toContain('(margin)')
    expect(shown).toMatch(/^~ The /m)
    expect(shown).not.toMatch(/^- /m)
    const plain = await canopyRefine('--margin', '0')
    expect(plain).not.toMatch(/\(margin\)|^~ /m)
    expect(plain).toMatch(/^- The /m)
  })

  it('refuses one that is none, in a flag or in canopy.json', async () => {
    await expect(canopyRefine('--margin', '-0.1')).rejects.toThrow('0 or more')
    await expect(canopyRefine('--margin', 'much')).rejects.toThrow('A number was expected')
    for (const margin of [-1, 'much', null]) {
      withMargin(margin)
      await expect(canopyRefine()).rejects.toThrow(/canopy\.json: .*margin/)
    }
    withMargin(undefined)
    expect((await refined()).kept.length).toBeGreaterThan(0)
  })
})
