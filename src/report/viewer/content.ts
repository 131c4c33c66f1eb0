import { frameTimes } from '../../hierarchy/index.ts'
import type { Thumbnail, ViewerItem } from '../viewer-data.ts'
import { h } from './dom.ts'
import { clock } from './words.ts'

/** What a leaf of a text, a video or an image shows beside the tree. */
export function leafContent(item: ViewerItem, leaf: number): Node {
  switch (item.modality) {
    case 'text':
      return h(
        'span',
        { class: 'sentence' },
        h('span', { class: 'number' }, String(leaf + 1)),
        item.leaves[leaf]!.trim(),
      )
    case 'video': {
      const [from, to] = item.segments[leaf]!
      const frame = item.frames?.[leaf]
      return h(
        'span',
        { class: 'segment' },
        frame ? picture(frame, '') : undefined,
        h(
          'span',
          {},
          h('strong', {}, `${clock(from)}–${clock(to)}`),
          h('small', {}, `frames at ${frameTimes(from, to).map(clock).join(' ')}`),
        ),
      )
    }
    case 'image':
      return h(
        'span',
        { class: 'segment' },
        item.picture ? picture(item.picture, item.title ?? item.path) : undefined,
        h('small', {}, item.path),
      )
    case 'table':
      return h('span')
  }
}

/** The same in words, for a leaf of any kind. */
export function leafWords(item: ViewerItem, leaf: number): string {
  switch (item.modality) {
    case 'text':
      return item.leaves[leaf]!.trim()
    case 'table':
      return item.rows[leaf]!.join('; ')
    default:
      return ''
  }
}

function picture({ src, width, height }: Thumbnail, alt: string): HTMLImageElement {
  return h('img', { src, width, height, alt })
}

/** The table of an item; its rows carry the number of their leaf. */
export function itemTable(item: Extract<ViewerItem, { modality: 'table' }>): HTMLTableElement {
  const columns = Math.max(item.header.length, ...item.rows.map((row) => row.length))
  const cells = (row: readonly string[]): string[] => Array.from({ length: columns }, (_, i) => row[i] ?? '')
  const caption = item.caption === undefined ? undefined : h('caption', {}, item.caption)
  return h(
    'table',
    {},
    caption,
    h(
      'thead',
      {},
      h('tr', {}, h('th', { scope: 'col' }, '#'), ...cells(item.header).map((cell) => h('th', { scope: 'col' }, cell))),
    ),
    h(
      'tbody',
      {},
      ...item.rows.map((row, leaf) =>
        h('tr', {}, h('th', { scope: 'row' }, String(leaf + 1)), ...cells(row).map((cell) => h('td', {}, cell))),
      ),
    ),
  )
}
