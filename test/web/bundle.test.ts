import { join, resolve } from 'node:path'
import { runInNewContext } from 'node:vm'
import { build } from 'vite'
import { beforeAll, describe, expect, it } from 'vitest'
import * as library from '../../src/index.ts'

type Web = typeof import('../../src/web.ts')

const SRC = resolve(import.meta.dirname, '../../src')

/** The bundle that a browser's user gets of an entry, and every import in it that is no file of the library. */
async function bundle(entry: string): Promise<{ code: string; foreign: string[]; modules: string[] }> {
  const foreign: string[] = []
  const modules: string[] = []
  const result = await build({
    configFile: false,
    logLevel: 'silent',
    plugins: [
      {
        name: 'foreign-imports',
        enforce: 'pre',
        resolveId(source, importer) {
          if (importer === undefined || /^\.{1,2}\//.test(source)) return null
          foreign.push(`${importer} imports ${source}`)
          return { id: source, external: true }
        },
        moduleParsed({ id }) {
          modules.push(id)
        },
      },
    ],
    build: {
      write: false,
      minify: false,
      lib: { entry, name: 'canopy', formats: ['iife'], fileName: () => 'web.js' },
    },
  })
  const [output] = Array.isArray(result) ? result : [result]
  if (output === undefined || !('output' in output)) throw new Error('The bundler watches instead of building.')
  return { code: output.output.map((part) => ('code' in part ? part.code : '')).join('\n'), foreign, modules }
}

describe('canopy-encoder/web', () => {
  let code: string
  let foreign: string[]
  let modules: string[]
  let web: Web
  beforeAll(async () => {
    ;({ code, foreign, modules } = await bundle(join(SRC, 'web.ts')))
    // a realm of its own: the language, and what browsers, workers and edge functions all have beside it
    web = runInNewContext(`${code}\n;canopy`, { TextEncoder }) as Web
  })

  it('imports nothing but files of the library', () => {
    expect(foreign).toEqual([])
    expect(modules).toContain(join(SRC, 'hierarchy', 'index.ts'))
  })

  it('is checked by a rule that notices Node', async () => {
    const { foreign: found } = await bundle(join(SRC, 'preferences', 'index.ts'))
    expect(found.some((line) => line.includes('node:'))).toBe(true)
  })

  it('names no global of Node', () => {
    // `typeof process` asks without naming
    const named = code.replaceAll(/typeof process === ("undefined"|'undefined')[^\n]*/g, '')
    expect(named).not.toMatch(/\b(Buffer|process|require|__dirname|setImmediate)\b(?=[.([])/)
  })

  it('stays small enough for a page', () => {
    expect(code.length).toBeLessThan(64 * 1024)
  })

  it('builds trees, renders, refines and makes pairs outside Node as inside it', () => {
    const item = {
      ...{ id: 'a', modality: 'text' as const, title: 'Łódź' },
      text: 'Dr. Ito came at 5 p.m. She left early. It rained in "St. Ives". 雨が降った。晴れた。',
    }
    const [there, here] = [web.buildHierarchy(item), library.buildHierarchy(item)]
    expect(JSON.stringify(there)).toBe(JSON.stringify(here))
    expect(there.leaves.length).toBeGreaterThan(3)
    const rendered = (lib: Pick<Web, 'renderNode'>, tree: typeof here): string[] =>
      tree.nodes.map((node) => lib.renderNode(tree, node, { title: true }))
    expect(JSON.stringify(rendered(web, there))).toBe(JSON.stringify(rendered(library, here)))
    const score = ({ from, to }: { from: number; to: number }): number => (from <= 2 && 2 < to ? 1 / (to - from) : 0)
    expect(JSON.stringify(web.refine(there.root, score))).toBe(JSON.stringify(library.refine(here.root, score)))
    expect(JSON.stringify(web.preferencePairs(there.root, (leaf) => leaf === 2))).toBe(
      JSON.stringify(library.preferencePairs(here.root, (leaf) => leaf === 2)),
    )
    expect(() => web.buildTree(0)).toThrow(/whole number of leaves/)
  })

  it('marks gold by byte-checked quotes without Buffer', () => {
    const tree = web.buildHierarchy({ id: 'b', modality: 'text', text: 'Grün ist es. Blau war es.' })
    const { gold } = web.goldLeaves(tree, { item: 'b', quotes: ['Blau war'] })
    expect([...gold]).toEqual([false, true])
  })
})
