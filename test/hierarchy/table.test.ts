import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  buildHierarchy,
  goldLeaves,
  preOrder,
  renderContent,
  renderHeader,
  renderNode,
  type TableItem,
} from '../../src/hierarchy/index.ts'
import { RUNS } from './arbitrary.ts'

const table = (rows: string[][], more: Partial<TableItem> = {}): TableItem => ({
  id: 't',
  modality: 'table',
  title: 'Lakes',
  caption: 'By depth',
  header: ['Name', 'Depth'],
  rows,
  ...more,
})

const LAKES = table([
  ['Baikal', '1642 m'],
  ['Tanganyika', '1470 m'],
  ['Caspian Sea', '1025 m'],
])

/** The cells of a row of a Markdown table, as GitHub-flavoured Markdown reads them. */
function readMarkdownRow(line: string): string[] {
  expect(line.startsWith('|') && line.endsWith('|')).toBe(true)
  return line
    .slice(1, -1)
    .split(/(?<!\\)\|/)
    .map((cell) => cell.slice(1, -1).replaceAll('\\|', '|').replaceAll('<br>', '\n'))
}

const cell = fc.oneof(fc.string({ maxLength: 8 }), fc.constantFrom('a|b', 'x\ny', 'x\r\ny', '||', '', ' '))

describe('a table', () => {
  it('has its rows as leaves, duplicate, empty and ragged ones too', () => {
    const { leaves, root } = buildHierarchy(table([['a', 'b'], ['a', 'b'], [], ['c', 'd', 'e']]))
    expect(leaves).toEqual([
      [0, 1],
      [1, 2],
      [2, 3],
      [3, 4],
    ])
    expect(root.children.map(({ from, to }) => [from, to])).toEqual([
      [0, 2],
      [2, 4],
    ])
  })

  it('without a row is refused by name', () => {
    expect(() => buildHierarchy(table([]))).toThrow('The table item "t" has no row')
  })

  it('repeats title, caption and column header in every node', () => {
    const hierarchy = buildHierarchy(LAKES)
    for (const node of hierarchy.nodes) {
      const text = renderNode(hierarchy, node, { title: true })
      expect(text.startsWith('Lakes\nBy depth\n| Name | Depth |\n|-|-|\n')).toBe(true)
      expect(text.endsWith('|\n')).toBe(true)
    }
    expect(renderContent(hierarchy, hierarchy.nodes[1]!)).toBe('| Baikal | 1642 m |\n| Tanganyika | 1470 m |\n')
  })

  it('loses title and caption where they are not wanted, never the column header', () => {
    expect(renderHeader(LAKES, { title: false })).toBe('| Name | Depth |\n|-|-|\n')
    expect(renderHeader(table([['x']], { header: [] }), { title: false })).toBe('')
  })

  it('pads its rows and its header to the width of the widest', () => {
    const wide = table([['a'], ['b', 'c', 'd']])
    const hierarchy = buildHierarchy(wide)
    expect(renderNode(hierarchy, hierarchy.root, { title: false })).toBe(
      '| Name | Depth |  |\n|-|-|-|\n| a |  |  |\n| b | c | d |\n',
    )
  })

  it('keeps pipes and line breaks inside their cells', () => {
    const cells = fc.array(cell, { minLength: 1, maxLength: 5 })
    fc.assert(
      fc.property(fc.array(cells, { minLength: 1, maxLength: 6 }), (rows) => {
        fc.pre(rows.every((row) => row.every((text) => !/<br>|\\/.test(text))))
        const hierarchy = buildHierarchy(table(rows, { header: [] }))
        const columns = Math.max(...rows.map((row) => row.length))
        const lines = renderNode(hierarchy, hierarchy.root, { title: false }).split('\n')
        expect(lines.pop()).toBe('')
        expect(lines.map(readMarkdownRow)).toEqual(
          rows.map((row) =>
            Array.from({ length: columns }, (_, c) => (row[c] ?? '').replace(/\r\n|[\n\r\u0085\u2028\u2029]/g, '\n')),
          ),
        )
      }),
      RUNS,
    )
  })

  it('is the same text whole as its nodes put together, at every level', () => {
    const rows = Array.from({ length: 13 }, (_, i) => [`row ${i}`, i % 3 === 0 ? '' : `${i}`])
    for (const branching of [2, 3, 5]) {
      const hierarchy = buildHierarchy(table(rows), branching)
      for (const node of hierarchy.nodes.filter(({ children }) => children.length > 0)) {
        const parts = node.children.map((child) => renderContent(hierarchy, child))
        expect(parts.join('')).toBe(renderContent(hierarchy, node))
      }
    }
  })

  it('is a line of named cells a row in the key-value format, empty cells left out', () => {
    const hierarchy = buildHierarchy(
      table([
        ['Baikal', '1642 m'],
        ['Vänern', '', 'in Sweden'],
      ]),
    )
    expect(renderNode(hierarchy, hierarchy.root, { title: true, tableFormat: 'key-value' })).toBe(
      'Lakes\nBy depth\nName: Baikal; Depth: 1642 m.\nName: Vänern; in Sweden.\n',
    )
  })

  it('takes a format of one\u2019s own', () => {
    const hierarchy = buildHierarchy(LAKES)
    const tableFormat = {
      name: 'csv',
      header: (cells: readonly string[]) => `${cells.join()}\n`,
      row: (cells: readonly string[]) => `${cells.join()}\n`,
    }
    expect(renderNode(hierarchy, hierarchy.nodes[2]!, { title: false, tableFormat })).toBe(
      'Name,Depth\nBaikal,1642 m\n',
    )
  })

  it('of thousands of rows and hundreds of columns has a tree of their logarithm', () => {
    const wide = table(
      Array.from({ length: 5000 }, (_, r) => [`${r}`]),
      { header: Array.from({ length: 300 }, (_, c) => `column ${c}`) },
    )
    const { nodes, root } = buildHierarchy(wide)
    expect(nodes).toHaveLength(9999)
    expect(preOrder(root)[0]).toBe(root)
    expect(renderHeader(wide, { title: false }).split('|').length).toBe(2 * 302 - 1)
  })

  it('has gold in the rows that are named, and drops one that is not there', () => {
    expect(goldLeaves(buildHierarchy(LAKES), { item: 't', rows: [2, 0, 2, 7] })).toEqual({
      gold: [true, false, true],
      dropped: [{ reason: 'row outside the table', annotation: 7 }],
    })
    expect(goldLeaves(buildHierarchy(LAKES), { item: 't', whole: true }).gold).toEqual([true, true, true])
    expect(() => goldLeaves(buildHierarchy(LAKES), { item: 't', spans: [[0, 1]] })).toThrow(
      'Gold for the table item "t" gives spans; give rows or whole.',
    )
  })
})
