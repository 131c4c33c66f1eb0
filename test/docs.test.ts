import { execFile } from 'node:child_process'
import { existsSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { dirname, join, relative, resolve } from 'node:path'
import { promisify } from 'node:util'
import { describe, expect, it } from 'vitest'
import { cli } from './support/cli.ts'
import { temporaryFolder } from './support/temporary.ts'

const root = resolve(import.meta.dirname, '..')
const read = (file: string): string => readFileSync(join(root, file), 'utf8')
const pages = ['README.md', 'CHANGELOG.md', ...readdirSync(join(root, 'docs')).map((name) => `docs/${name}`)].filter(
  (file) => file.endsWith('.md'),
)
const manifest = JSON.parse(read('package.json')) as Record<'scripts' | 'dependencies' | 'devDependencies', object>

/** A page without its code blocks. */
const prose = (page: string): string => read(page).replace(/^```.*?^```$/gms, '')

/** The anchors of a page's headings, as GitHub makes them. */
function anchors(page: string): string[] {
  const headings = [...prose(page).matchAll(/^#+ (.+)$/gm)].map(([, heading]) => heading as string)
  return headings.map((heading) =>
    heading
      .toLowerCase()
      .replace(/[^\p{L}\p{N}\s_-]/gu, '')
      .replaceAll(' ', '-'),
  )
}

/** Commands that a page shows: lines of its shell blocks, continued ones joined, and code within sentences. */
function commands(page: string): string[] {
  const blocks = [...read(page).matchAll(/^```sh\n(.*?)^```$/gms)].map(([, block]) => block as string)
  const lines = blocks.flatMap((block) => block.replaceAll('\\\n', ' ').split('\n'))
  const inline = [...prose(page).matchAll(/`([^`]+)`/g)].map(([, code]) => (code as string).replaceAll('\n', ' '))
  return [...lines, ...inline].map((line) => line.replace(/\s#.*$/, '')).flatMap((line) => line.split(/&&|;/))
}

/** Verb -> what the command reference says about it. */
const reference = new Map(
  read('docs/commands.md')
    .split(/^## canopy /m)
    .slice(1)
    .map((section) => [section.slice(0, section.indexOf('\n')), section]),
)

describe.each(pages)('%s', (page) => {
  it('links to files and headings that are there', () => {
    const links = [...prose(page).matchAll(/\]\(([^)\s]+)\)/g)].map(([, link]) => link as string)
    const broken = links.filter((link) => {
      if (/^https?:/.test(link)) return false
      const [path, anchor] = link.split('#') as [string, string | undefined]
      const target = path === '' ? page : relative(root, resolve(root, dirname(page), path))
      if (!existsSync(join(root, target))) return true
      return anchor !== undefined && (statSync(join(root, target)).isDirectory() || !anchors(target).includes(anchor))
    })
    expect(broken).toEqual([])
  })

  it('shows verbs and flags that the command line has', () => {
    const wrong = commands(page).flatMap((command) => {
      const call = /^\s*(?:[A-Z_]+=\S+ )*(?:npx )?canopy ([a-z]+)\b(.*)$/.exec(command)
      if (call === null) return []
      const [, verb, rest] = call as unknown as [string, string, string]
      const known = reference.get(verb)
      if (known === undefined) return verb === 'help' ? [] : [command]
      const flags = [...rest.replace(/"[^"]*"|'[^']*'/g, '').matchAll(/\s(--[a-z][a-z-]*)/g)].map(([, flag]) => flag)
      return flags.filter((flag) => !new RegExp(`\\s${flag}\\b`).test(known)).map((flag) => `${command}: ${flag}`)
    })
    expect(wrong).toEqual([])
  })

  it('runs scripts and programs of this repository that exist', () => {
    const wrong = commands(page).filter((command) => {
      const script = /^\s*npm run ([a-z:]+)/.exec(command)?.[1]
      if (script !== undefined) return !(script in manifest.scripts)
      const program = /^\s*(?:node|python) ((?:bench|scripts|examples)\/\S+)/.exec(command)?.[1]
      return program !== undefined && !existsSync(join(root, program))
    })
    expect(wrong).toEqual([])
  })
})

describe('README.md', () => {
  it('shows its examples character for character', () => {
    const shown = [...read('README.md').matchAll(/<!-- (examples\/\S+) -->\n\n```js\n(.*?)```/gs)]
    expect(shown.map(([, file]) => file)).toEqual(['examples/refine.mjs', 'examples/langchain.mjs'])
    for (const [, file, text] of shown) expect(text).toBe(read(file as string))
  })

  it('gives a reason for every dependency', () => {
    const reasons = read('README.md').split('## Dependencies')[1] as string
    const { dependencies, devDependencies } = manifest
    const named = (name: string): boolean =>
      [
        name,
        name.replace(/^@types\/.*/, '@types/'),
        name.replace('@tensorflow/tfjs', ''),
        name.replace(/^@(\w+)js\/.*/, '$1'),
      ]
        .filter((part) => part.length > 1)
        .some((part) => reasons.includes(part))
    expect(Object.keys({ ...dependencies, ...devDependencies }).filter((name) => !named(name))).toEqual([])
  })
})

// The default folder of downloads, which the reference names, is another one on other systems.
describe.runIf(process.platform === 'linux')('docs/commands.md', () => {
  it('is what the help texts say: after changing one, run scripts/make-command-reference.mjs', async () => {
    const file = join(temporaryFolder(), 'commands.md')
    const script = join(root, 'scripts/make-command-reference.mjs')
    const env = { ...process.env, CANOPY_CLI: cli }
    await promisify(execFile)(process.execPath, [script, '--output', file], { env })
    expect(readFileSync(file, 'utf8')).toBe(read('docs/commands.md'))
  })
})

describe('scripts/make-refined-picture.mjs', () => {
  it('draws every region of an item with its score, beside every sentence', async () => {
    const folder = temporaryFolder()
    const sentences = ['The mill & the pond freeze.', 'Ida < Otto skates.', 'Nobody falls in.']
    writeFileSync(join(folder, 'item.json'), JSON.stringify({ title: 'Winter', text: sentences.join(' ') }))
    const args = ['--export', join(root, 'test/fixtures/tiny-bert/mean'), '--question', 'Who skates?']
    const files = ['--item', join(folder, 'item.json'), '--output', join(folder, 'picture.svg')]
    const script = join(root, 'scripts/make-refined-picture.mjs')
    await promisify(execFile)(process.execPath, [script, ...args, ...files], {
      env: { ...process.env, CANOPY_CLI: cli },
    })
    const picture = readFileSync(join(folder, 'picture.svg'), 'utf8')
    const texts = [...picture.matchAll(/<text[^>]*>([^<]*)</g)].map(([, text]) => text as string)
    expect(texts).toEqual(expect.arrayContaining(['Question: Who skates?', 'Winter', 'Nobody falls in.']))
    expect(texts).toEqual(expect.arrayContaining(['The mill &amp; the pond freeze.', 'Ida &lt; Otto skates.']))
    expect(texts.filter((text) => /^-?\d\.\d{3}$/.test(text))).toHaveLength(5)
  })
})
