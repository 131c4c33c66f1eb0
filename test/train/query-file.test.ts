import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readdirSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { describe, expect, it } from 'vitest'
import { createQueryFile } from '../../src/train/data/query-file.ts'
import { cli } from '../support/cli.ts'
import { temporaryFolder } from '../support/temporary.ts'
import { normal } from './toy-encoder.ts'

const DIMENSION = 6

describe('query embeddings on disk', () => {
  it('come back to the bit, in whatever order they were written', () => {
    const file = createQueryFile(temporaryFolder(), DIMENSION)
    const rows = Array.from({ length: 50 }, (_, i) => normal(`row ${i}`, DIMENSION))
    const order = rows.map((_, i) => (7 * i + 3) % rows.length)
    for (const i of order) file.write(i, rows[i]!)
    for (const [i, row] of rows.entries()) expect(file.read(i)).toEqual(row)
    // a view into a larger array, as embeddings of a batch are
    file.write(3, Float32Array.of(9, ...rows[0]!, 9).subarray(1, 1 + DIMENSION))
    expect(file.read(3)).toEqual(rows[0])
    expect(file.read(4)).toEqual(rows[4])
    file.close()
  })

  it('of another size, and questions beyond those written, are refused', () => {
    const file = createQueryFile(temporaryFolder(), DIMENSION)
    file.write(1, normal('row', DIMENSION))
    expect(() => file.write(2, normal('row', DIMENSION - 1))).toThrow('An embedding has 6 numbers here, not 5')
    expect(() => file.read(2)).toThrow('The question 2 has no query embedding')
    file.close()
  })

  it('leave nothing in the folder, neither when closed nor when the process is killed', async () => {
    const folder = temporaryFolder()
    const file = createQueryFile(folder, DIMENSION)
    file.write(0, normal('row', DIMENSION))
    file.close()
    expect(readdirSync(folder)).toEqual([])

    const module = pathToFileURL(join(dirname(cli), '../train/data/query-file.js')).href
    const script = `
      const { createQueryFile } = await import(${JSON.stringify(module)})
      createQueryFile(${JSON.stringify(folder)}, 2).write(0, Float32Array.of(1, 2))
      console.log('written')
      setInterval(() => {}, 1000)`
    const child = spawn(process.execPath, ['--input-type=module', '-e', script])
    await once(child.stdout, 'data')
    child.kill('SIGKILL')
    await once(child, 'exit')
    expect(readdirSync(folder)).toEqual([])
  })

  it('name the file and the fault where they cannot be kept', () => {
    expect(() => createQueryFile(join(temporaryFolder(), 'missing'), DIMENSION)).toThrow(
      /cannot keep the query embeddings: no such file or folder/,
    )
  })
})
