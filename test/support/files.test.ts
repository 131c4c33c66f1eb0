import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { mkdir, utimes } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import { describe, expect, it } from 'vitest'
import { InputError } from '../../src/support/errors.ts'
import {
  atomicFolder,
  openLineWriter,
  removeLeftovers,
  resolveInside,
  sha256File,
  writeFileAtomic,
} from '../../src/support/files.ts'
import { createRandom } from '../../src/support/random.ts'
import { temporaryFolder } from './temporary.ts'

describe('writeFileAtomic', () => {
  it('makes missing folders, replaces the old content and leaves nothing beside', async () => {
    const folder = join(temporaryFolder(), 'a', 'b')
    await writeFileAtomic(join(folder, 'f'), 'one')
    await writeFileAtomic(join(folder, 'f'), 'two')
    expect(readdirSync(folder)).toEqual(['f'])
    expect(readFileSync(join(folder, 'f'), 'utf8')).toBe('two')
  })

  it('names the file when it cannot be written', async () => {
    const folder = temporaryFolder()
    writeFileSync(join(folder, 'file'), '')
    const error = await writeFileAtomic(join(folder, 'file', 'f'), 'x').catch((e: unknown) => e)
    expect(error).toBeInstanceOf(InputError)
    expect((error as Error).message).toContain(join('file', 'f'))
  })
})

describe('atomicFolder', () => {
  it('shows the folder only when it is finished', async () => {
    const folder = join(temporaryFolder(), 'out')
    const result = await atomicFolder(folder, async (temporary) => {
      await mkdir(join(temporary, 'deep'))
      writeFileSync(join(temporary, 'deep', 'f'), 'new')
      expect(existsSync(folder)).toBe(false)
      return 7
    })
    expect(result).toBe(7)
    expect(readFileSync(join(folder, 'deep', 'f'), 'utf8')).toBe('new')
  })

  it('replaces an old folder whole', async () => {
    const parent = temporaryFolder()
    const folder = join(parent, 'out')
    for (const name of ['old', 'new']) {
      await atomicFolder(folder, async (temporary) => writeFileSync(join(temporary, name), name))
    }
    expect(readdirSync(folder)).toEqual(['new'])
    expect(readdirSync(parent)).toEqual(['out'])
  })

  it('leaves the old folder and no leftovers when the work fails', async () => {
    const parent = temporaryFolder()
    const folder = join(parent, 'out')
    await atomicFolder(folder, async (temporary) => writeFileSync(join(temporary, 'f'), 'old'))
    const failing = atomicFolder(folder, async (temporary) => {
      writeFileSync(join(temporary, 'f'), 'half')
      throw new Error('stop')
    })
    await expect(failing).rejects.toThrow('stop')
    expect(readFileSync(join(folder, 'f'), 'utf8')).toBe('old')
    expect(readdirSync(parent)).toEqual(['out'])
  })
})

it('removeLeftovers removes what killed runs left, and nothing that may be in use', async () => {
  const folder = temporaryFolder()
  const old = new Date(Date.now() - 7_200_000)
  // beyond the largest process id of any platform
  const gone = 2 ** 30
  const names = [`.out.tmp-${gone}-0a0b0c0d`, `.out.tmp-${process.pid}-0a0b0c0d`, `.out2.tmp-${gone}-0a0b0c0d`, 'out']
  for (const name of names) {
    await mkdir(join(folder, name))
    await utimes(join(folder, name), old, old)
  }
  await mkdir(join(folder, `.out.tmp-${gone}-00000000`))
  await removeLeftovers(join(folder, 'out'))
  expect(readdirSync(folder).sort()).toEqual([...names.slice(1), `.out.tmp-${gone}-00000000`].sort())
})

describe('a full disk', () => {
  it.skipIf(!existsSync('/dev/full'))('is an input error that says so', async () => {
    const writer = await openLineWriter('/dev/full', 'a')
    await writer.write('x')
    await expect(writer.close()).rejects.toThrow(/\/dev\/full: cannot write the file: the disk is full/)
  })
})

describe('resolveInside', () => {
  it('resolves paths below the folder', () => {
    expect(resolveInside('/data', 'a/b.jpg')).toBe(resolve('/data/a/b.jpg'))
    expect(resolveInside('/data', 'a/../b.jpg')).toBe(resolve('/data/b.jpg'))
    expect(resolveInside('/data', '..b.jpg')).toBe(resolve('/data/..b.jpg'))
  })

  it.each([
    '../b',
    'a/../../b',
    '/etc/passwd',
    'C:\\x',
    'C:x',
    '..\\b',
    'a\\..\\..\\b',
    '\\\\host\\share',
    '',
    '.',
    'a/..',
    'a\0b',
  ])('refuses %j', (path) => {
    expect(() => resolveInside('/data', path)).toThrow(InputError)
  })
})

it('sha256File hashes the bytes', async () => {
  const file = join(temporaryFolder(), 'f')
  writeFileSync(file, 'abc')
  expect(await sha256File(file)).toBe('ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad')
})

describe('createRandom', () => {
  it('repeats for a seed and differs between seeds', () => {
    const draw = (seed: string): number[] => {
      const random = createRandom(seed)
      return Array.from({ length: 5 }, () => random.next())
    }
    expect(draw('1')).toEqual(draw('1'))
    expect(draw('1')).not.toEqual(draw('2'))
  })

  it('draws normal numbers of mean 0 and variance 1', () => {
    const random = createRandom('normal')
    const values = Array.from({ length: 20_000 }, () => random.normal())
    const mean = values.reduce((a, b) => a + b) / values.length
    const variance = values.reduce((a, b) => a + (b - mean) ** 2, 0) / values.length
    expect(Math.abs(mean)).toBeLessThan(0.03)
    expect(Math.abs(variance - 1)).toBeLessThan(0.05)
  })

  it('shuffles without losing anything, every place equally likely', () => {
    const random = createRandom('shuffle')
    const first = [0, 0, 0, 0]
    for (let i = 0; i < 8000; i++) {
      const order = random.shuffle([0, 1, 2, 3])
      expect([...order].sort()).toEqual([0, 1, 2, 3])
      first[order[0]!]!++
    }
    for (const count of first) expect(Math.abs(count - 2000)).toBeLessThan(200)
  })
})
