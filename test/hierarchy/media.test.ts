import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  buildHierarchy,
  frameTimes,
  goldLeaves,
  type ImageItem,
  nodeInput,
  readsAsText,
  renderHeader,
  renderNode,
  type VideoItem,
} from '../../src/hierarchy/index.ts'
import { RUNS } from './arbitrary.ts'

const video = (start: number, end: number, more: Partial<VideoItem> = {}): VideoItem => ({
  id: 'v',
  modality: 'video',
  title: 'Blue',
  start,
  end,
  ...more,
})

/** Starts and lengths in seconds with up to three decimals. */
const clip = fc
  .record({ start: fc.nat(10_000_000), length: fc.integer({ min: 1, max: 5_000_000 }) })
  .map(({ start, length }) => video(start / 1000, (start + length) / 1000))

describe('a video', () => {
  it('of 190 seconds has six leaves, the last of 40 seconds', () => {
    const { leaves } = buildHierarchy(video(0, 190))
    expect(leaves).toHaveLength(6)
    expect(leaves[0]).toEqual([0, 30_000])
    expect(leaves[5]).toEqual([150_000, 190_000])
  })

  it.each([
    [0, 5, [[0, 5000]]],
    [0, 44.999, [[0, 44_999]]],
    [
      0,
      45,
      [
        [0, 30_000],
        [30_000, 45_000],
      ],
    ],
    [
      12.5,
      72.5,
      [
        [12_500, 42_500],
        [42_500, 72_500],
      ],
    ],
  ])('from %d to %d seconds has the leaves %j', (start, end, expected) => {
    expect(buildHierarchy(video(start, end)).leaves).toEqual(expected)
  })

  it('is covered by its leaves, which last 30 to under 45 seconds, or 15 for the last', () => {
    fc.assert(
      fc.property(clip, (item) => {
        const { leaves } = buildHierarchy(item)
        expect(leaves[0]![0]).toBe(Math.round(item.start * 1000))
        expect(leaves.at(-1)![1]).toBe(Math.round(item.end * 1000))
        for (const [i, [start, end]] of leaves.entries()) {
          if (i > 0) expect(start).toBe(leaves[i - 1]![1])
          const last = i === leaves.length - 1
          if (!last) expect(end - start).toBe(30_000)
          else if (leaves.length > 1) expect(end - start >= 15_000 && end - start < 45_000).toBe(true)
          else expect(end - start).toBeLessThan(45_000)
        }
      }),
      RUNS,
    )
  })

  it('shorter than a millisecond, or without an end, is refused by name', () => {
    expect(() => buildHierarchy(video(1, 1.0001))).toThrow('The video item "v" goes from 1 s to 1.0001 s')
    expect(() => buildHierarchy(video(0, Number.NaN))).toThrow('The video item "v"')
    expect(() => buildHierarchy(video(0, 1e12))).toThrow('cut it into shorter items')
  })

  it('shows a frame every ten seconds, 32 at most', () => {
    expect(frameTimes(0, 190_000)).toHaveLength(19)
    expect(frameTimes(30_000, 90_000)).toEqual([30_000, 40_000, 50_000, 60_000, 70_000, 80_000])
    expect(frameTimes(5, 10_005)).toEqual([5])
    expect(frameTimes(0, 320_000)).toHaveLength(32)
    expect(frameTimes(0, 320_001)).toHaveLength(32)
    // middles of 32 parts of 20 s
    expect(frameTimes(0, 640_000).slice(0, 3)).toEqual([10_000, 30_000, 50_000])
  })

  it('shows frames inside the node only, in order', () => {
    fc.assert(
      fc.property(clip, (item) => {
        const hierarchy = buildHierarchy(item)
        for (const node of hierarchy.nodes) {
          const [start, end] = [hierarchy.leaves[node.from]![0], hierarchy.leaves[node.to - 1]![1]]
          const { frames } = nodeInput(hierarchy, node, { title: true }).video!
          expect(frames.length >= 1 && frames.length <= 32).toBe(true)
          expect(frames.every((t, i) => t >= start && t < end && (i === 0 || t > frames[i - 1]!))).toBe(true)
        }
      }),
      { numRuns: 100 },
    )
  })

  it('has gold where an annotation meets a leaf in more than zero length', () => {
    const hierarchy = buildHierarchy(video(100, 190))
    const gold = (...times: [number, number][]) => goldLeaves(hierarchy, { item: 'v', times })
    expect(gold([130, 160]).gold).toEqual([false, true, false])
    expect(gold([129.999, 160.001]).gold).toEqual([true, true, true])
    expect(gold([0, 101]).gold).toEqual([true, false, false])
    expect(gold([0, 100])).toEqual({
      gold: [false, false, false],
      dropped: [{ reason: 'time outside the video', annotation: [0, 100] }],
    })
    expect(gold([150, 140]).dropped[0]?.reason).toBe('time that ends before it starts')
    expect(gold([Number.NaN, 140]).dropped[0]?.reason).toBe('time that is no number')
  })

  it('has gold at a point of time in the leaf that contains it: the later on a boundary, the last at the end', () => {
    const hierarchy = buildHierarchy(video(100, 190))
    const at = (time: number): boolean[] => goldLeaves(hierarchy, { item: 'v', times: [[time, time]] }).gold
    expect(at(100)).toEqual([true, false, false])
    expect(at(129.999)).toEqual([true, false, false])
    expect(at(130)).toEqual([false, true, false])
    expect(at(190)).toEqual([false, false, true])
    expect(goldLeaves(hierarchy, { item: 'v', times: [[190.001, 190.001]] }).dropped).toHaveLength(1)
    expect(goldLeaves(hierarchy, { item: 'v', times: [[99.999, 99.999]] }).dropped).toHaveLength(1)
  })
})

describe('an image', () => {
  const image: ImageItem = { id: 'i', modality: 'image', title: 'A cat', image: 'cat.jpg' }

  it('is one node without children, gold when it is named', () => {
    const hierarchy = buildHierarchy(image)
    expect(hierarchy.nodes).toHaveLength(1)
    expect(goldLeaves(hierarchy, { item: 'i', whole: true }).gold).toEqual([true])
    expect(() => goldLeaves(hierarchy, { item: 'i', rows: [0] })).toThrow('give whole')
    expect(nodeInput(hierarchy, hierarchy.root, { title: true })).toEqual({ text: 'A cat', image: 'cat.jpg' })
    expect(nodeInput(hierarchy, hierarchy.root, { title: false }).text).toBe('')
  })

  it('is never given to an encoder as text; nor is a video', () => {
    for (const item of [image, video(0, 60)]) {
      const hierarchy = buildHierarchy(item)
      expect(readsAsText(item)).toBe(false)
      expect(() => renderNode(hierarchy, hierarchy.root, { title: true })).toThrow('the encoder reads only text')
      expect(() => renderHeader(item, { title: true })).toThrow('the encoder reads only text')
    }
  })
})
