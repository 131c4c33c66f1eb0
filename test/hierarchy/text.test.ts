import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  buildHierarchy,
  type GoldEntry,
  goldLeaves,
  leafExtents,
  locateQuote,
  type OffsetUnit,
  renderHeader,
  renderNode,
  type TextItem,
  toUtf16Offsets,
} from '../../src/hierarchy/index.ts'
import { InputError } from '../../src/support/errors.ts'
import { range } from './arbitrary.ts'

const item = (text: string, sentences?: [number, number][]): TextItem => ({
  id: 'x',
  modality: 'text',
  title: 'Title',
  text,
  ...(sentences !== undefined && { sentences }),
})

const cut = (text: string, sentences?: [number, number][]): string[] =>
  leafExtents(item(text, sentences)).map(([start, end]) => text.slice(start, end))

describe('leafExtents', () => {
  it('segments a text without sentences of its own', () => {
    expect(cut('One. Two.')).toEqual(['One.', ' Two.'])
  })

  it('takes supplied sentences, gaps of white space going to the later one, first and last reaching the ends', () => {
    const sentences: [number, number][] = [
      [1, 4],
      [6, 9],
      [9, 13],
    ]
    expect(cut(' a b  c d e f ', sentences)).toEqual([' a b', '  c d', ' e f '])
  })

  it('has no leaf for an empty sentence, nor for one of white space', () => {
    const sentences: [number, number][] = [
      [0, 0],
      [0, 4],
      [4, 5],
      [5, 5],
      [5, 9],
    ]
    expect(cut('One. Two.', sentences)).toEqual(['One.', ' Two.'])
  })

  it('refuses sentences that do not fit the text, naming item and place', () => {
    const refused: [[number, number][], string][] = [
      [[[0, 10]], 'Sentence 0 [0, 10) of item "x" is not a range within the text of 9'],
      [[[-1, 4]], 'Sentence 0 [-1, 4)'],
      [[[4, 0]], 'Sentence 0 [4, 0)'],
      [[[0, 1.5]], 'Sentence 0 [0, 1.5)'],
      [
        [
          [0, 5],
          [4, 9],
        ],
        'Sentence 1 [4, 9) of item "x" starts before the previous one ends (5)',
      ],
      [[[0, 4]], 'leave out " Two."'],
      [[[5, 9]], 'leave out "One. "'],
      [
        [
          [0, 3],
          [5, 9],
        ],
        'leave out ". "',
      ],
    ]
    for (const [sentences, message] of refused) {
      expect(() => leafExtents(item('One. Two.', sentences))).toThrow(InputError)
      expect(() => leafExtents(item('One. Two.', sentences))).toThrow(message)
    }
    const halves: [number, number][] = [
      [0, 1],
      [1, 2],
    ]
    expect(() => leafExtents(item('😀', halves))).toThrow('cuts a character in two')
  })

  it('refuses an item without a leaf', () => {
    for (const text of ['', ' \n ']) expect(() => leafExtents(item(text))).toThrow('Item "x" has no leaf')
    expect(() => leafExtents(item(' ', [[0, 1]]))).toThrow('Item "x" has no leaf')
    expect(() => leafExtents(item('', []))).toThrow('Item "x" has no leaf')
  })
})

describe('buildHierarchy', () => {
  it('grows the tree over the leaves, nodes in pre-order', () => {
    const { leaves, nodes, root } = buildHierarchy(item('One. Two. Three.'))
    expect(leaves).toEqual([
      [0, 4],
      [4, 9],
      [9, 16],
    ])
    expect(nodes[0]).toBe(root)
    expect(nodes.map(range)).toEqual([
      [0, 3],
      [0, 2],
      [0, 1],
      [1, 2],
      [2, 3],
    ])
    expect(buildHierarchy(item('One. Two. Three.'), 3).root.children.length).toBe(3)
  })
})

describe('rendering', () => {
  const hierarchy = buildHierarchy(item('  One. Two.\n\nThree. '))
  const rendered = (title: boolean): string[] => hierarchy.nodes.map((node) => renderNode(hierarchy, node, { title }))

  it('is the title, a line feed and the exact substring', () => {
    expect(rendered(true)).toEqual([
      'Title\n  One. Two.\n\nThree. ',
      'Title\n  One. Two.',
      'Title\n  One.',
      'Title\n Two.',
      'Title\n\n\nThree. ',
    ])
    expect(renderHeader(hierarchy.item, { title: true })).toBe('Title\n')
  })

  it('drops the title where it is not wanted or not there', () => {
    expect(rendered(false)[3]).toBe(' Two.')
    const { title: _, ...untitled } = item('One.')
    const alone = buildHierarchy(untitled)
    expect(renderNode(alone, alone.root, { title: true })).toBe('One.')
  })

  it('refuses a node of another tree', () => {
    expect(() => renderNode(hierarchy, { from: 0, to: 9, children: [] }, { title: true })).toThrow(RangeError)
  })
})

describe('goldLeaves', () => {
  const text = 'One sits.  Two stands. Three runs.\nFour.'
  const hierarchy = buildHierarchy(item(text))
  const gold = (entry: Record<string, unknown>) => {
    const marked = goldLeaves(hierarchy, { item: 'x', ...entry } as GoldEntry)
    return { leaves: marked.gold.flatMap((is, leaf) => (is ? [leaf] : [])), dropped: marked.dropped }
  }

  it('marks the leaves that a span meets in more than zero length', () => {
    expect(gold({ spans: [[0, 3]] })).toEqual({ leaves: [0], dropped: [] })
    expect(gold({ spans: [[4, 14]] }).leaves).toEqual([0, 1])
    expect(
      gold({
        spans: [
          [0, 1],
          [text.length - 1, text.length],
        ],
      }).leaves,
    ).toEqual([0, 3])
    expect(gold({ spans: [[0, text.length]] }).leaves).toEqual([0, 1, 2, 3])
    // up to the boundary, and from it
    expect(gold({ spans: [[0, 9]] }).leaves).toEqual([0])
    expect(gold({ spans: [[9, 22]] }).leaves).toEqual([1])
  })

  it('trims white space first, so that a blank does not make a leaf gold', () => {
    expect(gold({ spans: [[0, 11]] }).leaves).toEqual([0])
    expect(gold({ spans: [[22, 40]] }).leaves).toEqual([2, 3])
  })

  it('clips spans to the text, and drops with a reason what is then empty', () => {
    expect(
      gold({
        spans: [
          [-5, 3],
          [36, 99],
        ],
      }),
    ).toEqual({ leaves: [0, 3], dropped: [] })
    const spans = [
      [9, 11],
      [4, 4],
      [40, 50],
      [-4, 0],
      [7, 5],
    ]
    expect(gold({ spans })).toEqual({
      leaves: [],
      dropped: [
        { reason: 'span of white space only', annotation: [9, 11] },
        { reason: 'empty span', annotation: [4, 4] },
        { reason: 'span outside the text', annotation: [40, 50] },
        { reason: 'span outside the text', annotation: [-4, 0] },
        { reason: 'span ends before it starts', annotation: [7, 5] },
      ],
    })
  })

  it('agrees with looking at every leaf', () => {
    fc.assert(
      fc.property(fc.nat(text.length), fc.nat(text.length), (a, b) => {
        const [start, end] = [Math.min(a, b), Math.max(a, b)]
        const inside = [...text.slice(start, end)]
          .map((c, i) => (c.trim() === '' ? -1 : start + i))
          .filter((i) => i >= 0)
        const expected = hierarchy.leaves.flatMap(([from, to], leaf) => {
          const first = inside[0] ?? 0
          const last = inside.at(-1) ?? -1
          return Math.max(from, first) < Math.min(to, last + 1) ? [leaf] : []
        })
        expect(gold({ spans: [[start, end]] }).leaves).toEqual(expected)
      }),
    )
  })

  it('checks the text that a span expects', () => {
    expect(gold({ spans: [[11, 14, 'Two']] }).leaves).toEqual([1])
    expect(() => gold({ spans: [[10, 13, 'Two']] })).toThrow('expects "Two", but the text there is " Tw"')
  })

  it('finds quotes, and takes "whole" for every leaf', () => {
    expect(gold({ quotes: ['stands. Three', 'Four'] }).leaves).toEqual([1, 2, 3])
    expect(gold({ whole: true }).leaves).toEqual([0, 1, 2, 3])
    expect(() => gold({ quotes: ['Five'] })).toThrow(InputError)
  })

  it('refuses rows and times for a text', () => {
    expect(() => gold({ rows: [0] })).toThrow('Gold for the text item "x" gives rows')
    expect(() => gold({ times: [[0, 1]] })).toThrow('gives times')
  })
})

describe('offsets', () => {
  const text = 'Ä 😀 said:\r\n“Go!”\r\nThen 👩‍👩‍👧 left, and 漢字 stayed. The end.\r\n'
  const wanted = '👩‍👩‍👧 left, and 漢字'
  const start = text.indexOf(wanted)
  const measure: Record<OffsetUnit, (part: string) => number> = {
    utf16: (part) => part.length,
    codepoint: (part) => [...part].length,
    byte: (part) => Buffer.byteLength(part),
  }

  it('give the same gold leaves in every unit, and as a quote', () => {
    const hierarchy = buildHierarchy(item(text))
    const byQuote = goldLeaves(hierarchy, { item: 'x', quotes: [wanted] }).gold
    expect(byQuote.filter(Boolean).length).toBe(1)
    for (const unit of ['utf16', 'codepoint', 'byte'] as const) {
      const from = measure[unit](text.slice(0, start))
      const spans = toUtf16Offsets(text, unit, [[from, from + measure[unit](wanted)]])
      expect(spans).toEqual([[start, start + wanted.length]])
      expect(goldLeaves(hierarchy, { item: 'x', spans }).gold).toEqual(byQuote)
    }
  })

  it('are converted exactly for any text', () => {
    const cut = fc.tuple(fc.array(fc.string({ unit: 'grapheme' })), fc.nat(), fc.nat())
    fc.assert(
      fc.property(cut, ([parts, a, b]) => {
        const whole = parts.join('')
        const places = [a, b].map((n) => n % (parts.length + 1)).sort((x, y) => x - y) as [number, number]
        const [from, to] = places.map((n) => parts.slice(0, n).join('')) as [string, string]
        for (const unit of ['utf16', 'codepoint', 'byte'] as const) {
          const span: [number, number] = [measure[unit](from), measure[unit](to)]
          expect(toUtf16Offsets(whole, unit, [span])).toEqual([[from.length, to.length]])
        }
      }),
    )
  })

  it('outside the text, inverted or inside a character are errors', () => {
    expect(() => toUtf16Offsets('é😀', 'byte', [[0, 7]])).toThrow('within the text of 6 bytes')
    expect(() => toUtf16Offsets('é😀', 'codepoint', [[0, 3]])).toThrow('within the text of 2 code points')
    expect(() => toUtf16Offsets('é😀', 'utf16', [[2, 1]])).toThrow('Span [2, 1)')
    expect(() => toUtf16Offsets('é😀', 'byte', [[1, 2]])).toThrow('Byte offset 1 lies inside a character')
    expect(() => toUtf16Offsets('é😀', 'byte', [[0.5, 2]])).toThrow(InputError)
  })
})

describe('locateQuote', () => {
  it('gives the one place of a quote', () => {
    expect(locateQuote('a b c', 'b c')).toEqual([2, 5])
  })

  it('lists the places of an ambiguous one, overlapping ones too', () => {
    expect(() => locateQuote('one or one', 'one')).toThrow(/several places: \[0, 3\).*\[7, 10\)/)
    expect(() => locateQuote('aaa', 'aa')).toThrow('several places')
    expect(() => locateQuote('ab '.repeat(50), 'ab')).toThrow(/; …\. Quote more/)
  })

  it('lists near misses of an absent one', () => {
    expect(() => locateQuote('The Red\n fox (2) ran.', 'the red fox (2)')).toThrow(
      /not in the text letter for letter; close to it: \[0, 16\)/,
    )
    expect(() => locateQuote('The fox.', 'a cat')).toThrow('nor anything that differs only in case or white space')
    expect(() => locateQuote('The fox.', ' ')).toThrow('at least one visible character')
  })
})
