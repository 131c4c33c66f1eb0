import { execFile } from 'node:child_process'
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import {
  canopySettings,
  createRandomBert,
  defaultTargets,
  initialLora,
  linearModules,
  readEncoder,
  selectTargets,
} from '../src/encoder/index.ts'
import { exportEncoder } from '../src/export/index.ts'

const root = resolve(import.meta.dirname, '..')
const example = join(root, 'examples', 'refine.mjs')
const passages = join(root, 'examples', 'passages.mjs')
const node = async (args: string[], cwd = root): Promise<string> =>
  (await promisify(execFile)(process.execPath, args, { cwd })).stdout

let folder: string
beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'canopy-examples-'))
  const bert = join(folder, 'bert')
  const sizes = { hidden: 16, layers: 1, heads: 2, maxLength: 64 }
  await createRandomBert(bert, {
    seed: 1,
    vocabularyFrom: [example, passages].map((file) => readFileSync(file, 'utf8')),
    ...sizes,
  })
  const encoder = await readEncoder(bert)
  const targets = selectTargets(linearModules(encoder), defaultTargets(encoder)).map((module) => ({
    ...{ ...module, rank: 2, alpha: 4 },
  }))
  await exportEncoder({
    encoder,
    adapter: { targets, tensors: initialLora(targets, '1'), baseFingerprint: encoder.fingerprint },
    queryEncoder: encoder,
    settings: canopySettings(encoder, encoder, { title: true, tableFormat: 'markdown', branching: 2 }),
    output: join(folder, 'export'),
    ...{ version: '0', threads: 1, bundle: true },
  })
})
afterAll(() => rmSync(folder, { recursive: true, force: true }))

describe('examples/refine.mjs', () => {
  it('prints what an exported encoder keeps of its passage, and ends', async () => {
    const lines = (await node([example, join(folder, 'export')])).trim().split('\n')
    expect(lines.length).toBeGreaterThan(0)
    const program = readFileSync(example, 'utf8').replace(/' \+\n *'/, '')
    let last = 0
    for (const line of lines) {
      const [, from, to, text] = /^\[(\d), (\d)\) {2}-?[01]\.\d\d {2}(\S.*)$/.exec(line) ?? []
      expect(Number(from), line).toBeGreaterThanOrEqual(last)
      expect(Number(to)).toBeGreaterThan(Number(from))
      expect(program).toContain(text)
      last = Number(to)
    }
    expect(last).toBeLessThanOrEqual(4)
  })

  it('runs in a project that has the package installed', async () => {
    const project = join(folder, 'project')
    mkdirSync(join(project, 'node_modules'), { recursive: true })
    mkdirSync(join(project, 'runs', 'quickstart'), { recursive: true })
    writeFileSync(join(project, 'package.json'), '{"private": true}')
    symlinkSync(root, join(project, 'node_modules', 'canopy-encoder'))
    cpSync(join(folder, 'export'), join(project, 'runs', 'quickstart', 'export'), { recursive: true })
    cpSync(example, join(project, 'refine.mjs'))
    expect(await node(['refine.mjs'], project)).toBe(await node([example, join(folder, 'export')]))
  })

  it('says in a sentence where no encoder is', async () => {
    const nowhere = join(folder, 'nowhere')
    const { stderr } = await node([example, nowhere]).then(
      () => expect.unreachable('it ran without an encoder'),
      (error: { stderr: string }) => error,
    )
    expect(stderr).toMatch(/InputError: .*nowhere.*(no folder|no such)/i)
  })
})

describe('the examples of RAG frameworks', () => {
  it.each(['langchain.mjs', 'llamaindex.mjs'])(
    '%s gives the reader a part of every passage, in order',
    async (name) => {
      const said = await node([join(root, 'examples', name), join(folder, 'export')])
      const { passages: found, question } = (await import(pathToFileURL(passages).href)) as {
        passages: { title: string; text: string }[]
        question: string
      }
      const given =
        name === 'langchain.mjs'
          ? /passages\.\n\n([\s\S]*)\n\nQuestion: (.*)\n$/.exec(said)
          : [said, said.trim(), question]
      expect(given?.[2]).toBe(question)
      const blocks = (given?.[1] ?? '').split(name === 'langchain.mjs' ? '\n\n' : /\n\n(?=title:)/)
      expect(blocks).toHaveLength(found.length)
      let left = 0
      for (const [i, { title, text }] of found.entries()) {
        const block = blocks[i] as string
        const heading = name === 'langchain.mjs' ? `${title}: ` : `title: ${title}\n\n`
        expect(block.startsWith(heading), block).toBe(true)
        for (const part of block.slice(heading.length).split(' … ')) expect(text).toContain(part)
        left += block.length - heading.length
      }
      // a random encoder drops something of something
      expect(left).toBeLessThan(found.reduce((sum, { text }) => sum + text.length, 0))
    },
  )

  it('say in a sentence where no encoder is', async () => {
    const { stderr } = await node([join(root, 'examples', 'langchain.mjs'), join(folder, 'nowhere')]).then(
      () => expect.unreachable('it ran without an encoder'),
      (error: { stderr: string }) => error,
    )
    expect(stderr).toMatch(/InputError: .*nowhere.*(no folder|no such)/i)
  })
})
