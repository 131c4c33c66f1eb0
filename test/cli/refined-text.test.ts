import { stripVTControlCharacters } from 'node:util'
import { describe, expect, it } from 'vitest'
import { refinedText } from '../../src/cli/refined-text.ts'
import type { RefinedItem } from '../../src/encoder/index.ts'

const node = (from: number, to: number, score: number, truncated = false) => ({
  ...{ from, to, start: from, end: to, score, truncated },
})
const item: RefinedItem = {
  ...{ title: 'Otters', modality: 'table', leaves: 2 },
  kept: [{ from: 1, to: 2, start: 1, end: 2, text: '| b |\n', score: 0.5 }],
  nodes: [node(0, 2, 0.25, true), node(0, 1, 0.125), node(1, 2, 0.5)],
}
/** Without colours. */
const plain = (text: string): string[] => stripVTControlCharacters(text).split('\n')

describe('a refined item for a terminal', () => {
  it('marks the regions that were cut, and has the header of a table in front of its rows', () => {
    expect(plain(refinedText(item, ['| a |\n', '| b |\n'], '| letter |'))).toEqual([
      'Otters',
      '[0, 2)  0.2500  replaced  ✂',
      '  [0, 1)  0.1250  dropped',
      '  [1, 2)  0.5000  kept',
      '  | letter |',
      '- | a |',
      '+ | b |',
    ])
  })

  it('has no heading where none is given', () => {
    expect(plain(refinedText(item, ['a', 'b']))).toHaveLength(6)
  })

  it('tells what only the margin lets in from what the rule keeps', () => {
    const four: RefinedItem = {
      ...{ modality: 'text', leaves: 4 },
      kept: [
        { from: 0, to: 2, start: 0, end: 2, text: 'a b', score: 0.375 },
        { from: 2, to: 3, start: 2, end: 3, text: 'c', score: 0.75 },
      ],
      nodes: [
        ...[node(0, 4, 0.5), node(0, 2, 0.375), node(0, 1, 0.125), node(1, 2, 0.25)],
        ...[node(2, 4, 0.625), node(2, 3, 0.75), node(3, 4, 0.125)],
      ],
    }
    expect(plain(refinedText(four, ['a', 'b', 'c', 'd']))).toEqual([
      '[0, 4)  0.5000  replaced',
      '  [0, 2)  0.3750  kept (margin)',
      '  [2, 4)  0.6250  replaced',
      '    [2, 3)  0.7500  kept',
      '    [3, 4)  0.1250  dropped',
      '~ a',
      '~ b',
      '+ c',
      '- d',
    ])
  })
})
