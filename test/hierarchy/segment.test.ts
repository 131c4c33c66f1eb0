import { readFileSync } from 'node:fs'
import { resolve } from 'node:path'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { SEGMENTER_VERSION, segmentSentences } from '../../src/hierarchy/index.ts'
import { sharedDir } from '../support/shared.ts'

const sentences = (text: string): string[] => segmentSentences(text).map(([start, end]) => text.slice(start, end))

/** Texts as a reader would cut them, at each `|`. */
const cases: Record<string, string[]> = {
  'titles and names': [
    'Dr. Smith met Mrs. Jones.| They talked.',
    'See Mt. Everest and Ft. Worth.| Lt. Col. Kim did.',
    'Mr. and Mrs. Smith came.| So did Prof. A. Lee.',
    'St. Louis is a city.| I live on Main St.| It is quiet.',
    'Martin Luther King Jr. Day is a holiday.| He was Martin Luther King Jr.| He spoke.',
    'Brown v. Board of Education was decided.| It mattered.',
    'The match was Leeds vs. Arsenal.| Fans cheered.',
  ],
  initials: [
    'J. K. Rowling wrote it.| Then J.R.R. Tolkien replied.',
    'W. E. B. Du Bois wrote.| So did O. Henry.',
    'He met George W. Bush.| In 2001, George W. Bush was president.',
    'Vitamin C.| It helps.',
    'He was the last Tsar, Nicholas I.| He abdicated.',
    'Henry VIII.| He ruled.',
  ],
  abbreviations: [
    'He moved to the U.S. in 1990.| She stayed.',
    'The U.S. Senate met.| It voted.',
    'He lives in the U.S.| He likes it.',
    'The U.K., the U.S., and the E.U. signed.| Good.',
    'Use fruit, e.g. Apples or pears.| Eat well.',
    'The latter, i.e. Paris, won.| It was late.',
    'It begins at 8:00 p.m. CST.| It ends at 9 p.m.| The crowd left.',
    'Apple Inc. makes phones.| Apple Inc. Chairman Levinson spoke.| He left Apple Inc.| The end.',
    'He earned a Ph.D. in physics.| She has a Ph.D.| Both teach.',
    'The carrier is NG.| Next is UK.',
    'He sold pens, paper, etc.| The shop closed.',
  ],
  numbers: [
    'The price is 33.33 dollars.| It rose.',
    'Chanel No. 5 is famous.| It smells.',
    'It peaked at No. 5 Monday.| It fell.',
    'She paid $5.50.| He paid €3.',
    'See Fig. 3 and pp. 4-5.| Then Sec. 2 follows.',
    'He was born c. 1450 in Rome.| He died.',
    'He left Jan. 5 for Rome.| The rest is open.',
    'Smith et al. 1967 say so.| Next.',
    'Version 2.0.1 is out.| Visit www.example.com today.',
    'The file is README.md.| Open it.',
    '1. Wash the apples.\n|2. Peel them.',
    'It ended in 1945.[1][12]| Then came peace.[3]',
  ],
  'quotes and brackets': [
    '"Stop!" he said.| "Why?" she asked.',
    '"I came."| He left.',
    '“I came.”| “I saw.”',
    '"Who\'s There?" is a song.| "Where Did Our Love Go?" (1972) is one too.',
    'He asked (who knows why?) twice.| Then left.',
    '(He left.)| She stayed.',
    'Yahoo! is a company.| Really?| Yes!',
    'Wait... what?| Yes.',
    'Is it?!| Yes.',
  ],
  'other scripts': [
    '今日は晴れです。|明日は雨でしょう。',
    '他来了。|我走了！|你呢？',
    '他说：“你好。”|然后走了。',
    '¿Qué pasa?| Nada.',
    'वह आया।| वह गया।',
    'هل أنت هنا؟| نعم.',
    'Он пришёл.| Она ушла.',
  ],
  'lines and paragraphs': [
    'Title without stop|\n\nFirst sentence.| Second.',
    'A line that was\nbroken by hand.| Next.',
    'First.|\r\nSecond line\r\ngoes on.| Third.',
    'One 😀 here.| Two 👩‍👩‍👧 there.',
  ],
}

describe('segmentSentences', () => {
  for (const [name, texts] of Object.entries(cases)) {
    describe(name, () => {
      for (const marked of texts) {
        it(JSON.stringify(marked), () => {
          const text = marked.replaceAll('|', '')
          const expected = marked.replace(/(\s+)\|/g, '|$1').split('|')
          expect(sentences(text)).toEqual(expected)
        })
      }
    })
  }

  it('gives every character to one sentence, white space to the later one, that at the ends to the first and last', () => {
    expect(sentences('  \n One.  Two.\n\n Three. \n')).toEqual(['  \n One.', '  Two.', '\n\n Three. \n'])
  })

  it('finds none in a text without a visible character', () => {
    expect(segmentSentences('')).toEqual([])
    expect(segmentSentences(' \n\t\u00a0 ')).toEqual([])
  })

  it('covers any text exactly with sentences that can be seen', () => {
    const piece = fc.constantFrom(
      ...[
        '.',
        '!',
        '?',
        '。',
        ' ',
        '\n',
        '\r\n',
        '"',
        '(',
        '[1]',
        'Dr',
        'U.S',
        'a',
        'B',
        '5',
        '😀',
        'é',
        '\u2029',
        '…',
      ],
    )
    const text = fc.oneof(
      fc.array(piece, { maxLength: 60 }).map((parts) => parts.join('')),
      fc.string({ unit: 'binary' }),
    )
    fc.assert(
      fc.property(text, (sample) => {
        const found = sentences(sample)
        expect(found.join('')).toBe(sample.trim() === '' ? '' : sample)
        expect(found.filter((sentence) => sentence.trim() === '')).toEqual([])
      }),
      { numRuns: 2000 },
    )
  })

  it('cuts a long text as it cuts its paragraphs: windows leave no trace', () => {
    const paragraphs = Array.from({ length: 700 }, (_, i) => {
      const words = Array.from({ length: 1 + ((i * 37) % 90) }, (_, k) => `word${(i * k) % 1000}`).join(' ')
      return `Paragraph no. ${i} of the U.S. Senate cost 3${i}.${i} dollars, said Dr. W. ${words}! ${words} (“so?”). It ${words}.`
    })
    const text = paragraphs.join('\n\n')
    expect(text.length).toBeGreaterThan(40 * 4096)
    const apart = paragraphs.flatMap(sentences)
    expect(sentences(text).map((sentence) => sentence.trim())).toEqual(apart.map((sentence) => sentence.trim()))
  })

  it('finds a sentence that is longer than many windows whole, and goes on behind it', () => {
    const long = `Long ${'word '.repeat(20_000)}end.`
    expect(sentences(`First. ${long} Last.`)).toEqual(['First.', ` ${long}`, ' Last.'])
    const digits = `x. ${'1 '.repeat(20_000)}then lower.`
    expect(segmentSentences(digits).length).toBe(1)
  })

  it('takes long texts of any kind in linear time', () => {
    const units = [
      'a sentence of the usual length stands here, with Dr. No. 5 in it. It is a Plain One. ',
      ...['Hi. ', '? 1 ', '. ', '1 ', '\n', '.', 'a', '。', '你好。', '! ', ' ', '"', '?a', 'A. ', '.[1] '],
      `${'word '.repeat(2000)}. A`,
    ]
    for (const [i, unit] of units.entries()) {
      // The first is a megabyte long: segmented in one piece it would not fit into memory.
      const text = unit.repeat(Math.ceil((i === 0 ? 1_000_000 : 200_000) / unit.length))
      const before = process.cpuUsage()
      segmentSentences(text)
      const { user, system } = process.cpuUsage(before)
      expect((user + system) / 1e6, JSON.stringify(unit.slice(0, 20))).toBeLessThan(10)
    }
  })

  it('has a version that names ICU, whose rules it builds on', () => {
    expect(SEGMENTER_VERSION).toContain(process.versions.icu)
  })
})

/** Share of distinct paragraphs whose segmentation is exactly the data's own; see bench/segmentation.mjs. */
function agreement(files: string[], joint: string): number {
  const seen = new Set<string>()
  let same = 0
  for (const file of files) {
    const path = resolve(sharedDir()!, 'data/hotpotqa', file)
    for (const { context } of JSON.parse(readFileSync(path, 'utf8')) as { context: [string, string[]][] }[]) {
      for (const [, own] of context) {
        const text = own.join(joint)
        if (seen.has(text) || text.trim() === '') continue
        seen.add(text)
        const expected = own.map((sentence) => sentence.trim()).filter((sentence) => sentence !== '')
        if (
          sentences(text)
            .map((sentence) => sentence.trim())
            .join('\0') === expected.join('\0')
        )
          same++
      }
    }
  }
  return same / seen.size
}

describe.skipIf(sharedDir() === undefined)(
  "agreement with the data sets' own sentences (needs the shared data)",
  () => {
    it('is 94 % on HotpotQA', () => {
      expect(agreement(['train_distractor.json', 'dev_distractor.json'], '')).toBeGreaterThan(0.94)
    })

    it('is 90 % on 2Wiki', () => {
      expect(agreement(['sibling_2wiki_dev.json'], ' ')).toBeGreaterThan(0.9)
    })
  },
)
