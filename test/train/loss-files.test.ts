import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { hashLossModule } from '../../src/train/loss/files.ts'
import { loadLossModule } from '../../src/train/loss/module.ts'
import { resolveSettings } from '../../src/train/settings.ts'

let folder: string
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'canopy-loss-files-'))
})
afterEach(() => rmSync(folder, { recursive: true, force: true }))

const write = (name: string, text: string): string => {
  const path = join(folder, name)
  mkdirSync(dirname(path), { recursive: true })
  writeFileSync(path, text)
  return path
}

describe('the hash of a loss module', () => {
  it('covers each local file that it names, however it does', async () => {
    for (const [name, source, file] of [
      ['esm.mjs', "import{x}from'./x.mjs'", 'x.mjs'],
      ['again.mjs', 'export * from "./sub/y.mjs"', 'sub/y.mjs'],
      ['query.mjs', "import './x.mjs?v=1'", 'x.mjs'],
      ['encoded.mjs', "import './with%20blank.mjs'", 'with blank.mjs'],
      ['late.mjs', "const x = await import (/* late */ './x.mjs')", 'x.mjs'],
      ['short.cjs', "const x = require('./z')", 'z.js'],
      ['folder.cjs', "const x = require('./sub')", 'sub/index.js'],
      ['self.cjs', "const x = require('.')", 'index.js'],
      ['alias.mjs', "const load = createRequire(import.meta.url)\nload('./z')", 'z.js'],
      ['json.mjs', "import x from './data.json' with { type: 'json' }", 'data.json'],
      ['read.mjs', "readFileSync(new URL('./data.json', import.meta.url))", 'data.json'],
    ] as const) {
      for (const given of ['x.mjs', 'sub/y.mjs', 'with blank.mjs', 'z.js', 'sub/index.js', 'index.js', 'data.json'])
        write(given, '1')
      const path = write(name, source)
      const before = await hashLossModule(path)
      expect(Object.keys(before.files)).toEqual([name, file].sort())
      write(file, '2')
      expect((await hashLossModule(path)).sha256).not.toBe(before.sha256)
      rmSync(path)
    }
  })

  it('tells bytes apart that are no text', async () => {
    const path = write('bytes.mjs', "readFileSync(new URL('./table.bin', import.meta.url))")
    const hashes = []
    for (const byte of [0xfe, 0xff]) {
      writeFileSync(join(folder, 'table.bin'), Uint8Array.of(byte))
      hashes.push((await hashLossModule(path)).sha256)
    }
    expect(hashes[0]).not.toBe(hashes[1])
  })

  it('does not depend on the name that a link has for it', async () => {
    write('helper.mjs', '1')
    const path = write('real.mjs', "import './helper.mjs'")
    mkdirSync(join(folder, 'links'))
    symlinkSync(path, join(folder, 'links', 'linked.mjs'))
    expect(await hashLossModule(join(folder, 'links', 'linked.mjs'))).toEqual(await hashLossModule(path))
  })

  it('needs names that stand in the text, and says in which line one does not', async () => {
    for (const call of [
      "import('./' + x)",
      'import (x)',
      'require(x)',
      '`${' + 'await import(x)}`',
      'import(`./$' + '{x}`)',
    ])
      await expect(hashLossModule(write('computed.mjs', `const x = 1\n/* a\n b */\n${call}`))).rejects.toThrow(
        /computed\.mjs:4: .*literal names only/,
      )
  })

  it('does not take prose for code, nor words that only look alike', async () => {
    const source = `
      // This may require (or import(…)) a lot.
      /**
       * We import(things), see require(this).
       * @type {import('canopy-encoder').Loss}
       */
      const url = 'http://localhost/' // import(it)
      shop.import(goods)`
    expect(Object.keys((await hashLossModule(write('prose.mjs', source))).files)).toEqual(['prose.mjs'])
  })
})

describe('a process that has imported a loss module', () => {
  const lossOf = async (path: string): Promise<number> =>
    (await loadLossModule(await resolveSettings(undefined, { loss: path }))).run([]).loss

  it('takes another text of it', async () => {
    for (const loss of [1, 2])
      expect(await lossOf(write('own.mjs', `export default () => ({ loss: ${loss}, gradients: [] })`))).toBe(loss)
  })

  it('refuses another text of what Node keeps: of a file that it imports, or of a CommonJS module', async () => {
    const importing = write('a.mjs', "import { x } from './b.mjs'\nexport default () => ({ loss: x, gradients: [] })")
    for (const [path, file, text] of [
      [importing, 'b.mjs', (x: number) => `export const x = ${x}`],
      [join(folder, 'c.cjs'), 'c.cjs', (x: number) => `module.exports = () => ({ loss: ${x}, gradients: [] })`],
    ] as const) {
      write(file, text(1))
      expect(await lossOf(path)).toBe(1)
      write(file, text(2))
      await expect(lossOf(path)).rejects.toThrow(`${file}: This file of a loss module has changed`)
      write(file, text(1))
      expect(await lossOf(path)).toBe(1)
    }
  })
})
