import { getEventListeners } from 'node:events'
import { expect, it } from 'vitest'
import { onAborted } from '../../src/support/abort.ts'

it('gives a signal one listener, however many wait for it, and none when all have ended', () => {
  const controller = new AbortController()
  const { signal } = controller
  const heard: number[] = []
  const ends = Array.from({ length: 50 }, (_, n) => onAborted(signal, () => heard.push(n)))
  expect(getEventListeners(signal, 'abort')).toHaveLength(1)
  for (const end of ends.slice(2)) end()
  expect(getEventListeners(signal, 'abort')).toHaveLength(1)
  for (const end of ends.slice(0, 2)) end()
  expect(getEventListeners(signal, 'abort')).toEqual([])
  const end = onAborted(signal, () => heard.push(100))
  onAborted(signal, () => heard.push(101))
  controller.abort()
  end()
  onAborted(signal, () => heard.push(102))
  expect(heard).toEqual([100, 101, 102])
})
