import { stat } from 'node:fs/promises'
import { InputError } from '../support/errors.ts'
import { fileError } from '../support/files.ts'
import { inputArguments, MissingToolError, runTool } from './ffmpeg.ts'
import { MAX_PIXELS, type Picture } from './image.ts'

/** A picture of a video. */
export interface Frame extends Picture {
  /** The time it was asked for, in milliseconds from the video's start. */
  time: number
  /** When its showing begins, in milliseconds from the video's start. */
  shown: number
}

export interface VideoOptions {
  signal?: AbortSignal | undefined
  /** Milliseconds that one look into the file may take. Default one minute. */
  timeout?: number | undefined
}

export interface FrameOptions extends VideoOptions {
  /** Scales every frame to this many pixels. Default: as they are. */
  size?: { width: number; height: number } | undefined
}

/** When a video shows what. */
export interface VideoIndex {
  path: string
  width: number
  height: number
  /** Milliseconds from the video's start to its end. */
  duration: number
  /** [frames]: when each is shown first, in milliseconds from the video's start, ascending. */
  starts: Float64Array
  /** Whether frames that the file promises at its end are missing. */
  cutOff: boolean
}

const TIMEOUT = 60_000
/** Two hundred hours at thirty frames a second. */
const MOST_FRAMES = 20_000_000
const BYTES_PER_FRAME = 200
/** Milliseconds by which a container's durations may differ from its frames'. */
const SLACK = 1000

const INDEX_FIELDS =
  'format=start_time,duration:stream=width,height,duration:packet=pts_time,dts_time,duration_time,flags'

/**
 * Reads when a video shows which frame, with ffprobe; nothing is decoded.
 *
 * @throws InputError naming the file: not there, no video, no pictures or no times in it
 * @throws MissingToolError when FFmpeg is not installed
 */
export async function probeVideo(path: string, options: VideoOptions = {}): Promise<VideoIndex> {
  const found = await stat(path).catch((error: unknown) => {
    throw fileError(error, 'cannot read the video', path)
  })
  if (!found.isFile()) throw new InputError('cannot read the video: it is no file', { file: path })
  const times: number[] = []
  let last = 0
  const fields: Record<string, Record<string, string>> = {}
  let rest = ''
  const readLine = (line: string): void => {
    const [section, ...pairs] = line.trim().split('|')
    const values = Object.fromEntries(pairs.map((pair) => pair.split('=', 2))) as Record<string, string>
    if (section !== 'packet') {
      fields[section!] = values
      return
    }
    const start = seconds(values.pts_time) ?? seconds(values.dts_time)
    // packets marked D are decoded but never shown
    if (start === undefined || values.flags?.includes('D')) return
    times.push(start)
    last = Math.max(last, start + (seconds(values.duration_time) ?? 0))
  }
  const onOutput = (chunk: Buffer): void => {
    const lines = (rest + chunk.toString('latin1')).split('\n')
    rest = lines.pop()!
    for (const line of lines) readLine(line)
  }
  const args = ['-v', 'error', '-select_streams', 'V:0', '-show_entries', INDEX_FIELDS, '-of', 'compact']
  await runTool('ffprobe', [...args, ...inputArguments(path)], {
    ...{
      signal: options.signal,
      timeout: options.timeout ?? TIMEOUT,
      maxOutput: MOST_FRAMES * BYTES_PER_FRAME,
      onOutput,
    },
  }).catch((error: unknown) => fail(error, path, options.signal))
  if (rest !== '') readLine(rest)
  const { stream, format } = fields
  const [width, height] = [Number(stream?.width), Number(stream?.height)]
  if (!(width > 0) || !(height > 0)) throw new InputError('the file holds no pictures: it is no video', { file: path })
  if (width * height > MAX_PIXELS) {
    throw new InputError(`the video has ${width} × ${height} pixels; scale it down`, { file: path })
  }
  if (times.length === 0) {
    throw new InputError('the video does not say when its frames are shown; write it anew with ffmpeg', { file: path })
  }
  const starts = Float64Array.from(times).sort()
  const origin = seconds(format?.start_time) ?? starts[0]!
  const promised = seconds(stream?.duration)
  return {
    path,
    width,
    height,
    duration: 1000 * Math.max(last - origin, seconds(format?.duration) ?? 0),
    starts: starts.map((time) => Math.round(1e6 * (time - origin)) / 1000),
    cutOff: promised !== undefined && 1000 * (promised - (last - starts[0]!)) > SLACK,
  }
}

function seconds(text: string | undefined): number | undefined {
  const value = text === undefined || text === 'N/A' ? Number.NaN : Number(text)
  return Number.isFinite(value) ? value : undefined
}

function fail(error: unknown, path: string, signal: AbortSignal | undefined): never {
  if (error instanceof MissingToolError || signal?.aborted) throw error
  throw new InputError(`the video cannot be read: ${(error as Error).message}`, { file: path }, error)
}

/**
 * The frames that a video shows at given times, each the one whose showing has begun last: what a player that is stopped there
 * shows. They are in the order of the times; equal ones are decoded once. Each takes one run of ffmpeg.
 *
 * @param video path of the file, or its index
 * @param times whole milliseconds from the video's start
 * @throws InputError naming the file: a time before its start or behind its end, a frame that cannot be decoded
 * @throws MissingToolError when FFmpeg is not installed
 */
export async function extractFrames(
  video: string | VideoIndex,
  times: readonly number[],
  options: FrameOptions = {},
): Promise<Frame[]> {
  const index = typeof video === 'string' ? await probeVideo(video, options) : video
  const places = times.map((time) => frameAt(index, time))
  const decoded = new Map<number, Picture>()
  for (const place of places) {
    if (!decoded.has(place)) decoded.set(place, await decodeFrame(index, place, options))
  }
  return places.map((place, i) => ({ ...decoded.get(place)!, time: times[i]!, shown: index.starts[place]! }))
}

/** The number of the frame that is shown at a time. */
function frameAt({ path, starts, duration, cutOff }: VideoIndex, time: number): number {
  const place = { file: path }
  const length = (duration / 1000).toFixed(3)
  if (!(time >= 0)) throw new InputError(`there is no frame at ${time} ms: a video starts at 0`, place)
  if (time >= duration) {
    throw new InputError(
      `there is no frame at ${time / 1000} s: the video ends at ${length} s, and its item's "end" may not lie behind that`,
      place,
    )
  }
  const lastStart = starts[starts.length - 1]!
  if (cutOff && time > lastStart + SLACK) {
    throw new InputError(
      `there is no frame at ${time / 1000} s: the file is cut off behind ${(lastStart / 1000).toFixed(3)} s of ${length} s`,
      place,
    )
  }
  let low = 0
  let high = starts.length
  while (low < high) {
    const middle = (low + high) >> 1
    // times are given to the microsecond
    if (starts[middle]! <= time + 1e-3) low = middle + 1
    else high = middle
  }
  // sound may begin before the first picture
  return Math.max(0, low - 1)
}

async function decodeFrame(index: VideoIndex, frame: number, options: FrameOptions): Promise<Picture> {
  const start = index.starts[frame]!
  // between the frame before and this one, so that rounding cannot miss it
  const from = frame === 0 ? 0 : Math.max(0, (index.starts[frame - 1]! + start) / 2)
  const sought = await runFfmpeg(index, from, undefined, options)
  const found = sought !== undefined && (frame === 0 || Math.abs(sought.time - (start - from)) <= 1)
  if (found && !sought.concealed) return sought.picture
  // some containers cannot find a time, and some streams say only at their beginning how they are decoded: then all of it is
  const reached = await runFfmpeg(index, 0, from, options)
  if (reached !== undefined && Math.abs(reached.time - start) <= 1) return reached.picture
  throw new InputError(`the frame at ${start / 1000} s cannot be decoded; the file is damaged there`, {
    file: index.path,
  })
}

/** How ffmpeg tells of a frame of which the decoder made up a part. */
const CONCEALED = 'corrupt decoded frame'

/**
 * The first frame at `from` milliseconds or later (of those from `notBefore` on), and its time from there; whether a part of it, or of
 * what it is made from, is made up.
 */
async function runFfmpeg(
  index: VideoIndex,
  from: number,
  notBefore: number | undefined,
  options: FrameOptions,
): Promise<{ picture: Picture; time: number; concealed: boolean } | undefined> {
  const { size, signal, timeout = TIMEOUT } = options
  const chunks: Buffer[] = []
  const filters = [
    ...(notBefore === undefined ? [] : [`select='gte(t,${(notBefore / 1000).toFixed(6)})'`]),
    'showinfo',
    ...(size === undefined ? [] : [`scale=${size.width}:${size.height}`]),
    'format=rgb24',
  ]
  const pixels = size === undefined ? index.width * index.height : size.width * size.height
  const stderr = await runTool(
    'ffmpeg',
    [
      ...['-hide_banner', '-nostdin', '-nostats', '-loglevel', 'info'],
      ...(from > 0 ? ['-ss', (from / 1000).toFixed(6)] : []),
      ...inputArguments(index.path),
      ...['-map', '0:V:0', '-vf', filters.join(','), '-frames:v', '1', '-c:v', 'ppm', '-f', 'image2pipe', 'pipe:1'],
    ],
    { signal, timeout, maxOutput: 3 * pixels + 1024, onOutput: (chunk) => void chunks.push(chunk) },
  ).catch((error: unknown) => fail(error, index.path, signal))
  const picture = readPpm(Buffer.concat(chunks))
  const time = /\bpts_time:\s*(-?[\d.]+)/.exec(stderr)?.[1]
  if (picture === undefined || time === undefined) return undefined
  return { picture, time: 1000 * Number(time), concealed: stderr.includes(CONCEALED) }
}

/** A picture in the binary portable pixmap format (Netpbm), as ffmpeg writes it. */
function readPpm(bytes: Buffer): Picture | undefined {
  const header = /^P6\n(\d+) (\d+)\n255\n/.exec(bytes.toString('latin1', 0, 64))
  if (header === null) return undefined
  const [width, height] = [Number(header[1]), Number(header[2])]
  const data = bytes.subarray(header[0].length, header[0].length + 3 * width * height)
  if (data.length < 3 * width * height) return undefined
  return { width, height, data: new Uint8Array(data.buffer, data.byteOffset, data.length) }
}
