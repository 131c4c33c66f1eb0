import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { checkDataset, type ImportSummary, importLvbench, openDataset } from '../../src/data/index.ts'
import { buildHierarchy, goldLeaves, type Question, type VideoItem } from '../../src/hierarchy/index.ts'
import { canopy, cli } from '../support/cli.ts'
import { sharedDir } from '../support/shared.ts'
import { lines, temporaryFolder } from '../support/temporary.ts'

/** Items name videos that nobody has at hand. */
const VIDEO_IS_MISSING = /^the file "videos\/[^"]*\.mp4" of item "\w+" is not there$/

interface Imported {
  summary: ImportSummary
  questions: Question[]
  items: Map<string, VideoItem>
}

async function importedFrom(inputs: string[], onError?: 'skip'): Promise<Imported> {
  const output = join(temporaryFolder(), 'data')
  const summary = await importLvbench({ inputs, output, split: 'dev', onError })
  const dataset = await openDataset(output)
  const questions: Question[] = []
  const items = new Map<string, VideoItem>()
  for await (const { question } of dataset.questions()) questions.push(question)
  for await (const { item } of dataset.items()) items.set(item.id, item as VideoItem)
  await dataset.close()
  await checkDataset(output, ({ message }) => expect(message).toMatch(VIDEO_IS_MISSING))
  return { summary, questions, items }
}

function files(contents: Record<string, string>): string[] {
  const folder = temporaryFolder()
  return Object.entries(contents).map(([name, content]) => {
    writeFileSync(join(folder, name), content)
    return join(folder, name)
  })
}

const imported = (questions: object[], clips: object[], onError?: 'skip'): Promise<Imported> =>
  importedFrom(files({ 'q.json': JSON.stringify(questions), 'clips.jsonl': lines(...clips) }), onError)

const cut = (video: string, ends: number[], more: object = {}): object => ({
  video,
  split: 'dev',
  clips: ends.map((end, index) => ({ index, start: ends[index - 1] ?? 0, end })),
  ...more,
})

const asked = (time_reference: unknown, more: object = {}): object => ({
  index: 'q1',
  question: 'What does she buy?\n(A) A hat\n(B) A pair of shoes \n(C) Salmon\n(D) Nothing',
  answer: 'B',
  time_reference,
  source: 'lvbench',
  gt_videos: ['dataset/LVBench/videos/abc.mp4'],
  gt_retrieval: 'clip',
  ...more,
})

const extents = ({ questions, items }: Imported): [number, number][] =>
  questions[0]!.gold.map(({ item }) => [items.get(item)!.start, items.get(item)!.end])

const clipsOfAbc = cut('abc', [100, 190, 400.1234])

describe('importing LVBench', () => {
  it('makes an item of every clip of the video, and gold of the one that the time reference lies in', async () => {
    const result = await imported([asked([20, 65])], [clipsOfAbc, cut('other', [50])])
    expect(result.items.size).toBe(3)
    expect(extents(result)).toEqual([[0, 100]])
    const [question] = result.questions
    expect(question).toMatchObject({
      id: 'q1',
      benchmark: 'lvbench',
      split: 'dev',
      answers: ['A pair of shoes'],
      source: 'abc',
      gold: [{ times: [[20, 65]] }],
    })
    const [entry] = question!.gold
    const item = result.items.get(entry!.item)!
    expect(item).toMatchObject({ modality: 'video', video: 'videos/abc.mp4', start: 0, end: 100 })
    expect(goldLeaves(buildHierarchy(item), entry!).gold).toEqual([true, true, true])
  })

  it('maps a reference to every clip that it meets in more than zero length', async () => {
    const result = await imported([asked([95, 195])], [clipsOfAbc])
    expect(extents(result)).toEqual([
      [0, 100],
      [100, 190],
      [190, 400.1234],
    ])
    expect(extents(await imported([asked([95, 100])], [clipsOfAbc]))).toEqual([[0, 100]])
    // seconds with four decimals: a reference to the clip's end reaches past it by less than a millisecond
    expect(extents(await imported([asked([180, 190.0004])], [clipsOfAbc]))).toEqual([[100, 190]])
  })

  it.each([
    ['inside of a clip to that clip', 150, [100, 190], [2]],
    ['on the boundary of two clips to the later', 100, [100, 190], [0]],
    ['at the start to the first', 0, [0, 100], [0]],
    ['at the end of the video to the last', 400.1234, [190, 400.1234], [6]],
  ])('maps a point %s', async (_, at, extent, leaves) => {
    const result = await imported([asked([at, at])], [clipsOfAbc])
    expect(extents(result)).toEqual([extent])
    const [entry] = result.questions[0]!.gold
    const { gold } = goldLeaves(buildHierarchy(result.items.get(entry!.item)!), entry!)
    expect(gold.flatMap((isGold, leaf) => (isGold ? [leaf + (extent[0] === 100 && at === 150 ? 1 : 0)] : []))).toEqual(
      leaves,
    )
  })

  it('takes the last name of a path for the video, wherever the path leads', async () => {
    const climbing = asked([1, 2], { gt_videos: ['../../abc.MP4'] })
    const { items, questions } = await imported([climbing], [cut('/etc/abc.mkv', [50])])
    expect(questions[0]!.source).toBe('abc')
    expect([...items.values()].map(({ video }) => video)).toEqual(['videos/abc.mp4'])
  })

  it('keeps clips of equal times in different videos apart', async () => {
    const other = asked([1, 2], { index: 'q2', gt_videos: ['other.mp4'] })
    const { questions, items } = await imported([asked([1, 2]), other], [cut('abc', [50]), cut('other', [50])])
    expect(new Set(questions.map(({ gold }) => gold[0]!.item)).size).toBe(2)
    expect(items.size).toBe(2)
    expect(questions.map(({ source }) => source)).toEqual(['abc', 'other'])
  })

  it.each([
    ['15:37-15:42', [937, 942]],
    ['0:05 - 1:00:10', [5, 3610]],
    ['01:02:03–01:02:04.5', [3723, 3724.5]],
    ['90:01-90:02', [5401, 5402]],
    ['12', [12, 12]],
    ['2:00', [120, 120]],
    [
      [3, 4.5],
      [3, 4.5],
    ],
  ])('reads the time %j', async (written, times) => {
    const { questions } = await imported([asked(written)], [cut('abc', [6000])])
    expect(questions[0]!.gold).toMatchObject([{ times: [times] }])
  })

  it.each<[string, unknown]>([
    ['1:60-2:00', '1:60-2:00'],
    ['1:60:00', '1:60:00'],
    ['NaN', 'NaN'],
    ['-3', '-3'],
    ['a:b', 'a:b'],
    ['1-2-3', '1-2-3'],
    ['a negative number', [-1, 4]],
    ['three numbers', [1, 2, 3]],
    ['one number', [1]],
    ['reversed', [5, 4]],
    ['reversed text', '0:05-0:04'],
    ['an object', {}],
  ])('stops at a time that is none (%s), naming the place', async (_, written) => {
    await expect(imported([asked(written)], [clipsOfAbc])).rejects.toThrow(/q\.json:1: .*time.?reference/)
  })

  it('counts what it leaves out', async () => {
    const { summary, questions } = await imported(
      [
        asked([1, 2]),
        asked(null, { index: 'no time' }),
        asked(undefined, { index: 'no time either' }),
        asked('', { index: 'nor this' }),
        asked([401, 402], { index: 'late' }),
        asked([400.1234, 500], { index: 'at the end' }),
        asked([401, 401], { index: 'late point' }),
        asked([1, 2], { index: 'elsewhere', gt_videos: ['else.mp4'] }),
        asked([1, 2], { index: 'two', gt_videos: ['abc.mp4', 'else.mp4'] }),
        asked([399, 9999], { index: 'reaches out' }),
      ],
      [clipsOfAbc],
    )
    expect(questions.map(({ id }) => id)).toEqual(['q1', 'reaches out'])
    expect(summary.dropped.map(({ what, reason, count }) => [what, reason, count])).toEqual([
      ['question', 'without a time reference', 3],
      ['question', 'with a time outside of the clips of its video', 3],
      ['question', 'of a video whose clips are not at hand', 1],
      ['question', 'of several videos, one of which its times belong to', 1],
    ])
    expect(summary.dropped[1]!.places[0]).toMatch(/q\.json:1: "late", video "abc", \[401,402\] s$/)
  })

  it('leaves faulty records out when told to, and counts them with their places', async () => {
    const clips = [clipsOfAbc, cut('bad', [5, 4]), { video: 'short', clips: [[1, 1.0001]] }]
    const { summary, questions } = await imported([asked([1, 2]), asked([2, 1], { index: 'q2' })], clips, 'skip')
    expect(questions).toHaveLength(1)
    expect(summary).toMatchObject({ skipped: 3 })
    expect(summary.dropped[0]!.places.map((place) => /(?:q\.json|clips\.jsonl):\d/.exec(place)?.[0])).toEqual([
      'clips.jsonl:2',
      'clips.jsonl:3',
      'q.json:1',
    ])
  })

  it('reads the official layout and its flat copies like the clips’ own', async () => {
    const qa = [
      { uid: 7, question: 'Who?\n(A) Ann\n(B) Bob', answer: 'A', question_type: ['x'], time_reference: '01:35-03:15' },
      { uid: '8', question: 'Who?\n(A) Ann\n(B) Bob', answer: '(B)', time_reference: '1:75-2:00' },
    ]
    const official = { key: 'abc', type: 'cartoon', video_info: { duration_minutes: 7 }, qa }
    const flat = { ...qa[0], uid: '9', video_path: 'abc.mp4' }
    const inputs = files({
      'video_info.meta.jsonl': lines(official),
      'flat.jsonl': lines(flat),
      'clips.jsonl': lines(clipsOfAbc),
    })
    const { questions, summary } = await importedFrom(inputs, 'skip')
    expect(questions.map(({ id, answers }) => [id, answers])).toEqual([
      ['7', ['Ann']],
      ['9', ['Ann']],
    ])
    expect(questions[0]!.gold).toHaveLength(3)
    expect(questions[0]!.gold).toEqual(questions[1]!.gold)
    expect(summary.skipped).toBe(1)
    expect(summary.dropped[0]!.places[0]).toMatch(/meta\.jsonl:1: the time reference of "8" is "1:75-2:00"/)
  })

  it.each([
    ['a video without a name', { video: '/etc/', clips: [[0, 1]] }, /clips\.jsonl:2: "\/etc\/" names no video/],
    ['a name that is none', { video: 'a\0b', clips: [[0, 1]] }, /clips\.jsonl:2: The path/],
    ['no clips', { video: 'x', clips: [] }, /clips\.jsonl:2: .*"clips"/],
    ['a negative time', { video: 'x', clips: [[-1, 1]] }, /clips\.jsonl:2: .*"clips\[0\]/],
    ['a clip of years', { video: 'x', clips: [[0, 1e300]] }, /clips\.jsonl:2: a clip of the video "x"/],
    ['two lists of one video', cut('abc', [7]), /clips\.jsonl:2: the list of clips of the video "abc" has another/],
  ])('stops at %s', async (_, clips, message) => {
    await expect(imported([asked([1, 2])], [clipsOfAbc, clips])).rejects.toThrow(message)
  })

  it('belongs every instant of a video to one clip, and every interval to those it overlaps', async () => {
    const ms = fc.integer({ min: 1, max: 200_000 })
    await fc.assert(
      fc.asyncProperty(fc.uniqueArray(ms, { minLength: 1, maxLength: 6 }), ms, ms, async (cuts, a, b) => {
        const ends = cuts.sort((x, y) => x - y)
        const last = ends.at(-1)!
        const [from, to] = [Math.min(a % (last + 1), b % (last + 1)), Math.max(a % (last + 1), b % (last + 1))]
        const inSeconds = ends.map((end) => end / 1000)
        const result = await imported([asked([from / 1000, to / 1000])], [cut('abc', inSeconds)])
        const starts = ends.map((_, i) => ends[i - 1] ?? 0)
        const expected =
          from === to
            ? [from === last ? ends.length - 1 : starts.findLastIndex((start) => start <= from)]
            : ends.flatMap((end, i) => (Math.max(starts[i]!, from) < Math.min(end, to) ? [i] : []))
        expect(extents(result)).toEqual(expected.map((i) => [starts[i]! / 1000, ends[i]! / 1000]))
        for (const entry of result.questions[0]!.gold) {
          const marked = goldLeaves(buildHierarchy(result.items.get(entry.item)!), entry)
          expect(marked.dropped).toEqual([])
          expect(marked.gold).toContain(true)
        }
      }),
      { numRuns: 40 },
    )
  }, 60_000)
})

it.skipIf(!existsSync(cli))('runs from the command line', async () => {
  const inputs = files({ 'clips.jsonl': lines(clipsOfAbc), 'q.json': JSON.stringify([asked('0:20-1:05')]) })
  const output = join(temporaryFolder(), 'data')
  const args = ['import', 'lvbench', '--input', ...inputs, '--split', 'dev', '--output', output, '--json']
  const { code, stdout } = await canopy(args).finished
  expect(code).toBe(0)
  expect(JSON.parse(stdout)).toMatchObject({ benchmark: 'lvbench', questions: 1, gold: 1, dropped: [] })
})

const shared = sharedDir()

describe.skipIf(shared === undefined)('the staged questions (third-party data beside the repository)', () => {
  const file = (name: string): string => join(shared!, 'data/lvbench', name)

  it.each([
    ['train', { questions: 537, videos: 60 }],
    ['dev', { questions: 292, videos: 34 }],
  ])(
    '%s: every question has its clips, nothing is left out',
    async (split, expected) => {
      const { summary, questions, items } = await importedFrom([file('clips.jsonl'), file(`${split}.json`)])
      expect(summary).toMatchObject({ questions: expected.questions, dropped: [], skipped: 0 })
      expect(new Set(questions.map(({ source }) => source)).size).toBe(expected.videos)
      expect([...items.values()].every(({ modality }) => modality === 'video')).toBe(true)
      for (const { answers } of questions) expect(answers[0]).toMatch(/\S{2}|\d/)
      for (const entry of questions.flatMap(({ gold }) => gold)) {
        const { gold, dropped } = goldLeaves(buildHierarchy(items.get(entry.item)!), entry)
        expect(dropped).toEqual([])
        expect(gold).toContain(true)
      }
    },
    60_000,
  )

  it('have 1989 clips, 16 of them under 30 s, and 91 references that overlap two', async () => {
    const { questions, items } = await importedFrom(['clips.jsonl', 'train.json', 'dev.json'].map(file))
    expect(items.size).toBe(1989)
    expect([...items.values()].filter(({ start, end }) => end - start < 30)).toHaveLength(16)
    expect(questions.filter(({ gold }) => gold.length === 2)).toHaveLength(91)
    expect(questions.every(({ gold }) => gold.length <= 2)).toBe(true)
  }, 60_000)

  it("mark what the paper's published example marks", async () => {
    const cases = JSON.parse(readFileSync(join(shared!, 'data/canopy_cases/cases.json'), 'utf8')) as {
      items: {
        lvbench_index?: string
        unit_seconds?: [number, number][]
        youtube?: { offset: number }
        gold: string[]
      }[]
    }
    const published = cases.items.find((entry) => entry.lvbench_index !== undefined)!
    const { questions, items } = await importedFrom(['clips.jsonl', 'train.json', 'dev.json'].map(file))
    const [entry] = questions.find(({ id }) => id === published.lvbench_index)!.gold
    const item = items.get(entry!.item)!
    const hierarchy = buildHierarchy(item)
    // the page rounds the clip's start, 2026.04 s, to ten seconds
    expect(Math.abs(item.start - published.youtube!.offset)).toBeLessThan(5)
    expect(hierarchy.leaves).toHaveLength(published.unit_seconds!.length)
    const marked = goldLeaves(hierarchy, entry!).gold.flatMap((isGold, leaf) => (isGold ? [`c${leaf}`] : []))
    expect(marked).toEqual(published.gold)
  }, 60_000)
})
