// Draws the pictures and clips that media.yaml describes. Needs ffmpeg with libx264. What an encoder writes differs from build
// to build, so the files are committed, and tests look at what they show.
//
//   node scripts/sample/make-media.mjs                    draws into datasets/sample
//   node scripts/sample/make-media.mjs --output <folder>  draws into another dataset folder

import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, readFileSync, statSync } from 'node:fs'
import { dirname, join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { parse } from 'yaml'
import { CLIP_SIZE, scenes as drawings } from './clips.mjs'
import { PICTURE_SIZE, pictures } from './pictures.mjs'
import { rect, render, text } from './svg.mjs'

/** Frames a second. */
const FPS = 2
const MOST_BYTES = 60_000

const here = dirname(fileURLToPath(import.meta.url))
const { values: options } = parseArgs({ options: { output: { type: 'string' } } })
const output = resolve(options.output ?? join(here, '..', '..', 'datasets', 'sample'))

for (const medium of parse(readFileSync(join(here, 'media.yaml'), 'utf8'))) {
  const file = join(output, medium.image ?? medium.video)
  mkdirSync(dirname(file), { recursive: true })
  await (medium.image === undefined ? writeClip(medium, file) : writePicture(medium, file))
  const { size } = statSync(file)
  if (size > MOST_BYTES) throw new Error(`${file} takes ${size} bytes, more than ${MOST_BYTES}`)
  console.log(`${file}: ${size} bytes`)
}

async function writePicture({ title, draw }, file) {
  const { width, height } = PICTURE_SIZE
  await render(width, height, '#ffffff', called(pictures, draw, title)())
    .png({ palette: true })
    .toFile(file)
}

async function writeClip({ title, seconds, scenes }, file) {
  const { width, height } = CLIP_SIZE
  const source = ['-f', 'rawvideo', '-pix_fmt', 'rgb24', '-s', `${width}x${height}`, '-r', `${FPS}`, '-i', 'pipe:0']
  const codec = ['-c:v', 'libx264', '-preset', 'veryslow', '-tune', 'animation', '-crf', '30', '-g', `${30 * FPS}`]
  const portable = ['-pix_fmt', 'yuv420p', '-movflags', '+faststart', '-fflags', '+bitexact']
  const args = ['-v', 'error', '-y', ...source, ...codec, ...portable, file]
  const ffmpeg = spawn('ffmpeg', args, { stdio: ['pipe', 'inherit', 'inherit'] })
  const closed = once(ffmpeg, 'close')
  for (let frame = 0; frame < seconds * FPS; frame++) {
    const pixels = await clipFrame(title, seconds, scenes, frame / FPS)
    if (!ffmpeg.stdin.write(pixels)) await once(ffmpeg.stdin, 'drain')
  }
  ffmpeg.stdin.end()
  const [status] = await closed
  if (status !== 0) throw new Error(`ffmpeg ended with status ${status} at ${file}`)
}

/** [height × width × 3]: what a clip shows at a time in seconds. */
function clipFrame(title, seconds, scenes, time) {
  const number = scenes.findLastIndex(({ from }) => from <= time)
  const { from, ground, draw, caption } = scenes[number]
  const to = scenes[number + 1]?.from ?? seconds
  const { width, height } = CLIP_SIZE
  const shapes = called(drawings, draw, title)((time - from) / (to - from))
  const band = rect(0, height - 24, width, 24, '#222222') + text(width / 2, height - 7, caption, '#ffffff', 14)
  return render(width, height, ground, shapes + band)
    .raw()
    .toBuffer()
}

function called(drawings, name, title) {
  return drawings[name] ?? fail(`${title}: nothing is drawn by the name "${name}"`)
}

function fail(message) {
  throw new Error(message)
}
