import { join } from 'node:path'
import { z } from 'zod'
import { buildHierarchy, type GoldEntry, milliseconds, type Question, type VideoItem } from '../../hierarchy/index.ts'
import { InputError } from '../../support/errors.ts'
import { resolveInside } from '../../support/files.ts'
import { contentId } from '../ids.ts'
import { type Place, parseWith } from '../schema.ts'
import { type ImportJob, type ImportOptions, type ImportSummary, runImport } from './common.ts'
import { firstRecord, readAnyRecords } from './documents.ts'
import { openShelf, type Shelf } from './shelf.ts'
import { parseTimes } from './times.ts'

const BENCHMARK = 'lvbench'
/** Where a dataset keeps the videos. */
const VIDEO_FOLDER = 'videos'

/**
 * Imports LVBench (Wang et al. 2024) with its videos cut into clips, as UniversalRAG (Yeo et al. 2025) does. The inputs, in any
 * order, each known by its content:
 *
 * - **clips**, one video a line: `video`, `clips` [{`start`, `end`}, …] or [[start, end], …] in seconds, `title` if there is one;
 * - **questions** in any of three forms: UniversalRAG's (`index`, `question`, `answer`, `time_reference` [start, end] in
 *   seconds, `gt_videos`), the official `video_info.meta.jsonl` (one video a line: `key` and `qa`, a list of `uid`,
 *   `question`, `answer`, `time_reference` "mm:ss-mm:ss"), or its flat copies (`uid`, …, `video_path`).
 *
 * A clip is a video item of the file `videos/<video>.mp4` in the dataset's folder, which is not looked for; every clip of a
 * video that a question names is there. A question's gold are all clips that its time reference meets in more than zero
 * length. A point of time belongs to the clip that contains it: on the boundary of two, the later one, and at the end of a clip
 * that none follows, that clip. Times are compared in whole milliseconds and stored as they are given, on the source video's
 * clock. `source` is the video. The question is kept as it is written, options and all; the answer is the text of the
 * option that its letter names. Questions without a time reference, of several videos, of a video without clips, or with a time
 * outside of its clips are dropped and counted.
 *
 * @throws InputError with file and line: a broken record, a time that is negative, reversed or no time, a clip shorter than a
 *   millisecond, a video with two lists of clips
 */
export function importLvbench(options: ImportOptions & { split: string }): Promise<ImportSummary> {
  const target = {
    benchmark: BENCHMARK,
    source: 'LVBench (Wang et al. 2024), clips as of UniversalRAG (Yeo et al. 2025)',
    licence: 'CC BY-NC-SA 4.0',
  }
  return runImport(BENCHMARK, options, target, async (job) => {
    const shelf = await openShelf(options.output)
    try {
      const questions: string[] = []
      for (const file of options.inputs) {
        if (!isClips(await firstRecord(file, job.reading))) {
          questions.push(file)
          continue
        }
        for await (const { value, line } of readAnyRecords(file, job.reading)) {
          await job.record(() => shelveClips(value, { file, line }, options.output, shelf))
        }
      }
      const added = new Set<string>()
      for (const file of questions) {
        for await (const { value, line } of readAnyRecords(file, job.reading)) {
          const place = { file, line }
          for (const read of questionsIn(value, place)) {
            await job.record(async () => importQuestion(read(), place, options.split, shelf, added, job))
          }
        }
      }
    } finally {
      await shelf.close()
    }
  })
}

const isClips = (value: unknown): boolean =>
  value !== null && typeof value === 'object' && 'clips' in value && 'video' in value

const seconds = z.number().min(0)
const clipsSchema = z.object({
  video: z.string().min(1),
  title: z.string().optional(),
  clips: z
    .array(
      z.union(
        [
          z.object({ start: seconds, end: seconds }),
          z.tuple([seconds, seconds]).transform(([start, end]) => ({ start, end })),
        ],
        { error: 'expected {"start", "end"} or [start, end], in seconds from 0' },
      ),
    )
    .min(1),
})

async function shelveClips(value: unknown, place: Place, output: string, shelf: Shelf): Promise<void> {
  const { video, title, clips } = parseWith(clipsSchema, value, place, 'list of lvbench clips')
  const id = videoId(video, place)
  const items = clips.map(({ start, end }): VideoItem => {
    const content = {
      modality: 'video' as const,
      ...(title !== undefined && title.trim() !== '' && { title: title.trim() }),
      video: videoPath(id, output, place),
      start,
      end,
    }
    const item = { id: contentId(content), ...content }
    requireLeaves(item, id, place)
    return item
  })
  await shelf.put(id, items, place, `the list of clips of the video "${id}"`)
}

function requireLeaves(item: VideoItem, video: string, place: Place): void {
  try {
    buildHierarchy(item)
  } catch (error) {
    if (!(error instanceof InputError)) throw error
    throw new InputError(`a clip of the video "${video}": ${error.message}`, place, error)
  }
}

/** `gbDR39yIs3Y` of `dataset/LVBench/videos/gbDR39yIs3Y.mp4`. */
function videoId(path: string, place: Place): string {
  const id = path.replace(/^.*[\\/]/s, '').replace(/\.(?:mp4|mkv|webm|avi|mov|m4v)$/i, '')
  if (id === '') throw new InputError(`${JSON.stringify(path)} names no video`, place)
  return id
}

function videoPath(id: string, output: string, place: Place): string {
  const name = `${id}.mp4`
  try {
    resolveInside(join(output, VIDEO_FOLDER), name)
  } catch (error) {
    if (!(error instanceof InputError)) throw error
    throw new InputError(error.message, place, error)
  }
  return `${VIDEO_FOLDER}/${name}`
}

/** A question in the one form that the three are brought into. */
interface Asked {
  id: string
  question: string
  answer: string | undefined
  /** As it is written; absent where the record gives none. */
  times: string | number[] | undefined
  videos: string[]
}

const recordId = z.union([z.string().min(1), z.number()]).transform(String)
const asked = {
  question: z.string().min(1),
  answer: z.union([z.string(), z.number()]).transform(String).optional(),
  time_reference: z
    .union([z.string(), z.array(z.number())], { error: 'expected [start, end] in seconds or "mm:ss-mm:ss"' })
    .nullish(),
}
const universalSchema = z.object({ ...asked, index: recordId, gt_videos: z.array(z.string().min(1)).min(1) })
const officialSchema = z.object({ ...asked, uid: recordId })
const flatSchema = officialSchema.extend({
  video_path: z.string().min(1).optional(),
  key: z.string().min(1).optional(),
})
const pageSchema = z.object({ key: z.string().min(1), qa: z.array(z.unknown()) })

/** The questions of a record, each to be read by itself: a fault in one leaves the others. */
function questionsIn(value: unknown, place: Place): (() => Asked)[] {
  const keys = value !== null && typeof value === 'object' ? value : {}
  if ('qa' in keys) {
    const page = pageSchema.safeParse(value)
    if (!page.success) return [() => reject(value, place)]
    const { key, qa } = page.data
    return qa.map((one) => () => {
      const record = parseWith(officialSchema, one, place, `lvbench question of the video "${key}"`)
      return toAsked(record.uid, record, [key])
    })
  }
  if ('gt_videos' in keys) {
    return [
      () => {
        const record = parseWith(universalSchema, value, place, 'lvbench question')
        return toAsked(record.index, record, record.gt_videos)
      },
    ]
  }
  if ('uid' in keys) {
    return [
      () => {
        const record = parseWith(flatSchema, value, place, 'lvbench question')
        const video = record.key ?? record.video_path
        if (video === undefined) throw new InputError(`the question "${record.uid}" names no "video_path"`, place)
        return toAsked(record.uid, record, [video])
      },
    ]
  }
  return [
    () => {
      throw new InputError(
        'no known form of an LVBench record: "gt_videos", "qa", or "uid" with "video_path" was expected, or "video" with "clips"',
        place,
      )
    },
  ]
}

function reject(value: unknown, place: Place): never {
  parseWith(pageSchema, value, place, 'lvbench video')
  throw new InputError('not a valid lvbench video', place)
}

const toAsked = (
  id: string,
  { question, answer, time_reference }: Pick<z.infer<typeof officialSchema>, 'question' | 'answer' | 'time_reference'>,
  videos: string[],
): Asked => ({ id, question, answer, times: time_reference ?? undefined, videos })

async function importQuestion(
  { id, question, answer, times: written, videos }: Asked,
  place: Place,
  split: string,
  shelf: Shelf,
  added: Set<string>,
  job: ImportJob,
): Promise<void> {
  const drop = (reason: string, detail: string): void => job.drop('question', reason, place, `"${id}", ${detail}`)
  const video = videoId(videos[0]!, place)
  if (written === undefined || (typeof written === 'string' && written.trim() === '')) {
    drop('without a time reference', `video "${video}"`)
    return
  }
  const times = parseTimes(written, `the time reference of "${id}"`, place)
  if (new Set(videos.map((path) => videoId(path, place))).size > 1) {
    drop('of several videos, one of which its times belong to', `videos ${videos.join(', ')}`)
    return
  }
  const found = await shelf.get(video)
  if (found === undefined) {
    drop('of a video whose clips are not at hand', `video "${video}"`)
    return
  }
  const clips = found.value as VideoItem[]
  const met = clipsAt(clips, times)
  if (met.length === 0) {
    drop('with a time outside of the clips of its video', `video "${video}", [${times}] s`)
    return
  }
  if (!added.has(video)) {
    for (const clip of clips) await job.addItem(clip, found.place)
    added.add(video)
  }
  const gold = [...new Set(met.map((clip) => clip.id))].map((item): GoldEntry => ({ item, times: [times] }))
  const entry: Question = {
    id,
    benchmark: BENCHMARK,
    split,
    question,
    answers: answer === undefined ? [] : [answerText(question, answer)],
    source: video,
    gold,
  }
  await job.addQuestion(entry, place)
}

/** The clips that `[from, to]` meets in more than zero length; of a point, those that it belongs to. */
function clipsAt(clips: readonly VideoItem[], [from, to]: [number, number]): VideoItem[] {
  const [first, last] = [milliseconds(from), milliseconds(to)]
  const start = (clip: VideoItem): number => milliseconds(clip.start)
  const end = (clip: VideoItem): number => milliseconds(clip.end)
  if (first < last) return clips.filter((clip) => start(clip) < last && first < end(clip))
  const containing = clips.filter((clip) => start(clip) <= first && first < end(clip))
  return containing.length > 0 ? containing : clips.filter((clip) => end(clip) === first)
}

/** The text of the option that a letter names, `(B) a red car`; an answer that names none is its own text. */
function answerText(question: string, answer: string): string {
  const letter = /^\s*\(?([A-Za-z])\)?\.?\s*$/.exec(answer)?.[1]?.toUpperCase()
  if (letter === undefined) return answer
  for (const [, option, text] of question.matchAll(/^[ \t]*\(?([A-Z])[).][ \t]*(.*\S)[ \t]*$/gm)) {
    if (option === letter) return text!
  }
  return answer
}
