// What sharing prefixes saves: the share of tokens by modality and by cause, and the time of encoding and of training.
//
//   npm run build
//   node bench/prefixes.mjs --encoder <Qwen3-VL folder> --dataset <folder>… [--items n] [--frame 640x360] [--image 640x480] \
//     [--time] [--rounds 3] [--tokens 12000] [--threads n] [--json result.json]
//
// Tokens: all nodes of the gold items of a dataset (their hierarchies, B = 2, titles), as token sequences of the encoder's tokenizer
// and chat template. Pictures and videos are not opened: an image has the size --image, a video frames of the size --frame, scaled as
// the encoder scales them, and every pair of frames features of its own. `prompt`, `title` and `left children` are what the nodes of
// one item share: the template and the instruction; what all nodes of the item have in common beyond that, a title or a table's
// header; and the rest, of which nearly all is a left child that begins as its parent does. `saved in runs` is what is left out in the
// runs that are really made within 4 096 tokens, where items share the prompt, too; on a CPU they have 1 024 tokens unless more pay.
//
// Time (--time): --tokens tokens of the nodes of whole items, drawn by seed, through the encoder with LoRA on its default targets, with
// sharing and without in turn: embedding, and a training step of forward and backward. The largest differences between the two are
// printed. Features are random numbers. An encoder of any size and shape is written by bench/qwen3-random.mjs.
import { writeFileSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { parseArgs } from 'node:util'
import { openDataset } from '../dist/data/index.js'
import {
  causalLayout,
  defaultTargets,
  firstOccurrences,
  initialLora,
  linearModules,
  loadTokenizer,
  readEncoder,
  selectTargets,
  sharedTokens,
} from '../dist/encoder/index.js'
import { openChat, readChatTemplate } from '../dist/encoder/qwen3-vl/chat.js'
import { featureLevels, qwen3VlConfig } from '../dist/encoder/qwen3-vl/config.js'
import { factorOf, firstFrameScaling, frameScaling, imageLimits } from '../dist/encoder/qwen3-vl/processor.js'
import { layOut, named, visualTokens } from '../dist/encoder/qwen3-vl/prompt.js'
import { smartResize } from '../dist/encoder/qwen3-vl/smart-resize.js'
import { markdownTable } from '../dist/eval/index.js'
import { buildHierarchy, extentOf, nodeInput } from '../dist/hierarchy/index.js'
import { createRandom } from '../dist/support/random.js'
import { packUnits } from '../dist/train/data/sampler.js'
import { loraEncoder } from '../dist/train/engine/encoder.js'
import { openEngine } from '../dist/train/engine/engine.js'
import { builtInGradients } from '../dist/train/step/gradients.js'
import { median, medianRatio } from './support/alternate.mjs'
import { describeMachine, machineText } from './support/machine.mjs'

const { values: flags } = parseArgs({
  options: {
    encoder: { type: 'string' },
    dataset: { type: 'string', multiple: true },
    items: { type: 'string', default: '1000' },
    frame: { type: 'string', default: '640x360' },
    image: { type: 'string', default: '640x480' },
    time: { type: 'boolean', default: false },
    rounds: { type: 'string', default: '3' },
    tokens: { type: 'string', default: '12000' },
    threads: { type: 'string' },
    seed: { type: 'string', default: '1' },
    json: { type: 'string' },
  },
})
if (flags.encoder === undefined || flags.dataset === undefined) throw new Error('Give --encoder and --dataset.')
const threads = Number(flags.threads ?? availableParallelism())
const sizeOf = (text) => {
  const [width, height] = text.split('x').map(Number)
  return { width, height }
}
const log = (line) => console.error(line)
const machine = describeMachine()
log(machineText(machine))

const profile = await readEncoder(flags.encoder)
const config = qwen3VlConfig(profile.config, profile.folder)
const tokenizer = await loadTokenizer(profile)
const template = await readChatTemplate(profile)
const chat = openChat(tokenizer, template, profile.prompts.node, ['<|image_pad|>', '<|video_pad|>'])
const settings = {
  tokenizer,
  tokens: visualTokens(tokenizer, config, profile.folder),
  merge: config.vision_config.spatial_merge_size,
  maxLength: tokenizer.maxLength,
}

/** Patches of a picture of this size after it was scaled to each of some limits in turn. */
function gridOf(size, steps) {
  const scaled = steps.reduce((at, { factor, limits }) => smartResize(at, factor, limits, 'a picture'), size)
  const patch = config.vision_config.patch_size
  return [scaled.height / patch, scaled.width / patch]
}

/** A node as the encoder reads it; the names of features say which picture or pair of frames, and how large. */
function sequenceOf(hierarchy, node) {
  const { text, image, video } = nodeInput(hierarchy, node, { title: true })
  const { id } = hierarchy.item
  if (image !== undefined) {
    const grid = gridOf(sizeOf(flags.image), [
      { factor: factorOf(config.vision_config), limits: imageLimits(config.vision_config) },
    ])
    const input = { text, images: [id] }
    return named(layOut(settings, chat, input, [{ file: id, grids: [grid] }]), [id])
  }
  if (video === undefined) return named(layOut(settings, chat, { text }, []), [])
  const { frames } = video
  const count = Math.ceil(frames.length / 2)
  const grid = gridOf(sizeOf(flags.frame), [
    firstFrameScaling(config.vision_config),
    frameScaling(config.vision_config, 2 * count),
  ])
  const pairs = Array.from(
    { length: count },
    (_, i) => `${id}/${frames[2 * i]}/${frames[2 * i + 1] ?? frames[2 * i]}/${grid}`,
  )
  const input = { text, video: { path: id, frames, start: extentOf(hierarchy, node)[0] } }
  return named(layOut(settings, chat, input, [{ file: id, grids: pairs.map(() => grid) }]), pairs)
}

/** Gold items of a dataset, each with its distinct sequences and its edges: parent and child, by their sequences. */
async function goldItems(folder) {
  const dataset = await openDataset(folder)
  const ids = new Set()
  for await (const { question } of dataset.questions()) for (const { item } of question.gold) ids.add(item)
  const items = []
  let truncated = 0
  for (const id of ids) {
    if (items.length === Number(flags.items)) break
    const hierarchy = buildHierarchy(await dataset.item(id))
    const encoded = hierarchy.nodes.map((node) => sequenceOf(hierarchy, node))
    truncated += encoded.filter((one) => one.truncated).length
    const { same, first } = firstOccurrences(encoded.map(({ sequence }) => sequence))
    const place = new Map(first.map((node, i) => [node, i]))
    const at = new Map(hierarchy.nodes.map((node, i) => [node, place.get(same[i])]))
    const edges = hierarchy.nodes.flatMap((node) => node.children.map((child) => [at.get(node), at.get(child)]))
    const sequences = first.map((node) => encoded[node].sequence)
    items.push({ modality: hierarchy.item.modality, sequences, edges: edges.filter(([a, b]) => a !== b) })
  }
  const { name } = dataset.meta
  await dataset.close()
  return { name, items, truncated }
}

const totalOf = (sequences) => sequences.reduce((sum, { ids }) => sum + ids.length, 0)
/** Tokens that two sequences have in common from the first on. */
const common = (a, b) => totalOf([a, b]) - sharedTokens([a, b]).computed
const percent = (part, whole) => `${((100 * part) / whole).toFixed(1)} %`

/** Where the tokens of some items go. */
function tokensOf({ name, items, truncated }, modality) {
  const own = items.filter((item) => item.modality === modality)
  const sums = { total: 0, prompt: 0, title: 0, left: 0, nodes: 0 }
  for (const { sequences } of own) {
    const [first, ...others] = sequences
    const inAll = others.reduce((least, other) => Math.min(least, common(first, other)), first.ids.length)
    const { computed, total } = sharedTokens(sequences)
    sums.total += total
    sums.nodes += sequences.length
    sums.prompt += others.length * Math.min(chat.prefixLength, inAll)
    sums.title += others.length * Math.max(0, inAll - chat.prefixLength)
    sums.left += total - computed - others.length * inAll
  }
  const all = own.flatMap(({ sequences }) => sequences)
  const runs = [1024, Number.POSITIVE_INFINITY].map((wanted) => {
    const [shared, apart] = [true, false].map((share) => {
      const layout = causalLayout(profile, { padId: 0, share })
      const groups = layout.batches(all, 4096, wanted).map((group) => group.map((i) => all[i]))
      const sum = (of) => groups.reduce((n, group) => n + of(group), 0)
      return { runs: groups.length, computed: sum(layout.computed), padded: sum(layout.tokens) }
    })
    return { wanted, shared, apart }
  })
  return { name, modality, items: own.length, truncated, ...sums, runs }
}

const gathered = []
const rows = []
for (const folder of flags.dataset) {
  const data = await goldItems(folder)
  gathered.push(data)
  for (const modality of new Set(data.items.map((item) => item.modality))) rows.push(tokensOf(data, modality))
  log(`${data.name}: ${data.items.length} items`)
}
const savings = markdownTable(
  [
    ...['dataset', 'modality', 'items', 'nodes', 'tokens/node', 'prompt', 'title', 'left children', 'saved in an item'],
    ...['saved in runs, CPU', 'with padding', 'saved in runs, GPU', 'with padding'],
  ],
  rows.map((row) => [
    ...[row.name, row.modality, String(row.items), String(row.nodes), (row.total / row.nodes).toFixed(0)],
    ...[row.prompt, row.title, row.left, row.prompt + row.title + row.left].map((saved) => percent(saved, row.total)),
    ...row.runs.flatMap(({ shared, apart }) => [
      percent(apart.computed - shared.computed, apart.computed),
      percent(apart.padded - shared.padded, apart.padded),
    ]),
  ]),
)
const described = `prompt ${chat.prefixLength} tokens, behind the text ${chat.suffix.length}; frames ${flags.frame}, images ${flags.image}`
console.log(`${machineText(machine)}\n\n${described}\n\n${savings}`)
const timed = flags.time ? await timeAll() : []
if (flags.json !== undefined) writeFileSync(flags.json, `${JSON.stringify({ machine, flags, rows, timed }, null, 2)}\n`)

async function timeAll() {
  const targets = selectTargets(linearModules(profile), defaultTargets(profile)).map((module) => ({
    ...module,
    rank: 16,
    alpha: 32,
  }))
  const random = createRandom(flags.seed)
  // B is not zero, so that A has a gradient, too
  const tensors = new Map(
    [...initialLora(targets, flags.seed)].map(([name, data]) => [name, data.map(() => 0.02 * random.normal())]),
  )
  const visuals = { features: randomFeatures(random) }
  const query = Float32Array.from({ length: profile.dimension }, () => random.normal() / Math.sqrt(profile.dimension))
  const engines = []
  for (const share of [true, false]) {
    const encoder = await loraEncoder(profile, targets, tokenizer.padId, { share, visuals })
    const loss = { loss: 'logistic', tau: 0.1, margin: 0.1 }
    engines.push({
      encoder,
      engine: await openEngine({ encoder, queries: () => query, loss, tokenBudget: 4096, threads }),
      embed: [],
      step: [],
    })
  }
  const timed = []
  for (const data of gathered)
    for (const modality of new Set(data.items.map((item) => item.modality)))
      timed.push(await timeOne(engines, tensors, data, modality))
  for (const { engine } of engines) await engine.close()
  const seconds = (times) => median(times).toFixed(2)
  console.log(
    `\n${markdownTable(
      [
        'nodes of',
        'modality',
        'nodes',
        'tokens',
        'saved',
        'encoding s',
        'without',
        'ratio',
        'step s',
        'without',
        'ratio',
        'largest differences',
      ],
      timed.map((t) => [
        ...[t.name, t.modality, String(t.nodes), String(t.total), percent(t.total - t.computed, t.total)],
        ...[seconds(t.embed[0]), seconds(t.embed[1]), medianRatio(t.embed[1], t.embed[0]).toFixed(2)],
        ...[seconds(t.step[0]), seconds(t.step[1]), medianRatio(t.step[1], t.step[0]).toFixed(2)],
        `${t.embeddings.toExponential(1)}, ${t.gradients.toExponential(1)}`,
      ]),
    )}\n\nMedians of ${flags.rounds} rounds after one that does not count; ratio: without sharing by with it, round by round. Differences: of embeddings; of gradients, by the largest element of each matrix's.`,
  )
  return timed
}

async function timeOne(engines, tensors, { name, items }, modality) {
  const own = items.filter((item) => item.modality === modality)
  createRandom(`${flags.seed}/${name}`).shuffle(own)
  const chosen = []
  for (let total = 0; total < Number(flags.tokens) && own.length > 0; total += totalOf(chosen.at(-1).sequences))
    chosen.push(own.pop())
  const all = chosen.flatMap(({ sequences }) => sequences)
  const batches = engines.map(({ encoder }) => ({ micro: microBatches(encoder, chosen) }))
  const times = { embed: [[], []], step: [[], []] }
  let outcomes
  for (let round = 0; round <= Number(flags.rounds); round++) {
    outcomes = []
    for (const [i, { engine }] of engines.entries()) {
      const began = performance.now()
      const embeddings = await engine.embed(all, tensors)
      const between = performance.now()
      const { gradients } = await builtInGradients(batches[i], tensors, engine)
      const ended = performance.now()
      outcomes.push({ embeddings, gradients })
      if (round === 0) continue
      times.embed[i].push((between - began) / 1000)
      times.step[i].push((ended - between) / 1000)
    }
  }
  const [shared, apart] = outcomes
  const differences = [...apart.gradients].map(
    ([key, data]) => largest(data, shared.gradients.get(key)) / largest(data),
  )
  const [{ encoder }] = engines
  const computed = batches[0].micro.reduce((sum, { sequences }) => sum + encoder.computed(sequences), 0)
  log(`timed ${name}, ${modality}`)
  return {
    ...{ name, modality, nodes: all.length, total: totalOf(all), computed, ...times },
    embeddings: largest(shared.embeddings, apart.embeddings),
    gradients: Math.max(...differences),
  }
}

/** As `canopy train` puts instances together, one for each item: whole items, within a budget of 4 096 tokens, 1 024 wanted. */
function microBatches(encoder, items) {
  const units = items.filter(({ edges }) => edges.length > 0)
  const sequencesOf = (chosen) => chosen.flatMap((unit) => units[unit].sequences)
  const groups = packUnits(
    units.map(({ sequences }) => encoder.computed?.(sequences) ?? totalOf(sequences)),
    (chosen) => encoder.tokens(sequencesOf(chosen)),
    4096,
    1024,
  )
  const edges = units.reduce((sum, unit) => sum + unit.edges.length, 0)
  return groups.map(({ units: chosen, oversize }) => {
    let before = 0
    const pairs = chosen.flatMap((unit) => {
      const own = units[unit].edges.map(([parent, child]) => ({
        ...{ preferred: before + parent, other: before + child, question: 0, weight: 1 / edges },
      }))
      before += units[unit].sequences.length
      return own
    })
    return { sequences: sequencesOf(chosen), pairs, oversize }
  })
}

/** Stands for a store: any key has features, parts of one table of random numbers. */
function randomFeatures(random) {
  const width = config.text_config.hidden_size
  const levels = featureLevels(config.vision_config)
  const tokens = 4096
  const table = Float32Array.from({ length: 2 * levels * tokens * width }, () => 0.02 * random.normal())
  const rowsOf = new Map()
  for (const { items } of gathered)
    for (const { sequences } of items)
      for (const { visuals = [] } of sequences) for (const { key, length } of visuals) rowsOf.set(key, length)
  return {
    has: (key) => rowsOf.has(key),
    get(key) {
      const at = createRandom(key).int(levels * tokens * width)
      return table.subarray(at, at + levels * rowsOf.get(key) * width)
    },
  }
}

/** The largest absolute number of an array, or of the differences between two. */
function largest(a, b) {
  return a.reduce((most, x, i) => Math.max(most, Math.abs(b === undefined ? x : x - b[i])), 0)
}
