import { readdirSync } from 'node:fs'
import { dirname } from 'node:path'
import fc from 'fast-check'
import { expect } from 'vitest'
import { checkDataset, type ImportSummary } from '../../src/data/index.ts'
import { InputError } from '../../src/support/errors.ts'

type Json = null | boolean | number | string | Json[] | { [key: string]: Json }

/** What files get wrong, as JSON values of every kind. */
const oddValue: fc.Arbitrary<Json> = fc.oneof(
  fc.constantFrom<Json>(
    null,
    true,
    -1,
    0.5,
    1e9,
    1e300,
    '',
    ' ',
    '\ud800',
    '../x',
    '/etc/passwd',
    'C:\\x',
    '__proto__',
  ),
  fc.constantFrom<Json>([], {}, [[]], [-1, -1], [0, 99_999], [[0, 0]], { id: 'x' }, ['x', [1, 1], null, 'table']),
)

const [LEFT_OUT, TWICE] = [Symbol('left out'), Symbol('twice')]

/** `value` with one field or element, anywhere in it, left out, there twice, or replaced by an odd value. */
export function damagedValue(value: unknown): fc.Arbitrary<unknown> {
  const paths: (string | number)[][] = []
  const collect = (at: unknown, path: (string | number)[]): void => {
    if (at === null || typeof at !== 'object') return
    for (const key of Array.isArray(at) ? at.keys() : Object.keys(at)) {
      paths.push([...path, key])
      collect((at as Record<string | number, unknown>)[key], [...path, key])
    }
  }
  collect(value, [])
  const change = fc.oneof({ weight: 3, arbitrary: oddValue }, fc.constantFrom(LEFT_OUT, TWICE))
  return fc.tuple(fc.constantFrom(...paths), change).map(([path, odd]) => {
    const copy = structuredClone(value)
    const parent = path.slice(0, -1).reduce((at, key) => (at as never)[key], copy) as Record<string | number, unknown>
    const key = path.at(-1)!
    if (odd === TWICE) {
      if (Array.isArray(parent)) parent.splice(Number(key), 0, structuredClone(parent[Number(key)]))
      else parent[`${key}`] = [parent[key], parent[key]]
    } else if (odd !== LEFT_OUT) parent[key] = odd
    else if (Array.isArray(parent)) parent.splice(Number(key), 1)
    else delete parent[key]
    return copy
  })
}

/**
 * `content` cut off, with bytes overwritten (no UTF-8 any more, as it may be), with a number that is none or out of bounds,
 * doubled, or in another encoding.
 */
export function damagedBytes(content: Buffer): fc.Arbitrary<Buffer> {
  const at = fc.nat({ max: content.length })
  return fc.oneof(
    at.map((end) => content.subarray(0, end)),
    fc.tuple(at, fc.uint8Array({ minLength: 1, maxLength: 4 })).map(([from, bytes]) => {
      const copy = Buffer.from(content)
      copy.set(bytes.subarray(0, Math.max(0, copy.length - from)), Math.min(from, copy.length))
      return copy
    }),
    fc
      .tuple(at, fc.constantFrom('NaN', 'Infinity', '-1', '-0', '1e999', '99999999999999999999', '0.5'))
      .map(([from, odd]) => {
        const text = content.toString('latin1')
        return Buffer.from(text.slice(0, from) + text.slice(from).replace(/-?\d+(?:\.\d+)?/, odd), 'latin1')
      }),
    fc.constantFrom(
      Buffer.concat([content, content]),
      Buffer.from(content.toString('utf8'), 'utf16le'),
      Buffer.concat([Buffer.from([0xef, 0xbb, 0xbf]), content]),
      Buffer.from(content.toString('utf8'), 'latin1'),
    ),
  )
}

/**
 * Runs an import of damaged files into `output`: it writes a dataset without fault, or throws an InputError and leaves nothing.
 * With `skip`, every record left out is told with its file and line.
 *
 * @param faults that the dataset may have
 */
export async function sound(
  output: string,
  run: () => Promise<ImportSummary>,
  faults: RegExp = /^never$/,
): Promise<'imported' | 'refused'> {
  let summary: ImportSummary
  try {
    summary = await run()
  } catch (error) {
    expect(error).toBeInstanceOf(InputError)
    expect((error as InputError).message).toMatch(/^\S+: |^no question is left to import/)
    expect(readdirSync(dirname(output)).filter((name) => name.includes('data'))).toEqual([])
    return 'refused'
  }
  await checkDataset(output, (fault) => {
    if (!faults.test(fault.message)) expect(fault).toBeUndefined()
  })
  expect(summary.questions).toBeGreaterThan(0)
  for (const { count, places } of summary.dropped) {
    expect(places).toHaveLength(Math.min(count, 100))
    for (const place of places) expect(place).toMatch(/:\d+(?:: |$)/)
  }
  return 'imported'
}
