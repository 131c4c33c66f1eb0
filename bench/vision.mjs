// The vision tower of Qwen3-VL: its features against transformers', the time that pictures take, and what keeping features saves.
//
//   npm run build
//   node bench/vision.mjs [--python <python of bench/peers/requirements.txt>] [--depth 24] [--patches 256,1024,4096]
//     [--repeat 3] [--threads n] [--work folder] [--json]
//
// The tower has random weights and the sizes of Qwen3-VL-Embedding-2B's; --depth gives it fewer layers. Without --python nothing is
// compared. A picture of 256 patches is 256 × 256 pixels, one of 7 200 is the largest that the released code makes. Times are medians
// of --repeat pictures, of each of which nothing was seen before. Reading is from the store opened anew, checksum included, files in
// the system's cache; "from memory" is what a picture costs that was among those used last. A folder given as --work is kept, and what
// is there is used again.
import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { availableParallelism, tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { readEncoder } from '../dist/encoder/index.js'
import { featureKey, openFeatureStore } from '../dist/encoder/qwen3-vl/features.js'
import { openVision } from '../dist/encoder/qwen3-vl/vision.js'
import { plainVision } from '../dist/encoder/qwen3-vl/vision-graph.js'
import { markdownTable } from '../dist/eval/index.js'
import { openSafetensors, openSession } from '../dist/onnx/index.js'
import { createRandom } from '../dist/support/random.js'
import { median } from './support/alternate.mjs'
import { describeMachine, machineText } from './support/machine.mjs'
import { qwen3Shapes } from './support/qwen3-shapes.mjs'

const VALUES = 1536
const BOUND = 1e-4

const { values: flags } = parseArgs({
  options: {
    python: { type: 'string' },
    depth: { type: 'string', default: '24' },
    patches: { type: 'string', default: '256,1024,4096' },
    repeat: { type: 'string', default: '3' },
    threads: { type: 'string', default: String(availableParallelism()) },
    work: { type: 'string' },
    json: { type: 'boolean', default: false },
  },
})
const [depth, repeat, threads] = ['depth', 'repeat', 'threads'].map((name) => Number(flags[name]))
if (!(Number.isInteger(depth) && depth >= 4))
  throw new Error('--depth is a whole number from 4 on: three layers have DeepStack features')
const machine = describeMachine({ gigabytes: 6 })
const work = flags.work ?? mkdtempSync(join(tmpdir(), 'canopy-vision-'))
mkdirSync(work, { recursive: true })

/** The folder of a checkpoint with the tower and a language model as small as it may be. */
function makeModel() {
  const folder = join(work, `depth-${depth}`)
  if (existsSync(folder)) return folder
  const shape = qwen3Shapes['2b']
  const levels = [1, 2, 3].map((quarter) => Math.floor((quarter * depth) / 4) - 1)
  const config = {
    ...shape,
    text_config: { ...shape.text_config, num_hidden_layers: 3, vocab_size: 1000 },
    vision_config: { ...shape.vision_config, depth, deepstack_visual_indexes: levels },
  }
  const file = join(work, 'config.json')
  writeFileSync(file, JSON.stringify(config))
  const script = resolve(import.meta.dirname, 'qwen3-random.mjs')
  execFileSync(process.execPath, [script, '--output', folder, '--config', file], {
    stdio: ['ignore', 'ignore', 'inherit'],
  })
  return folder
}

/** Largest difference as a share of the largest expected number, of this engine's graph and of the exported one. */
async function compare(profile, vision) {
  const file = join(profile.folder, '..', `depth-${depth}.expected.safetensors`)
  if (!existsSync(file)) {
    const script = resolve(import.meta.dirname, 'peers/vision_reference.py')
    execFileSync(flags.python, [script, '--model', profile.folder, '--output', file], {
      stdio: ['ignore', 'ignore', 'inherit'],
    })
  }
  const expected = await openSafetensors(file)
  const stored = await openSafetensors(profile.modelFolder)
  const weights = new Map([...stored.tensors.keys()].map((name) => [name, stored.external(name)]))
  const plain = await openSession(plainVision(vision.config, weights, profile.weights), {
    externalFolder: stored.folder,
    threads,
  })
  const results = []
  for (const name of [...expected.tensors.keys()].filter((tensor) => tensor.endsWith('.features'))) {
    const features = await expected.read(name)
    const grids = await expected.read(name.replace('features', 'grids'))
    const rows = Array.from({ length: grids.shape[0] }, (_, i) =>
      Array.from(grids.data.subarray(3 * i, 3 * i + 3), Number),
    )
    const patches = rows.reduce((sum, [t, h, w]) => sum + t * h * w, 0)
    const pixels = Float32Array.from({ length: patches * VALUES }, (_, i) => ((i * 7919) % 255) / 127.5 - 1)
    const { image_features: exported } = await plain.run({
      pixel_values: { dtype: 'float32', shape: [patches, VALUES], data: pixels },
      image_grid_thw: grids,
    })
    results.push({
      name: rows.map((grid) => grid.join(' × ')).join(', '),
      own: relativeError(await pairByPair(vision, pixels, rows, features.shape), features.data),
      exported: relativeError(exported.data, features.data),
    })
  }
  await plain.release()
  return results
}

/** The features of every picture and every pair of frames by itself, put together as the reference has them: [levels, rows, width]. */
async function pairByPair(vision, pixels, grids, [levels, rows, width]) {
  const out = new Float32Array(levels * rows * width)
  let [patch, row] = [0, 0]
  for (const [times, height, wide] of grids)
    for (let time = 0; time < times; time++) {
      const area = height * wide
      const found = await vision.features(pixels.subarray(patch * VALUES, (patch + area) * VALUES), [height, wide])
      const size = found.length / levels
      for (let level = 0; level < levels; level++)
        out.set(found.subarray(level * size, (level + 1) * size), (level * rows + row) * width)
      patch += area
      row += size / width
    }
  return out
}

function relativeError(found, expected) {
  let [worst, largest] = [0, 0]
  expected.forEach((x, i) => {
    worst = Math.max(worst, Math.abs(x - found[i]))
    largest = Math.max(largest, Math.abs(x))
  })
  return worst / largest
}

/** Milliseconds that something takes, and what it gives. */
async function timed(action) {
  const began = performance.now()
  const result = await action()
  return [performance.now() - began, result]
}

/** Median milliseconds of each part of a picture's way, for pictures as square as their number of patches allows. */
async function measure(vision, patches) {
  const height = 2 * Math.floor(Math.sqrt(patches) / 2)
  const grid = [height, 2 * Math.round(patches / height / 2)]
  const random = createRandom(`pictures/${patches}`)
  const size = grid[0] * grid[1] * VALUES
  const folder = join(work, 'features')
  rmSync(folder, { recursive: true, force: true })
  const store = await openFeatureStore(folder, vision.fingerprint)
  const rounds = []
  const keys = []
  for (let n = 0; n <= repeat; n++) {
    const pixels = Float32Array.from({ length: size }, () => random.next() * 2 - 1)
    const [hash, key] = await timed(() => featureKey(vision.fingerprint, grid, pixels))
    const [tower, features] = await timed(() => vision.features(pixels, grid))
    const [put] = await timed(() => store.put(key, features))
    // the first picture loads weights and warms up
    if (n > 0) rounds.push({ hash, tower, put, megabytes: features.byteLength / 2 ** 20 })
    keys.push(key)
  }
  store.close()
  const again = await openFeatureStore(folder, vision.fingerprint)
  for (const [n, key] of keys.slice(1).entries()) {
    rounds[n].read = (await timed(() => again.get(key)))[0]
    rounds[n].memory = (await timed(() => again.get(key)))[0]
  }
  again.close()
  rmSync(folder, { recursive: true, force: true })
  const middle = Object.fromEntries(Object.keys(rounds[0]).map((key) => [key, median(rounds.map((r) => r[key]))]))
  return { grid, patches: grid[0] * grid[1], ...middle }
}

const profile = await readEncoder(makeModel())
const vision = await openVision(profile, { threads })
const parity = flags.python === undefined ? [] : await compare(profile, vision)
const speed = []
for (const patches of flags.patches.split(',').map(Number)) speed.push(await measure(vision, patches))
await vision.close()

const faults = parity.filter(({ own, exported }) => !(own <= BOUND && exported <= BOUND)).map(({ name }) => name)
if (flags.json) console.log(JSON.stringify({ machine, depth, threads, parity, speed }))
else {
  console.log(machineText(machine), '\n')
  if (parity.length > 0)
    console.log(
      markdownTable(
        ['pairs of frames × height × width, in patches', 'features, relative error', 'exported graph'],
        parity.map(({ name, own, exported }) => [name, own.toExponential(1), exported.toExponential(1)]),
      ),
      '\n',
    )
  console.log(`Depth ${depth}, ${threads} threads, median of ${repeat} pictures\n`)
  console.log(
    markdownTable(
      [
        ...['patches', 'vision tower', 'tokens/s', 'name by pixels', 'writing', 'MiB', 'reading', 'from memory'],
        'tower ÷ reading',
      ],
      speed.map(({ patches, tower, hash, put, megabytes, read, memory }) => [
        String(patches),
        `${(tower / 1000).toFixed(2)} s`,
        (patches / 4 / (tower / 1000)).toFixed(0),
        ...[hash, put].map((ms) => `${ms.toFixed(0)} ms`),
        megabytes.toFixed(1),
        `${read.toFixed(1)} ms`,
        `${memory.toFixed(3)} ms`,
        (tower / read).toFixed(0),
      ]),
    ),
  )
}
if (flags.work === undefined) rmSync(work, { recursive: true, force: true })
if (faults.length > 0) throw new Error(`Features differ from transformers' by more than ${BOUND}: ${faults.join('; ')}`)
