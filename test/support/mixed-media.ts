import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import sharp from 'sharp'
import { sharedDir } from './shared.ts'
import { lines } from './temporary.ts'

/** Seconds of the videos: four segments, and three of which the last is longer. */
const LASTS = [120, 100]

/** Writes pictures and videos under `folder`; the videos are real clips over and over, or drawn where those are not at hand. */
export async function writeMedia(folder: string): Promise<void> {
  mkdirSync(folder, { recursive: true })
  for (const [i, background] of ['#a03020', '#2030a0', '#20a030', '#e0e0e0'].entries())
    await sharp({ create: { width: 96 + 32 * i, height: 64, channels: 3, background } }).toFile(
      join(folder, `square-${i}.png`),
    )
  for (const [i, seconds] of LASTS.entries()) {
    const once = join(folder, `once-${i}.mp4`)
    ffmpeg([...videoSource(i), '-vf', 'scale=96:64,fps=2', '-an', once])
    ffmpeg(['-stream_loop', '-1', '-i', once, '-t', String(seconds), '-c', 'copy', join(folder, `clip-${i}.mp4`)])
    rmSync(once)
  }
}

function ffmpeg(args: string[]): void {
  execFileSync('ffmpeg', ['-v', 'error', '-y', ...args])
}

function videoSource(i: number): string[] {
  const clip = join(sharedDir() ?? '', 'data', 'media', ['bigbuckbunny.mp4', 'cockatoo.mp4'][i]!)
  if (existsSync(clip)) return ['-i', clip]
  console.warn(`${clip} is not there: a drawn video takes its place`)
  return ['-f', 'lavfi', '-i', `testsrc=size=160x90:rate=4:duration=${10 + i}`]
}

/** Items of every modality with their questions, a line each, for `canopy import jsonl`; files lie in `media/`. */
export function mixedRecords(split: string): string {
  const records: object[] = []
  const ask = (id: string, question: string, gold: object, source: string): void => {
    records.push({ id: `${split}-${id}`, question, source: `${split} ${source}`, answers: ['yes'], gold: [gold] })
  }
  for (let i = 0; i < 4; i++) {
    const text = ['north', 'south', 'east', 'west']
      .map((side, s) => `The ${side} room ${i} has ${s + i} doors.`)
      .join(' ')
    const item = `${split}-text-${i}`
    records.push({ id: item, title: `House ${i}`, text })
    const quote = `The ${['north', 'south', 'east', 'west'][i]} room ${i} has ${2 * i} doors.`
    ask(`text-${i}`, `How many doors has room ${i}?`, { item, quotes: [quote] }, `text ${i}`)
  }
  for (let i = 0; i < 2; i++) {
    const item = `${split}-table-${i}`
    const rows = [1, 2, 3, 4].map((row) => [`boat ${row}`, String(10 * row + i)])
    records.push({ id: item, modality: 'table', title: `Boats ${i}`, header: ['name', 'length'], rows })
    ask(`table-${i}`, `How long is boat ${i + 1}?`, { item, rows: [i] }, `table ${i}`)
  }
  for (let i = 0; i < 2; i++) {
    const item = `${split}-image-${i}`
    const image = `media/square-${split === 'train' ? i : i + 2}.png`
    records.push({ id: item, modality: 'image', title: `Square ${i}`, image })
    ask(`image-${i}`, 'Which colour is it?', { item, whole: true }, `image ${i}`)
  }
  LASTS.forEach((end, i) => {
    const item = `${split}-video-${i}`
    // the parts of one file that two splits show are not the same
    const start = split === 'train' ? 0 : 3
    records.push({ id: item, modality: 'video', title: `Clip ${i}`, video: `media/clip-${i}.mp4`, start, end })
    const times = [[start + 30 * i, start + 30 * i + 20]]
    ask(`video-${i}`, 'When does it begin?', { item, times }, `video ${i}`)
  })
  return lines(...records)
}
