import { describe, expect, it } from 'vitest'
import { inspected } from '../../src/cli/check-encoder.ts'
import { type InputReader, UnreadableError } from '../../src/encoder/index.ts'
import { buildHierarchy } from '../../src/hierarchy/index.ts'
import type { Progress } from '../../src/support/progress.ts'

type Event = Parameters<Progress>[0]

/** A reader that gives every node as many tokens as its text has characters, and cannot read the item `bad`. */
function readerOf(multimodal: boolean): InputReader {
  return {
    ...{ padId: 0, maxLength: 8, vocabularySize: 9, multimodal, features: undefined, count: () => 0 },
    async encode(inputs, _, { onProgress } = {}) {
      return inputs.map(({ text, images = [] }, i) => {
        if (images.some((path) => path.endsWith('bad.png'))) throw new UnreadableError('damaged')
        onProgress?.({ phase: 'pictures and videos', done: i + 1, total: inputs.length })
        return { sequence: { ids: new Int32Array(text.length) }, truncated: false }
      })
    },
    async close() {},
  }
}

const look = (multimodal: boolean, events: Event[]) =>
  inspected(
    { id: 'e', reader: readerOf(multimodal), rendering: { title: false } },
    '/data',
    (event) => events.push(event),
    new AbortController().signal,
  )
const image = (id: string) => buildHierarchy({ id, modality: 'image', image: `${id}.png` }, 2)

describe('what an encoder makes of nodes', () => {
  it('has their lengths, and each item that cannot be read once', async () => {
    const { encoder, unreadable } = look(true, [])
    const tree = buildHierarchy({ id: 't', modality: 'text', text: 'One. Three.' }, 2)
    expect((await encoder.encode(tree))!.map(({ length }) => length)).toEqual([11, 4, 7])
    for (let i = 0; i < 2; i++) expect(await encoder.encode(image('bad'))).toBeUndefined()
    expect(unreadable).toEqual([{ item: 'bad', reason: 'damaged' }])
  })

  it('is told as the visual features that take the time, with the node of an item', async () => {
    const events: Event[] = []
    const { encoder, onProgress } = look(true, events)
    onProgress({ phase: 'walking the gold', done: 3, total: 7 })
    await encoder.encode(image('good'))
    expect(events).toEqual([
      { phase: 'visual features', done: 3, total: 7 },
      { phase: 'visual features', done: 3, total: 7, note: 'node 1 of 1' },
    ])
    const texts: Event[] = []
    look(false, texts).onProgress({ phase: 'walking the gold', done: 3, total: 7 })
    expect(texts).toEqual([{ phase: 'walking the gold', done: 3, total: 7 }])
  })
})
