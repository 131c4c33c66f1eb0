import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { type ReadOptions, readRecords } from '../../src/data/index.ts'
import { InputError } from '../../src/support/errors.ts'
import { type ColumnType, type ParquetOptions, parquetBytes } from '../support/parquet.ts'
import { temporaryFolder } from '../support/temporary.ts'

function file(bytes: Uint8Array, name = 'rows.parquet'): string {
  const path = join(temporaryFolder(), name)
  writeFileSync(path, bytes)
  return path
}

async function read(path: string, options?: ReadOptions): Promise<unknown[]> {
  const values: unknown[] = []
  for await (const { value } of readRecords(path, options)) values.push(value)
  return values
}

async function failure(path: string, options?: ReadOptions): Promise<InputError> {
  const error = await read(path, options).catch((thrown: unknown) => thrown)
  expect(error).toBeInstanceOf(InputError)
  return error as InputError
}

const NESTED: Record<string, ColumnType> = {
  id: 'string',
  n: 'int64',
  facts: { title: ['string'], sentences: [['string']] },
  list: [{ a: 'int32', b: 'string' }],
  extra: 'string',
}
const nested = [
  {
    ...{ id: 'a', n: 9007199254740993n, extra: null },
    facts: { title: ['x', 'ÿ€😀'], sentences: [['one', 'two'], []] },
    list: [
      { a: 1, b: null },
      { a: 2, b: 'b' },
    ],
  },
  { id: 'b', n: 3n, facts: { title: [], sentences: [] }, list: [], extra: 'e' },
]

describe('a Parquet file', () => {
  it('gives its rows as JSON would: structs, lists, large numbers as digits, nulls of objects absent', async () => {
    const path = file(parquetBytes(nested, NESTED))
    expect(await read(path)).toEqual([
      {
        ...{ id: 'a', n: '9007199254740993' },
        facts: { title: ['x', 'ÿ€😀'], sentences: [['one', 'two'], []] },
        list: [{ a: 1 }, { a: 2, b: 'b' }],
      },
      { id: 'b', n: 3, facts: { title: [], sentences: [] }, list: [], extra: 'e' },
    ])
  })

  it('is known by its first bytes, whatever its name', async () => {
    expect(await read(file(parquetBytes([{ id: 'a' }], { id: 'string' }), 'data'))).toEqual([{ id: 'a' }])
  })

  it('leaves out the columns that nobody asks for, also inside structs and lists', async () => {
    const path = file(parquetBytes(nested, NESTED))
    expect((await read(path, { unread: ['n', 'extra', 'facts.sentences', 'list.b'] }))[0]).toEqual({
      id: 'a',
      facts: { title: ['x', 'ÿ€😀'] },
      list: [{ a: 1 }, { a: 2 }],
    })
    expect((await read(path, { unread: ['facts', 'list.a', 'list.b', 'n'] }))[1]).toEqual({ id: 'b', extra: 'e' })
  })

  it('numbers its rows through all row groups', async () => {
    const rows = Array.from({ length: 25 }, (_, i) => ({ id: `row ${i}` }))
    const path = file(parquetBytes(rows, { id: 'string' }, { rowGroupSize: 7 }))
    const found: unknown[] = []
    for await (const { value, line } of readRecords(path)) found.push([line, value])
    expect(found).toEqual(rows.map((row, i) => [i + 1, row]))
  })

  it('of one large row group without lists is read in pieces, with the same rows', async () => {
    const text = 'x'.repeat(100_000)
    const rows = Array.from({ length: 350 }, (_, i) => ({ id: `${i}`, text: `${i} ${text}` }))
    const bytes = parquetBytes(rows, { id: 'string', text: 'string' }, { rowGroupSize: 1000, pageSize: 1 << 20 })
    const path = file(bytes)
    let i = 0
    for await (const { value } of readRecords(path)) {
      expect((value as { id: string }).id).toBe(`${i}`)
      expect((value as { text: string }).text.startsWith(`${i} x`)).toBe(true)
      i++
    }
    expect(i).toBe(350)
  })

  it('gives back what was written (property)', async () => {
    const string = fc.string({ unit: 'grapheme', maxLength: 20 })
    const row = fc.record({
      ...{ id: string, n: fc.integer({ min: -(2 ** 31), max: 2 ** 31 - 1 }), ok: fc.boolean() },
      titles: fc.array(string, { maxLength: 4 }),
      parts: fc.array(fc.array(string, { maxLength: 3 }), { maxLength: 3 }),
    })
    const columns: Record<string, ColumnType> = {
      id: 'string',
      n: 'int32',
      ok: 'boolean',
      titles: ['string'],
      parts: [['string']],
    }
    const options: fc.Arbitrary<ParquetOptions> = fc.record({
      rowGroupSize: fc.integer({ min: 1, max: 8 }),
      pageSize: fc.constantFrom(64, 1 << 20),
      codec: fc.constantFrom('SNAPPY', 'UNCOMPRESSED'),
    })
    await fc.assert(
      fc.asyncProperty(fc.array(row, { minLength: 1, maxLength: 20 }), options, async (rows, how) => {
        expect(await read(file(parquetBytes(rows, columns, how)))).toEqual(rows)
      }),
      { numRuns: 40 },
    )
  })
})

describe('a damaged Parquet file', () => {
  const whole = parquetBytes(nested, NESTED)

  it.each([
    ['empty', Buffer.alloc(0), 'does not begin with "PAR1"'],
    ['something else', Buffer.from('{"id": 1}\n'.repeat(10)), 'does not begin with "PAR1"'],
    ['cut off', whole.subarray(0, whole.length - 20), 'does not end with "PAR1"'],
    ['too short', Buffer.from('PAR1PAR1'), 'does not end with "PAR1"'],
  ])('that is %s is refused with the file', async (_, bytes, message) => {
    const path = file(bytes)
    const error = await failure(path)
    expect(error.message).toContain(message)
    expect(error.message).toContain('fetch it again')
    expect(error.file).toBe(path)
  })

  it('with a footer longer than itself is refused', async () => {
    const bytes = Buffer.from(whole)
    bytes.writeUInt32LE(0xfffffff0, bytes.length - 8)
    expect((await failure(file(bytes))).message).toContain('footer is said to have 4294967280 bytes')
  })

  it('names the rows of a damaged row group, or counts it and reads the others', async () => {
    const rows = Array.from({ length: 30 }, (_, i) => ({ id: `a row that has the number ${i}` }))
    const bytes = parquetBytes(rows, { id: 'string' }, { rowGroupSize: 10, codec: 'UNCOMPRESSED', dictionarySize: 0 })
    const at = bytes.indexOf('number 12') - 30
    bytes.fill(0xff, at, at + 30)
    const path = file(bytes)
    const error = await failure(path)
    expect(error.message).toMatch(/rows\.parquet:11: rows 11 to 20 cannot be read: /)
    expect(error.line).toBe(11)
    const errors: InputError[] = []
    const kept = await read(path, { onError: (e) => errors.push(e) })
    expect(errors).toHaveLength(1)
    expect(kept).toEqual([...rows.slice(0, 10), ...rows.slice(20)])
  })

  it('with text that is no UTF-8 is refused, not patched', async () => {
    const bytes = parquetBytes([{ id: 'abcdefgh' }], { id: 'string' }, { codec: 'UNCOMPRESSED', statistics: false })
    bytes.fill(0xff, bytes.indexOf('cdef'), bytes.indexOf('cdef') + 2)
    expect((await failure(file(bytes))).message).toContain(':1: rows 1 to 1 cannot be read')
  })

  it('with more rows than its row groups, or columns that lie outside of it, is refused', async () => {
    // "a" is repeated in every row, so that the counts stand out in the footer
    const rows = Array.from({ length: 77_777 }, () => ({ id: 'a' }))
    const bytes = parquetBytes(rows, { id: 'string' }, { rowGroupSize: 100_000, statistics: false })
    const varint = (n: number): Buffer => {
      const parts: number[] = []
      for (let rest = n * 2; ; rest = Math.floor(rest / 128)) {
        parts.push(rest < 128 ? rest : (rest % 128) | 128)
        if (rest < 128) return Buffer.from(parts)
      }
    }
    const count = varint(77_777)
    const places: number[] = []
    for (let at = bytes.indexOf(count); at >= 0; at = bytes.indexOf(count, at + 1)) places.push(at)
    expect(places.length).toBeGreaterThanOrEqual(3)
    for (const place of places) {
      const changed = Buffer.from(bytes)
      varint(1_999_999).copy(changed, place)
      const error = await failure(file(changed))
      expect(error.message).toMatch(/said to (have|hold)|fewer (values|rows)|cannot be read/)
    }
  })

  it('never ends in anything but rows or an error that names the file (fuzz)', async () => {
    const rows = Array.from({ length: 12 }, (_, i) => ({ ...nested[i % 2], id: `${i}` }))
    const sound = parquetBytes(rows, NESTED, { rowGroupSize: 5 })
    const flips = fc.array(fc.tuple(fc.nat(sound.length - 1), fc.integer({ min: 0, max: 255 })), {
      minLength: 1,
      maxLength: 4,
    })
    await fc.assert(
      fc.asyncProperty(flips, fc.option(fc.nat(sound.length)), async (changes, cut) => {
        const bytes = Buffer.from(sound)
        for (const [at, value] of changes) bytes[at] = value
        const path = file(cut === null ? bytes : bytes.subarray(0, cut))
        try {
          await read(path)
        } catch (error) {
          expect(error).toBeInstanceOf(InputError)
          expect((error as InputError).file).toBe(path)
        }
      }),
      { numRuns: 400 },
    )
  })

  it('a row over the limit is reported with its number', async () => {
    const path = file(parquetBytes([{ id: 'short' }, { id: 'x'.repeat(2000) }], { id: 'string' }))
    expect((await failure(path, { maxLineBytes: 1000 })).message).toMatch(/rows\.parquet:2: the row has more than 1000/)
  })

  it('that is not there is an error with its name', async () => {
    expect((await failure(join(temporaryFolder(), 'none.parquet'))).message).toContain('no such file')
  })
})
