import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { gzipSync } from 'node:zlib'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  canonicalJson,
  type JsonRecord,
  parseJsonLossless,
  readJsonArray,
  readJsonLines,
  readRecords,
} from '../../src/data/index.ts'
import { InputError } from '../../src/support/errors.ts'
import { temporaryFolder } from '../support/temporary.ts'

async function all(records: AsyncIterable<JsonRecord>): Promise<JsonRecord[]> {
  const found: JsonRecord[] = []
  for await (const record of records) found.push(record)
  return found
}

const values = async (records: AsyncIterable<JsonRecord>): Promise<unknown[]> =>
  (await all(records)).map(({ value }) => value)

function written(content: string | Uint8Array, name = 'f.jsonl'): string {
  const file = join(temporaryFolder(), name)
  writeFileSync(file, content)
  return file
}

/** JSON values with strings of every kind (quotes, backslashes, emoji) and numbers that a double holds. */
const jsonValue = fc.jsonValue({ stringUnit: 'binary' })

describe('parseJsonLossless', () => {
  it('keeps every digit of whole numbers beyond 2^53 as a string, and numbers below as numbers', () => {
    fc.assert(
      fc.property(fc.bigInt({ min: -(10n ** 30n), max: 10n ** 30n }), fc.string({ unit: 'binary' }), (id, text) => {
        const parsed = parseJsonLossless(`{"id": ${id}, "text": ${JSON.stringify(text)}, "list":[${id},${id}]}`)
        const expected = Number.isSafeInteger(Number(id)) ? Number(id) : String(id)
        expect(parsed).toEqual({ id: expected, text, list: [expected, expected] })
      }),
    )
  })

  it('leaves digits inside strings, fractions and exponents alone', () => {
    const text = String.raw`{"a\"12345678901234567890":"\\","b":"1 \" 12345678901234567890 ","c":1.12345678901234567890,"d":12345678901234567890e2,"e":-0.5}`
    expect(parseJsonLossless(text)).toEqual(JSON.parse(text))
  })

  it('refuses what JSON refuses', () => {
    for (const text of ['01234567890123456789', '{"a":12345678901234567890', '-', '12345678901234567890x', '']) {
      expect(() => parseJsonLossless(text), text).toThrow(SyntaxError)
    }
  })
})

it('canonicalJson is one string for equal content', () => {
  fc.assert(
    fc.property(fc.dictionary(fc.string(), jsonValue), (object) => {
      const reversed = Object.fromEntries(Object.entries(object).reverse())
      expect(canonicalJson(reversed)).toBe(canonicalJson(object))
      expect(JSON.parse(canonicalJson(object))).toEqual(JSON.parse(JSON.stringify(object)))
    }),
  )
})

describe('readJsonLines', () => {
  it('gives the value, line, offset and length of every line, however the file is cut into chunks', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.tuple(jsonValue, fc.constantFrom('\n', '\r\n', '\n\n', '\n \n')), { maxLength: 8 }),
        fc.integer({ min: 1, max: 40 }),
        fc.boolean(),
        async (content, chunkBytes, mark) => {
          const text = content.map(([value, end]) => JSON.stringify(value) + end).join('')
          const bytes = Buffer.from((mark ? '\ufeff' : '') + text)
          const file = written(bytes)
          const records = await all(readJsonLines(file, { chunkBytes }))
          expect(records.map(({ value }) => value)).toEqual(
            content.map(([value]) => parseJsonLossless(JSON.stringify(value))),
          )
          for (const { value, line, offset, length } of records) {
            expect(parseJsonLossless(bytes.subarray(offset, offset + length).toString())).toEqual(value)
            expect(parseJsonLossless(text.split('\n')[line - 1]!)).toEqual(value)
          }
        },
      ),
      { numRuns: 60 },
    )
  })

  it('reads a last line without a line end, and .gz', async () => {
    expect(await values(readJsonLines(written('{"a":1}\n{"a":2}')))).toEqual([{ a: 1 }, { a: 2 }])
    expect(await values(readJsonLines(written(gzipSync('{"a":1}\n'), 'f.jsonl.gz')))).toEqual([{ a: 1 }])
  })

  it.each([
    ['malformed JSON', Buffer.from('{"a":1}\n{"a":\n{"a":3}\n'), /f\.jsonl:2: not valid JSON/],
    ['a file that is cut off', Buffer.from('{"a":1}\n{"a":"tw'), /f\.jsonl:2: not valid JSON.*may be cut off/],
    ['Latin-1', Buffer.from('{"a":1}\n{"a":"caf\xe9"}\n', 'latin1'), /f\.jsonl:2: not UTF-8 \(byte 10 of the record\)/],
    ['UTF-16', Buffer.from('\ufeff{"a":1}\n', 'utf16le'), /f\.jsonl:1: the file is UTF-16/],
    [
      'a gigantic line',
      Buffer.from(`{"a":1}\n{"a":"${'x'.repeat(5000)}"}\n`),
      /f\.jsonl:2: the record has more than 1000 bytes/,
    ],
  ])('names file and line of %s', async (_, bytes, message) => {
    const reading = all(readJsonLines(written(bytes), { maxLineBytes: 1000 }))
    await expect(reading).rejects.toThrow(InputError)
    await expect(all(readJsonLines(written(bytes), { maxLineBytes: 1000 }))).rejects.toThrow(message)
  })

  it('goes on behind broken lines when told to', async () => {
    const text = Buffer.concat([
      Buffer.from(`{"a":1}\nnot json\n{"a":"${'x'.repeat(3000)}"}\n`),
      Buffer.from([0x22, 0xff, 0x22, 0x0a]),
      Buffer.from('{"a":2}\n{"a":'),
    ])
    const errors: (number | undefined)[] = []
    const file = written(text)
    const found = await values(
      readJsonLines(file, { maxLineBytes: 1000, onError: (error) => errors.push(error.line), chunkBytes: 100 }),
    )
    expect(found).toEqual([{ a: 1 }, { a: 2 }])
    expect(errors).toEqual([2, 3, 4, 6])
  })

  it('does not hold a line over the limit', async () => {
    const file = join(temporaryFolder(), 'f.jsonl')
    writeFileSync(file, Buffer.alloc(256 * 1024 * 1024, 0x78))
    const before = process.memoryUsage.rss()
    await expect(all(readJsonLines(file, { maxLineBytes: 1 << 20 }))).rejects.toThrow(/more than 1048576 bytes/)
    expect(process.memoryUsage.rss() - before).toBeLessThan(100 * 1024 * 1024)
  })

  it('says what is wrong with a file that is missing, a folder, or damaged', async () => {
    await expect(all(readJsonLines('/no/such/file'))).rejects.toThrow(
      '/no/such/file: cannot read the file: no such file',
    )
    await expect(all(readJsonLines(temporaryFolder()))).rejects.toThrow(/it is a folder/)
    const zipped = gzipSync(`{"a":"${'x'.repeat(100)}"}\n`)
    await expect(all(readJsonLines(written(zipped.subarray(0, -12), 'f.gz')))).rejects.toThrow(/damaged or cut off/)
    await expect(all(readJsonLines(written('{"a":1}\n', 'g.gz')))).rejects.toThrow(/damaged or cut off/)
  })

  it('stops when it is told to', async () => {
    const controller = new AbortController()
    controller.abort()
    const reading = all(readJsonLines(written('{"a":1}\n'), { signal: controller.signal }))
    await expect(reading).rejects.toThrow(expect.objectContaining({ name: 'AbortError' }))
  })
})

describe('readJsonArray', () => {
  it('gives the elements that JSON.parse gives, however the file is cut into chunks', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(jsonValue, { maxLength: 6 }),
        fc.constantFrom(undefined, 1, '\t'),
        fc.integer({ min: 1, max: 40 }),
        async (array, indent, chunkBytes) => {
          const bytes = Buffer.from(` ${JSON.stringify(array, null, indent)}\n`)
          const records = await all(readJsonArray(written(bytes), { chunkBytes }))
          expect(records.map(({ value }) => value)).toEqual(parseJsonLossless(bytes.toString()))
          for (const { value, line, offset, length } of records) {
            expect(parseJsonLossless(bytes.subarray(offset, offset + length).toString())).toEqual(value)
            expect(line).toBe(bytes.subarray(0, offset).toString().split('\n').length)
          }
        },
      ),
      { numRuns: 60 },
    )
  })

  it.each([
    ['an object', '{"a":1}', /:1: a JSON array was expected/],
    ['an empty file', ' \n', /the file is empty/],
    ['a file cut off between elements', '[{"a":1},\n', /:2: the file ends inside its JSON array/],
    ['a file cut off inside an element', '[{"a":1},\n\n{"a":{', /:3: the file ends inside its JSON array/],
    ['a missing element', '[1,,2]', /:1: an element of the array is missing/],
    ['a comma before the end', '[1,]', /:1: an element of the array is missing/],
    ['something behind the array', '[1]\n[2]', /:2: the file goes on after the end/],
    ['a broken element', '[1,\n{"a":tru}\n,2]', /:2: not valid JSON/],
    ['an element over the limit', `[1,\n"${'x'.repeat(2000)}"]`, /:2: the record has more than 1000 bytes/],
  ])('names the place of %s', async (_, text, message) => {
    await expect(all(readJsonArray(written(text), { maxLineBytes: 1000 }))).rejects.toThrow(message)
  })

  it('goes on behind an element that is broken but whole, and keeps what stands before a cut', async () => {
    const errors: (number | undefined)[] = []
    const text = `[{"a":1},\n{"a":tru},\n{"a":"${'x'.repeat(3000)}"},\n{"a":2},\n{"a":`
    const onError = (error: InputError): number => errors.push(error.line)
    expect(await values(readJsonArray(written(text), { maxLineBytes: 1000, onError, chunkBytes: 64 }))).toEqual([
      { a: 1 },
      { a: 2 },
    ])
    expect(errors).toEqual([2, 3, 5])
  })
})

it('readRecords reads an array and lines alike', async () => {
  expect(await values(readRecords(written('\ufeff\n [{"a":1},{"a":2}]')))).toEqual([{ a: 1 }, { a: 2 }])
  expect(await values(readRecords(written('\n{"a":1}\n{"a":2}\n')))).toEqual([{ a: 1 }, { a: 2 }])
  expect(await values(readRecords(written('')))).toEqual([])
})
