import { spawnSync } from 'node:child_process'
import { cpSync, readdirSync, readFileSync, rmSync, statSync, utimesSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import sharp from 'sharp'
import { describe, expect, it, onTestFinished } from 'vitest'
import { type InputReader, openReader, type ReaderOptions, readEncoder } from '../../src/encoder/index.ts'
import type { EncodedInput, EncoderInput } from '../../src/encoder/input/sequence.ts'
import { openSafetensors } from '../../src/onnx/index.ts'
import { InputError } from '../../src/support/errors.ts'
import { hasFfmpeg } from '../media/ffmpeg-present.ts'
import { temporaryFolder } from '../support/temporary.ts'
import { tinyQwen3 } from './qwen3-known.ts'
import { formulaPicture } from './qwen3-vl-pictures.ts'

const folder = tinyQwen3('qwen3-vl')
const pictures = join(folder, 'pictures')

interface Known {
  text: string
  instruction?: string
  images?: string[]
  frames?: string[]
  times?: number[]
  start?: number
  ids: number[]
  positions: number[][]
  grids?: number[][]
}
const known: Record<string, Known> = JSON.parse(readFileSync(join(folder, 'expected.json'), 'utf8')).inputs

async function open(options: ReaderOptions = {}, instruction?: string): Promise<InputReader> {
  const profile = await readEncoder(folder, instruction === undefined ? {} : { instructions: { query: instruction } })
  const reader = await openReader(profile, options)
  onTestFinished(() => reader.close())
  return reader
}

const one = async (reader: InputReader, input: EncoderInput): Promise<EncodedInput> =>
  (await reader.encode([input], 'query'))[0]!

/** A clip without losses, one frame every ten seconds: frame n of the list is shown from 10 n s on. */
function clip(frames: string[]): string {
  const work = temporaryFolder()
  frames.forEach((name, i) => {
    cpSync(join(pictures, name), join(work, `${i}.png`))
  })
  const file = join(work, 'clip.mkv')
  const input = ['-framerate', '0.1', '-i', join(work, '%d.png')]
  const made = spawnSync('ffmpeg', ['-v', 'error', ...input, '-c:v', 'ffv1', '-pix_fmt', 'bgr0', file], {
    encoding: 'utf8',
  })
  if (made.status !== 0) throw new Error(made.stderr)
  return file
}

/** From here on a test has to do without FFmpeg. */
function withoutFfmpeg(): void {
  const before = process.env.CANOPY_FFMPEG
  process.env.CANOPY_FFMPEG = join(temporaryFolder(), 'nowhere', 'ffmpeg')
  onTestFinished(() => {
    if (before === undefined) delete process.env.CANOPY_FFMPEG
    else process.env.CANOPY_FFMPEG = before
  })
}

async function expectSame(reader: InputReader, name: string, { sequence, truncated }: EncodedInput): Promise<void> {
  const { ids, positions, grids } = known[name]!
  expect([...sequence.ids]).toEqual(ids)
  expect(truncated).toBe(false)
  if (grids === undefined) {
    expect(sequence.positions).toBeUndefined()
    expect(sequence.visuals).toBeUndefined()
    return
  }
  expect([...sequence.positions!]).toEqual(positions.flat())
  const numbers = await openSafetensors(join(folder, 'expected.safetensors'))
  const found = sequence.visuals!.map(({ key }) => reader.features!.get(key))
  const levels = 4
  for (let level = 0; level < levels; level++) {
    const wanted = await numbers.readTensor(`${name}.features.${level}`)
    const rows = found.flatMap((f) => [...f.subarray((level * f.length) / levels, ((level + 1) * f.length) / levels)])
    expect(rows.length).toBe(wanted.length)
    const largest = wanted.reduce((most, value) => Math.max(most, Math.abs(value)), 0)
    const worst = rows.reduce((most, value, i) => Math.max(most, Math.abs(value - wanted[i]!)), 0)
    expect(worst / largest, `${name}, level ${level}`).toBeLessThan(1e-4)
  }
}

describe('the reader of a Qwen3-VL encoder', () => {
  it.each(Object.keys(known).filter((name) => known[name]!.frames === undefined))(
    'gives ids, positions and visual features of transformers: %s',
    async (name) => {
      const { text, instruction, images = [] } = known[name]!
      const reader = await open({}, instruction)
      const encoded = await one(reader, { text, images: images.map((file) => join(pictures, file)) })
      await expectSame(reader, name, encoded)
    },
  )

  it.skipIf(!hasFfmpeg)('gives them for the frames of a clip, at times of the node’s own clock', async () => {
    const { text, frames, times, start } = known.video!
    // the node begins in the middle of the clip
    const path = clip(['frame2.png', 'frame2.png', 'frame2.png', ...frames!])
    const reader = await open()
    const encoded = await one(reader, { text, video: { path, frames: times!, start: start! } })
    await expectSame(reader, 'video', encoded)
  })

  it('reads texts without a vision tower', async () => {
    const copy = temporaryFolder()
    cpSync(folder, copy, { recursive: true })
    const profile = await readEncoder(copy)
    for (const name of ['model.safetensors', 'preprocessor_config.json']) rmSync(join(copy, name))
    const reader = await openReader(profile)
    const { sequence } = await one(reader, { text: known.text!.text })
    expect([...sequence.ids]).toEqual(known.text!.ids)
    expect(reader.features).toBeUndefined()
    await expect(one(reader, { text: '', images: [join(pictures, 'wide.png')] })).rejects.toThrow(InputError)
    await reader.close()
  })

  it('gives each side its own instruction', async () => {
    const reader = await open({}, known.question!.instruction)
    const [query] = await reader.encode([{ text: known.question!.text }], 'query')
    const [node] = await reader.encode([{ text: known.text!.text }], 'node')
    expect([...query!.sequence.ids]).toEqual(known.question!.ids)
    expect([...node!.sequence.ids]).toEqual(known.text!.ids)
  })

  it('counts the tokens of a text alone', async () => {
    const reader = await open()
    const empty = await one(reader, { text: '' })
    const { sequence } = await one(reader, { text: 'Bees dance.' })
    expect(reader.count('Bees dance.')).toBe(sequence.ids.length - empty.sequence.ids.length + reader.count('NULL'))
  })

  it('refuses a maximum length that the template alone takes', async () => {
    await expect(open({ maxLength: 20 })).rejects.toThrow(/leaves no room for a text: .* take \d+ tokens/)
  })

  it('reports how far it is, and stops when it is told to', async () => {
    const reader = await open()
    const wide = { text: '', images: [join(pictures, 'wide.png')] }
    const reports: unknown[] = []
    await reader.encode([wide, { text: 'a' }, wide], 'node', { onProgress: (report) => reports.push(report) })
    expect(reports).toEqual([
      { phase: 'pictures and videos', done: 1, total: 2 },
      { phase: 'pictures and videos', done: 2, total: 2 },
    ])
    const stop = new AbortController()
    const stopped = reader.encode([wide, wide, wide], 'node', {
      signal: stop.signal,
      onProgress: () => stop.abort(new Error('enough')),
    })
    await expect(stopped).rejects.toThrow('enough')
  })

  it.each(['qwen3', 'qwen3-vl'] as const)('stops between texts when it is told to: %s', async (name) => {
    const reader = await openReader(await readEncoder(tinyQwen3(name)))
    const stop = new AbortController()
    const stopped = reader.encode(
      Array.from({ length: 1000 }, (_, i) => ({ text: `text ${i}` })),
      'node',
      { signal: stop.signal },
    )
    setImmediate(() => stop.abort(new Error('enough')))
    await expect(stopped).rejects.toThrow('enough')
  })

  it('is closed once, and looks at nothing afterwards', async () => {
    const reader = await open()
    const wide = { text: '', images: [join(pictures, 'wide.png')] }
    await one(reader, wide)
    await reader.close()
    await reader.close()
    await expect(one(reader, wide)).rejects.toThrow(/has been closed/)
  })
})

describe('what a reader keeps', () => {
  const wide = join(pictures, 'wide.png')

  it.skipIf(!hasFfmpeg)('lets a later run leave files alone that did not change', async () => {
    const cache = temporaryFolder()
    const path = clip(['frame0.png', 'frame1.png'])
    const input = { text: 'a', video: { path, frames: [0, 10_000], start: 0 } }
    const first = await one(await open({ cache }), input)
    withoutFfmpeg()
    const reader = await open({ cache })
    const second = await one(reader, input)
    expect(second).toEqual(first)
    expect(reader.features!.get(second.sequence.visuals![0]!.key).length).toBeGreaterThan(0)
    utimesSync(path, new Date(), new Date(0))
    await expect(one(await open({ cache }), input)).rejects.toThrow(/Install FFmpeg/)
  })

  it('is looked at again where a file was replaced, even by one of the same size that looks as old', async () => {
    const cache = temporaryFolder()
    const file = join(temporaryFolder(), 'picture.png')
    cpSync(wide, file)
    // a time in whole milliseconds, so that it can be set again
    const old = new Date(1_700_000_000_000)
    utimesSync(file, old, old)
    await one(await open({ cache }), { text: 'a', images: [file] })
    writeFileSync(file, Buffer.alloc(statSync(file).size))
    utimesSync(file, old, old)
    await expect(one(await open({ cache }), { text: 'a', images: [file] })).rejects.toThrow(/cannot be decoded/)
  })

  it.skipIf(!hasFfmpeg)('holds the frames that nodes of a video share', async () => {
    const path = clip(['frame0.png', 'frame1.png', 'frame0.png', 'frame1.png'])
    const input = (frames: number[]) => ({ text: 'a', video: { path, frames, start: 0 } })
    const reader = await open()
    const all = await one(reader, input([0, 10_000, 20_000, 30_000]))
    withoutFfmpeg()
    const half = await one(reader, input([20_000, 30_000]))
    expect(half.sequence.visuals![0]!.key).toBe(all.sequence.visuals![1]!.key)
    await expect(one(reader, input([5000]))).rejects.toThrow(/Install FFmpeg/)
  })

  it.each([
    ['a grid of another size', /"grid":\[\d+,\d+\]/, '"grid":[4,4]'],
    ['no picture', /"visuals":\[.*\]/, '"visuals":[]'],
    ['a key that is none', /"key":"\w+"/, '"key":"0"'],
  ])('is looked at again where its entry was damaged: %s', async (_, from, to) => {
    const cache = temporaryFolder()
    const first = await one(await open({ cache }), { text: '', images: [wide] })
    const manifest = join(cache, readdirSync(cache).find((name) => name.endsWith('.jsonl'))!)
    const whole = readFileSync(manifest, 'utf8')
    const damaged = whole.replace(from, to)
    expect(damaged).not.toBe(whole)
    writeFileSync(manifest, damaged)
    expect(await one(await open({ cache }), { text: '', images: [wide] })).toEqual(first)
  })

  it('is looked at again where features went missing, and where a crash left half a line', async () => {
    const cache = temporaryFolder()
    const first = await one(await open({ cache }), { text: '', images: [wide] })
    const manifest = join(cache, readdirSync(cache).find((name) => name.endsWith('.jsonl'))!)
    for (const name of readdirSync(cache, { recursive: true, encoding: 'utf8' }))
      if (name.endsWith('.features')) rmSync(join(cache, name))
    writeFileSync(manifest, `${readFileSync(manifest, 'utf8')}{"source":"half a l`)
    const reader = await open({ cache })
    const second = await one(reader, { text: '', images: [wide] })
    expect(second).toEqual(first)
    expect(reader.features!.has(first.sequence.visuals![0]!.key)).toBe(true)
    const third = await one(await open({ cache }), { text: '', images: [wide] })
    expect(third).toEqual(first)
  })

  it('is the same for files with the same pixels, and gone with a reader that has no cache', async () => {
    const before = readdirSync(tmpdir()).filter((name) => name.startsWith('canopy-features-'))
    const reader = await openReader(await readEncoder(folder))
    const file = join(temporaryFolder(), 'picture.png')
    cpSync(wide, file)
    const [a, b] = await reader.encode(
      [wide, file].map((path) => ({ text: '', images: [path] })),
      'node',
    )
    expect(b!.sequence).toEqual(a!.sequence)
    await reader.close()
    const after = readdirSync(tmpdir()).filter((name) => name.startsWith('canopy-features-'))
    expect(after.filter((name) => !before.includes(name))).toEqual([])
  })
})

describe('an input that cannot be read', () => {
  it('is an error that names the picture', async () => {
    const reader = await open()
    const file = join(temporaryFolder(), 'broken.png')
    const bytes = await sharp(formulaPicture(300, 200, 1).data, { raw: { width: 300, height: 200, channels: 3 } })
      .png()
      .toBuffer()
    for (const [content, message] of [
      [Buffer.from('no picture'), /broken\.png: the picture cannot be decoded/],
      [bytes.subarray(0, bytes.length / 2), /broken\.png: the picture cannot be decoded/],
    ] as const) {
      writeFileSync(file, content)
      await expect(one(reader, { text: 'a', images: [file] })).rejects.toThrow(message)
    }
    await expect(one(reader, { text: 'a', images: [`${file}.none`] })).rejects.toThrow(/broken\.png\.none/)
    await expect(one(reader, { text: 'a', images: [`${file}\0`] })).rejects.toThrow(
      /broken\.png.*cannot read the picture: no file can have such a name/,
    )
  })

  it('is an error where a side of the picture is more than 200 times the other', async () => {
    const file = join(temporaryFolder(), 'line.png')
    await sharp({ create: { width: 900, height: 2, channels: 3, background: '#808080' } }).toFile(file)
    await expect(one(await open(), { text: 'a', images: [file] })).rejects.toThrow(
      /line\.png: the picture is 900 × 2 pixels/,
    )
  })

  it('is an error where the picture takes more tokens than there are, before the vision tower runs', async () => {
    const file = join(temporaryFolder(), 'large.png')
    await sharp({ create: { width: 640, height: 640, channels: 3, background: '#808080' } }).toFile(file)
    const cache = temporaryFolder()
    await expect(one(await open({ cache, maxLength: 128 }), { text: 'a', images: [file] })).rejects.toThrow(
      /large\.png: .*takes 4\d\d tokens.*at most 128/,
    )
    const kept = readdirSync(cache, { recursive: true, encoding: 'utf8' })
    expect(kept.filter((name) => name.endsWith('.features'))).toEqual([])
  })

  it.skipIf(!hasFfmpeg)('is an error where the clip is over before its frames are', async () => {
    const path = clip(['frame0.png', 'frame1.png'])
    const reader = await open()
    await expect(one(reader, { text: 'a', video: { path, frames: [0, 10_000, 20_000], start: 0 } })).rejects.toThrow(
      /clip\.mkv: there is no frame at 20 s/,
    )
    for (const frames of [[], Array.from({ length: 65 }, (_, i) => i)])
      await expect(one(reader, { text: 'a', video: { path, frames, start: 0 } })).rejects.toThrow(
        /clip\.mkv: \d+ frames of the video were asked for; the encoder reads 1 to 64/,
      )
  })

  it('is an error for an encoder of texts', async () => {
    const reader = await openReader(await readEncoder(tinyQwen3('qwen3')))
    await expect(one(reader, { text: 'a', images: ['/data/a.png'] })).rejects.toThrow(
      /^\/data\/a\.png: The encoder qwen3 reads texts only/,
    )
    expect((await one(reader, { text: 'a' })).sequence.positions).toBeUndefined()
  })
})
