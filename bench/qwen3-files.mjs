// Embeddings of picture and video files by a Qwen3-VL encoder, against the released code over transformers: the same files, decoded
// here by sharp and FFmpeg, there by Pillow and PyAV.
//
//   npm run build
//   node bench/qwen3-files.mjs --python <python of bench/peers/requirements.txt> [--encoder <folder>]
//     [--file <picture or video>…] [--json]
//
// Without --file the pictures and clips of ../shared/data/media are taken. A video stands for its node of at most 60 seconds, with a
// frame every ten seconds, or four of equal distance where it is shorter than 30. Ends with status 1 where tokens or a cosine (0.999)
// are not as there.
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, extname, join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { openEmbedder, readEncoder } from '../dist/encoder/index.js'
import { markdownTable } from '../dist/eval/index.js'
import { probeVideo } from '../dist/media/index.js'

const COSINE = 0.999
const VIDEOS = ['.mp4', '.mkv', '.webm', '.mov', '.avi']

const { values: flags } = parseArgs({
  options: {
    python: { type: 'string', default: 'python3' },
    encoder: { type: 'string', default: resolve(import.meta.dirname, '../test/fixtures/qwen3-vl') },
    file: { type: 'string', multiple: true },
    json: { type: 'boolean', default: false },
  },
})
const media = resolve(import.meta.dirname, '../../shared/data/media')
const files =
  flags.file ??
  readdirSync(media)
    .filter((name) => extname(name) !== '.md')
    .map((name) => join(media, name))

async function inputOf(path) {
  const text = basename(path)
  if (!VIDEOS.includes(extname(path).toLowerCase())) return { text, images: [path] }
  const length = Math.min(60_000, (await probeVideo(path)).duration)
  const step = length < 30_000 ? Math.floor(length / 4) : 10_000
  return {
    text,
    video: { path, start: 0, frames: Array.from({ length: Math.floor(length / step) }, (_, i) => i * step) },
  }
}

const work = mkdtempSync(join(tmpdir(), 'canopy-files-'))
const inputs = await Promise.all(files.map((path) => inputOf(resolve(path))))
const output = join(work, 'embeddings.json')
const request = inputs.map(({ text, images, video }) => ({
  ...{ text, images },
  ...(video && { video: video.path, frames: video.frames, start: video.start }),
}))
writeFileSync(join(work, 'request.json'), JSON.stringify({ encoder: resolve(flags.encoder), output, inputs: request }))
execFileSync(flags.python, [resolve(import.meta.dirname, 'peers/qwen3_vl_files.py'), join(work, 'request.json')], {
  stdio: ['ignore', 'ignore', 'pipe'],
  env: { ...process.env, HF_HUB_OFFLINE: '1' },
})
const peers = JSON.parse(readFileSync(output, 'utf8'))

const profile = await readEncoder(flags.encoder)
const embedder = await openEmbedder(profile)
const { embeddings, tokens } = await embedder.embed(inputs, 'node')
await embedder.close()
rmSync(work, { recursive: true, force: true })

const rows = inputs.map(({ text, video }, i) => {
  const mine = embeddings.subarray(i * profile.dimension, (i + 1) * profile.dimension)
  const cosine = mine.reduce((sum, value, d) => sum + value * peers[i].embedding[d], 0)
  return { file: text, frames: video?.frames.length ?? 1, tokens: [tokens[i], peers[i].tokens], distance: 1 - cosine }
})
if (flags.json) console.log(JSON.stringify(rows))
else
  console.log(
    markdownTable(
      ['file', 'frames', 'tokens here / there', '1 - cosine'],
      rows.map(({ file, frames, tokens: [a, b], distance }) => [
        file,
        `${frames}`,
        `${a} / ${b}`,
        distance.toExponential(1),
      ]),
    ),
  )
if (rows.some(({ tokens: [a, b], distance }) => a !== b || distance > 1 - COSINE)) process.exitCode = 1
