import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import fc from 'fast-check'
import { expect, it } from 'vitest'
import { type TextLine, textLines } from '../../src/distill/lines.ts'
import { temporaryFolder } from '../support/temporary.ts'

async function linesOf(content: string | Uint8Array, most = 1000): Promise<TextLine[]> {
  const file = join(temporaryFolder(), 'texts.txt')
  await writeFile(file, content)
  const lines: TextLine[] = []
  for await (const line of textLines(file, most)) lines.push(line)
  return lines
}

it('lines end as any system ends them; blank ones, space around them and a byte order mark are left out', async () => {
  const lines = await linesOf('\ufeffone \r\n\r\n two\rthree\u2028four\n   \nfive')
  expect(lines).toEqual(['one', 'two', 'three', 'four', 'five'].map((text) => ({ text, cut: false })))
  expect(await linesOf('')).toEqual([])
  expect(await linesOf('\n\n')).toEqual([])
})

it('of any content every line gives what trimming and cutting it whole gives', async () => {
  const characters = fc.constantFrom('a', 'é', '語', '🦊', ' ', '\t', '\r', '\n', '\r\n', '.')
  await fc.assert(
    fc.asyncProperty(fc.array(characters, { maxLength: 60 }), fc.integer({ min: 1, max: 9 }), async (parts, most) => {
      const expected = parts
        .join('')
        .split(/\r\n|\r|\n/)
        .map((line) => line.trim())
        .filter((line) => line !== '')
      expect(await linesOf(parts.join(''), most)).toEqual(
        expected.map((line) => ({ text: line.slice(0, most), cut: line.length > most })),
      )
    }),
    { numRuns: 150 },
  )
})

it('a character, a line end and a long line may lie across what is read at once', async () => {
  const chunk = 64 * 1024
  const [long, crlf] = [`${'é'.repeat(chunk)} end`, `${'a'.repeat(chunk - 1)}\r\nnext`]
  expect(await linesOf(`x${long}`, 3 * chunk)).toEqual([{ text: `x${long}`, cut: false }])
  expect((await linesOf(crlf, 10)).map(({ text }) => text)).toEqual(['aaaaaaaaaa', 'next'])
  expect(await linesOf(`abc${' '.repeat(3 * chunk)}`, 5)).toEqual([{ text: 'abc', cut: false }])
  expect(await linesOf(`abc${' '.repeat(3 * chunk)}d`, 5)).toEqual([{ text: 'abc  ', cut: true }])
})

it('files that are no UTF-8 text are refused by name', async () => {
  await expect(linesOf(Uint8Array.of(0x63, 0x61, 0x66, 0xe9, 0x0a))).rejects.toThrow(
    /texts\.txt: The file is not UTF-8/,
  )
  await expect(linesOf(Uint8Array.of(0x63, 0xc3))).rejects.toThrow(/not UTF-8/)
  await expect(linesOf('PK\u0003\u0000\u0000')).rejects.toThrow(/texts\.txt: The file holds NUL characters/)
  await expect(linesOf(Buffer.from('\ufeffsome text', 'utf16le'))).rejects.toThrow(/not UTF-8/)
  const missing = textLines(join(temporaryFolder(), 'none.txt'), 10)
  await expect(missing.next()).rejects.toThrow(/none\.txt: cannot read the texts: no such file/)
})
