import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, truncateSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import sharp from 'sharp'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { buildHierarchy, type Item, nodeInput, type VideoItem } from '../../src/hierarchy/index.ts'
import {
  checkMedia,
  createMediaReader,
  extractFrames,
  type Frame,
  MissingToolError,
  probeVideo,
  readMedia,
} from '../../src/media/index.ts'
import { InputError } from '../../src/support/errors.ts'
import { sharedDir } from '../support/shared.ts'
import { hasFfmpeg } from './ffmpeg-present.ts'

const FPS = 5
const SECONDS = 24

let folder: string
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'canopy-media-'))
})
afterAll(() => rmSync(folder, { recursive: true, force: true }))

/** A clip whose frame n is grey of level 2 n: 5 frames a second, 24 s, a key frame every 3 s, frames that depend on later ones. */
function clip(name: string, ...more: string[]): string {
  const file = join(folder, name)
  const codec = more.length > 0 ? more : ['-c:v', 'libx264', '-g', '15', '-bf', '2', '-qp', '4', '-pix_fmt', 'yuv420p']
  execFileSync('ffmpeg', [
    ...['-v', 'error', '-y', '-f', 'lavfi', '-i', `color=size=64x48:rate=${FPS}:duration=${SECONDS},format=gray`],
    ...['-vf', "geq=lum='2*N'", ...codec, file],
  ])
  return file
}

/** The number of the frame, read from its grey. */
const numberOf = ({ data }: Frame): number => Math.round(data[3 * (64 * 20 + 30)]! / 2)

describe.skipIf(!hasFfmpeg)('extractFrames', () => {
  let video: string
  beforeAll(() => {
    video = clip('clip.mp4')
  })
  afterEach(() => {
    delete process.env.CANOPY_FFMPEG
  })

  it('gives the frame that is shown at each time, in the order of the times', async () => {
    const times = [0, 199, 200, 201, 399, 10_000, 10_199, 23_999, 12_345, 0]
    const frames = await extractFrames(video, times)
    expect(frames.map(numberOf)).toEqual(times.map((time) => Math.floor((time * FPS) / 1000)))
    expect(frames.map(({ time }) => time)).toEqual(times)
    expect(frames.map(({ shown }) => shown)).toEqual(times.map((time) => Math.floor(time / 200) * 200))
    for (const { width, height, data } of frames) expect([width, height, data.length]).toEqual([64, 48, 64 * 48 * 3])
  })

  it.each([
    ['clip.mkv', '-c:v', 'libx264', '-g', '15', '-bf', '2', '-qp', '4', '-pix_fmt', 'yuv420p'],
    ['clip.webm', '-c:v', 'libvpx', '-g', '15', '-b:v', '1M'],
    ['clip.avi', '-c:v', 'mpeg4', '-g', '15', '-q:v', '2'],
    // its clock starts at 1.4 s, and times cannot be sought to the frame
    ['clip.ts', '-c:v', 'libx264', '-g', '15', '-bf', '2', '-qp', '4', '-pix_fmt', 'yuv420p'],
  ])('does so in %s', async (name, ...codec) => {
    const times = [0, 450, 6_200, 14_999, 23_700]
    const frames = await extractFrames(clip(name, ...codec), times)
    const expected = times.map((time) => Math.floor((time * FPS) / 1000))
    expect(frames.map(({ shown }) => Math.round(shown / 200))).toEqual(expected)
    // greys of the older codecs are a level or two off
    for (const [i, frame] of frames.entries()) expect(Math.abs(numberOf(frame) - expected[i]!)).toBeLessThanOrEqual(1)
  })

  it('shows a frame that stands for seconds until the next one', async () => {
    const file = join(folder, 'slides.mp4')
    execFileSync('ffmpeg', [
      ...['-v', 'error', '-y', '-i', video, '-vf', "select='eq(n,0)+eq(n,20)+eq(n,100)'", '-vsync', 'vfr'],
      ...['-c:v', 'libx264', '-qp', '4', '-pix_fmt', 'yuv420p', file],
    ])
    const frames = await extractFrames(file, [3_999, 4_000, 19_000, 20_000])
    expect(frames.map(numberOf)).toEqual([0, 20, 20, 100])
  })

  it('scales', async () => {
    const [frame] = await extractFrames(video, [1000], { size: { width: 10, height: 8 } })
    expect(frame).toMatchObject({ width: 10, height: 8 })
    expect(frame!.data.length).toBe(240)
  })

  it('is an error that names the file and the time behind its end', async () => {
    await expect(extractFrames(video, [0, 24_000])).rejects.toThrow(
      `${video}: there is no frame at 24 s: the video ends at 24.000 s`,
    )
    for (const time of [-1, Number.NaN]) await expect(extractFrames(video, [time])).rejects.toBeInstanceOf(InputError)
  })

  it('takes no name for an option, a protocol or a script, and reads no other file for one', async () => {
    for (const name of ['-i.mp4', 'concat:a.mp4', 'a b%d;$(x).mp4']) {
      const file = join(folder, name)
      writeFileSync(file, readFileSync(video))
      expect((await extractFrames(file, [400])).map(numberOf)).toEqual([2])
    }
    const scripts = {
      'list.ffconcat': `ffconcat version 1.0\nfile ${basename(video)}\n`,
      'list.m3u8': `#EXTM3U\n#EXT-X-TARGETDURATION:24\n#EXTINF:24,\n${basename(video)}\n#EXT-X-ENDLIST\n`,
    }
    for (const [name, content] of Object.entries(scripts)) {
      writeFileSync(join(folder, name), content)
      await expect(extractFrames(join(folder, name), [0])).rejects.toThrow(/cannot be read/)
    }
  })

  it('that is no video, or is broken, is an error that names the file', async () => {
    const bad = join(folder, 'bad.mp4')
    writeFileSync(bad, 'no video')
    await expect(probeVideo(bad)).rejects.toThrow(`${bad}: the video cannot be read: `)
    await expect(probeVideo(join(folder, 'none.mp4'))).rejects.toThrow(/no such file/)
    await expect(probeVideo(folder)).rejects.toThrow(/it is no file/)
    const sound = join(folder, 'sound.mp4')
    execFileSync('ffmpeg', ['-v', 'error', '-y', '-f', 'lavfi', '-i', 'sine=duration=1', sound])
    await expect(probeVideo(sound)).rejects.toThrow(/holds no pictures/)
    // the index comes first, the pictures are missing from the middle on
    const cut = join(folder, 'cut.mp4')
    execFileSync('ffmpeg', ['-v', 'error', '-y', '-i', video, '-c', 'copy', '-movflags', '+faststart', cut])
    truncateSync(cut, Math.round(0.6 * readFileSync(cut).length))
    await expect(extractFrames(cut, [23_000])).rejects.toBeInstanceOf(InputError)
  })

  it('stops when it is told to, or takes too long', async () => {
    const controller = new AbortController()
    const running = extractFrames(
      video,
      Array.from({ length: 100 }, (_, i) => 200 * i),
      { signal: controller.signal },
    )
    setTimeout(() => controller.abort(), 150)
    await expect(running).rejects.toThrow(expect.objectContaining({ name: 'AbortError' }))
    await expect(probeVideo(video, { timeout: 1 })).rejects.toThrow(/ffprobe took more than 0.001 s/)
  })

  it('says how to install ffmpeg where it is missing', async () => {
    process.env.CANOPY_FFMPEG = join(folder, 'nowhere', 'ffmpeg')
    const error = await extractFrames(video, [0]).catch((e: unknown) => e)
    expect(error).toBeInstanceOf(MissingToolError)
    expect((error as Error).message).toMatch(
      /nowhere.ffprobe" was not found.*apt install ffmpeg.*brew.*winget.*CANOPY_FFMPEG, which is ".*nowhere.ffmpeg", name an ffmpeg with its ffprobe beside it/,
    )
  })

  it('blames no file for a program that is no ffmpeg, or lacks its ffprobe', async () => {
    const bin = join(folder, 'bin')
    mkdirSync(bin)
    const program = (name: string, script: string): string => {
      const path = join(bin, name)
      writeFileSync(path, `#!/bin/sh\n${script}\n`, { mode: 0o755 })
      return path
    }
    process.env.CANOPY_FFMPEG = program('ffmpeg', 'exit 0')
    const failed = async (): Promise<Error> => {
      const error = await extractFrames(video, [0]).catch((e: unknown) => e)
      expect(error).toBeInstanceOf(MissingToolError)
      expect((error as Error).message).not.toContain(video)
      return error as Error
    }
    expect((await failed()).message).toMatch(/bin.ffprobe" was not found, and videos are read with ffprobe/)
    program('ffprobe', 'exec ffprobe "$@"')
    expect((await failed()).message).toMatch(/bin.ffmpeg" is not FFmpeg's ffmpeg/)
    program('ffmpeg', 'exit 3')
    expect((await failed()).message).toMatch(/bin.ffmpeg" is not FFmpeg's ffmpeg, or does not run/)
    program('ffmpeg', 'exec ffmpeg "$@"')
    expect((await extractFrames(video, [400])).map(numberOf)).toEqual([2])
  })
})

describe.skipIf(!hasFfmpeg)("a node's pixels", () => {
  let data: string
  const video = (fields: Partial<VideoItem> = {}): VideoItem => ({
    ...{ id: 'v', modality: 'video', title: 'Grey', video: 'clips/clip.mp4', start: 0, end: 24 },
    ...fields,
  })
  const rootInput = (item: Item) => {
    const hierarchy = buildHierarchy(item)
    return nodeInput(hierarchy, hierarchy.root, { title: true })
  }
  beforeAll(async () => {
    data = join(folder, 'data')
    mkdirSync(join(data, 'clips'), { recursive: true })
    if (!existsSync(join(folder, 'clip.mp4'))) clip('clip.mp4')
    writeFileSync(join(data, 'clips', 'clip.mp4'), readFileSync(join(folder, 'clip.mp4')))
    await sharp({ create: { width: 3, height: 2, channels: 3, background: '#ff0000' } }).toFile(join(data, 'red.png'))
    writeFileSync(join(data, 'broken.png'), 'no picture')
  })

  it('are the frames at its times, on the clock of the file', async () => {
    const item = video({ start: 3.4, end: 24 })
    const { video: frames } = await readMedia(data, item, rootInput(item))
    expect(frames!.map(({ time }) => time)).toEqual([3400, 13_400, 23_400])
    expect(frames!.map(numberOf)).toEqual([17, 67, 117])
  })

  it('are the picture of an image, and nothing of a text', async () => {
    const image: Item = { id: 'i', modality: 'image', image: 'red.png' }
    const { image: picture } = await readMedia(data, image, rootInput(image))
    expect(picture).toMatchObject({ width: 3, height: 2 })
    const text: Item = { id: 't', modality: 'text', text: 'Otters.' }
    expect(await readMedia(data, text, rootInput(text))).toEqual({})
  })

  it('never come from outside of the folder', async () => {
    for (const path of ['../clip.mp4', join(folder, 'clip.mp4')]) {
      const item = video({ video: path })
      await expect(readMedia(data, item, rootInput(item))).rejects.toThrow(/leaves the folder/)
    }
  })

  it('need a file', async () => {
    const { video: _, ...item } = video()
    await expect(readMedia(data, item as VideoItem, rootInput(item as VideoItem))).rejects.toThrow(
      /names no "video" file/,
    )
  })

  it('of a broken file are an error, or counted once and left out', async () => {
    const item: Item = { id: 'i', modality: 'image', image: 'broken.png' }
    await expect(readMedia(data, item, rootInput(item))).rejects.toThrow(join(data, 'broken.png'))
    const reader = createMediaReader(data, { onError: 'skip' })
    expect(await reader.read(item, rootInput(item))).toBeUndefined()
    expect(await reader.read({ ...item, id: 'again' }, rootInput(item))).toBeUndefined()
    const good: Item = { ...item, image: 'red.png' }
    expect(await reader.read(good, rootInput(good))).toBeDefined()
    expect(reader.summary).toMatchObject({ pictures: 1, frames: 0, broken: [{ item: 'i', path: 'broken.png' }] })
    expect(reader.summary.broken[0]!.reason).toMatch(/^the picture cannot be decoded/)
  })

  it('are all checked: broken files and videos that end before their items', async () => {
    async function* items(): AsyncGenerator<Item> {
      yield { id: 'red', modality: 'image', image: 'red.png' }
      yield { id: 'bad', modality: 'image', image: 'broken.png' }
      yield { id: 'text', modality: 'text', text: 'Otters.' }
      yield video()
      const { video: _, ...without } = video({ id: 'without' })
      yield without as VideoItem
      yield video({ id: 'long', start: 0, end: 40 })
    }
    const check = await checkMedia(data, items())
    expect(check).toMatchObject({ images: 2, videos: 3, decodedVideos: 1, withoutFile: 1, pictures: 1, frames: 4 })
    expect(check.broken.map(({ item }) => item)).toEqual(['bad', 'long'])
    expect(check.broken[1]!.reason).toMatch(/there is no frame at 30 s: the video ends at 24.000 s/)
  })
})

const shared = sharedDir()
describe.skipIf(!hasFfmpeg || shared === undefined)('real videos', () => {
  it.each([
    ['cockatoo.mp4', 14_000, 280],
    ['bigbuckbunny.mp4', 5_312, 132],
  ])('%s lasts %i ms and has %i frames', async (name, duration, frames) => {
    const index = await probeVideo(join(shared!, 'data/media', name))
    expect(index).toMatchObject({ width: 1280, height: 720, duration, cutOff: false })
    expect(index.starts.length).toBe(frames)
    const found = await extractFrames(index, [0, 5_000])
    expect(found.map(({ shown }) => shown)).toEqual([0, 5_000])
    expect(Buffer.compare(found[0]!.data, found[1]!.data)).not.toBe(0)
  })

  it('of which the decoder has to know the beginning are read from there', async () => {
    // 4:4:4 of an old x264, which is told by a note in the first frame: entered in the middle, most of the picture is made up
    const file = join(shared!, 'data/media/cockatoo.mp4')
    const [at7] = await extractFrames(file, [7_000], { size: { width: 64, height: 36 } })
    const select = ['-vf', 'select=gte(t\\,7),scale=64:36,format=rgb24', '-frames:v', '1', '-f', 'rawvideo', 'pipe:1']
    const fromStart = execFileSync('ffmpeg', ['-v', 'error', '-i', file, ...select])
    expect(Buffer.compare(at7!.data, fromStart)).toBe(0)
  })
})
