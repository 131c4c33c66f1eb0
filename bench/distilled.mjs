// A distilled encoder beside its teacher: cosine on held-out texts of several kinds, agreement of pairwise similarities, then speed,
// memory, loading and disk, and how long a program waits for ten refined items.
//
//   npm run build
//   node bench/distilled.mjs --teacher <MiniLM folder> --student models/canopy-mini --axes <distillation run>/axes.safetensors \
//     --dataset datasets/hotpotqa --dataset datasets/nq --dataset datasets/ottqa [--json result.json]
//
// Contestants of the speed part take turns, each in a process of its own (encoding/ours.mjs, serving.mjs, transformers-js.mjs).
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { loadTokenizer, openEmbedder, readEncoder } from '../dist/encoder/index.js'
import { markdownTable, quantile } from '../dist/eval/index.js'
import { openSafetensors } from '../dist/onnx/index.js'
import { createRandom } from '../dist/support/random.js'
import { compareServing, compareSpeed } from './encoding/side-by-side.mjs'
import { describeMachine, machineText } from './support/machine.mjs'
import { wholeNumber } from './support/numbers.mjs'
import { product, spearman, unitRows } from './support/ranking.mjs'
import { sizeOf } from './support/size.mjs'
import { refinementCases, textsByKind } from './support/texts.mjs'

const HELP = `A distilled encoder beside its teacher: closeness on held-out texts, speed, memory, size, waiting time.

  --teacher <folder>        encoder that was distilled
  --student <folder>        encoder that was trained
  --axes <file>             safetensors with "axes" [student, teacher], orthonormal rows: the teacher's directions that the student's
                            embedding stands for; not needed where both have the same length
  --dataset <folder>        made by "canopy import"; several times: sentences, passages, tables, regions, questions of --split
  --split <name>            (dev)
  --text <kind=file>        further texts, one a line; several times
  --limit <n>               texts of each kind, drawn at random (500)
  --rounds <n>              of the speed part (3); 0 leaves it out
  --speed-texts <n>         texts that are embedded in it (600), drawn from all kinds; none longer than either encoder reads
  --cases <n>               questions that are asked of ten items each (40); 0 leaves it out; needs --dataset
  --teacher-onnx <folder>, --student-onnx <folder>
                            their transformers.js folders, for transformers.js beside this engine
  --threads <n>             (2)
  --seed <text>             (distilled)
  --work <folder>           keeps what the contestants leave
  --json <file>             all figures

example: node bench/distilled.mjs --teacher minilm --student models/canopy-mini --axes runs/distill/axes.safetensors \\
           --dataset datasets/hotpotqa --dataset datasets/ottqa`

const { values: flags } = parseArgs({
  options: {
    teacher: { type: 'string' },
    student: { type: 'string' },
    axes: { type: 'string' },
    dataset: { type: 'string', multiple: true, default: [] },
    split: { type: 'string', default: 'dev' },
    text: { type: 'string', multiple: true, default: [] },
    limit: { type: 'string', default: '500' },
    rounds: { type: 'string', default: '3' },
    'speed-texts': { type: 'string', default: '600' },
    cases: { type: 'string', default: '40' },
    'teacher-onnx': { type: 'string' },
    'student-onnx': { type: 'string' },
    threads: { type: 'string', default: '2' },
    seed: { type: 'string', default: 'distilled' },
    work: { type: 'string' },
    json: { type: 'string' },
    help: { type: 'boolean', default: false },
  },
})
if (flags.help) {
  console.log(HELP)
  process.exit(0)
}
if (flags.teacher === undefined || flags.student === undefined || flags.dataset.length + flags.text.length === 0)
  throw new Error('Give --teacher, --student and at least one --dataset or --text; --help says more.')
const threads = wholeNumber(flags, 'threads')
const rounds = wholeNumber(flags, 'rounds', 0)
const limit = wholeNumber(flags, 'limit', 2)
const speedTexts = wholeNumber(flags, 'speed-texts')
const caseCount = wholeNumber(flags, 'cases', 0)
const random = createRandom(flags.seed)
const log = (line) => console.error(line)
/** A dash for what was not measured. */
const fixed = (value, digits) => (Number.isFinite(value) ? value.toFixed(digits) : '–')
const machine = describeMachine({ gigabytes: 2 })
console.log(machineText(machine))

const teacher = await readEncoder(flags.teacher)
const student = await readEncoder(flags.student)
const axes = await readAxes()
const kinds = await chooseTexts()
const closeness = await measureCloseness()
console.log(
  `\n${markdownTable(
    [
      'held-out',
      'texts',
      'mean cosine',
      '5th percentile',
      'with another text',
      'most the axes allow',
      "Spearman's ρ of pairs",
      'texts cut: teacher, student',
      'tokens a text: teacher, student',
    ],
    closeness.map(({ kind, texts, mean, low, other, most, rho, cut, tokens }) => [
      kind,
      String(texts),
      fixed(mean, 4),
      fixed(low, 4),
      fixed(other, 4),
      fixed(most, 4),
      fixed(rho, 4),
      cut.join(', '),
      tokens.map((count) => count.toFixed(1)).join(', '),
    ]),
  )}`,
)
if (axes === undefined && teacher.dimension !== student.dimension)
  console.log('\nNo cosine: the embeddings differ in length; give --axes.')

const sizes = [await sizeOf(teacher), await sizeOf(student)]
console.log(
  `\n${markdownTable(
    ['', 'weights MB', 'folder MB', 'parameters, million', 'embedding', 'longest text, tokens'],
    sizes.map(({ id, weights, folder, parameters, dimension, maxLength }) => [
      id,
      fixed(weights / 1e6, 2),
      fixed(folder / 1e6, 2),
      fixed(parameters / 1e6, 2),
      String(dimension),
      String(maxLength),
    ]),
  )}`,
)
const work = flags.work === undefined ? mkdtempSync(join(tmpdir(), 'canopy-distilled-')) : resolve(flags.work)
mkdirSync(work, { recursive: true })
const speed = rounds > 0 ? await measureSpeed() : undefined
const serving = rounds > 0 && caseCount > 0 && flags.dataset.length > 0 ? await measureServing() : undefined
if (flags.work === undefined) rmSync(work, { recursive: true })
if (flags.json !== undefined)
  writeFileSync(flags.json, `${JSON.stringify({ machine, flags, closeness, sizes, speed, serving }, null, 2)}\n`)
if ([...(speed?.rows ?? []), ...(serving?.rows ?? [])].some(({ error }) => error !== undefined)) process.exitCode = 1

/** float32 [student, teacher], its rows orthonormal within 1e-3; undefined where no file is given. */
async function readAxes() {
  if (flags.axes === undefined) return undefined
  const file = await openSafetensors(flags.axes)
  const { shape } = file.tensors.get('axes') ?? {}
  if (shape?.[0] !== student.dimension || shape?.[1] !== teacher.dimension)
    throw new Error(
      `${flags.axes}: "axes" was expected with shape ${student.dimension}, ${teacher.dimension} (student, teacher), not ${shape?.join(', ')}.`,
    )
  const rows = await file.readTensor('axes')
  for (let i = 0; i < shape[0]; i++)
    for (let j = 0; j <= i; j++)
      if (Math.abs(product(rows, i, rows, j, shape[1]) - (i === j ? 1 : 0)) > 1e-3)
        throw new Error(`${flags.axes}: rows ${j} and ${i} of "axes" are not orthonormal.`)
  return rows
}

/** Kind -> texts, at most --limit each. */
async function chooseTexts() {
  const all = new Map()
  const add = (kind, texts) => all.set(kind, [...new Set([...(all.get(kind) ?? []), ...texts])])
  for (const folder of flags.dataset)
    for (const [kind, texts] of Object.entries(await textsByKind(folder, flags.split))) add(kind, texts)
  for (const given of flags.text) {
    const at = given.indexOf('=')
    if (at < 1) throw new Error(`--text ${given}: a kind and a file were expected, as in --text news=news.txt`)
    const lines = readFileSync(given.slice(at + 1), 'utf8').split('\n')
    add(
      given.slice(0, at),
      lines.map((line) => line.trim()).filter((line) => line !== ''),
    )
  }
  for (const [kind, texts] of all) {
    random.shuffle(texts)
    if (texts.length >= 2) all.set(kind, texts.slice(0, limit))
    else {
      all.delete(kind)
      log(`${kind}: left out, having ${texts.length} of the 2 texts or more that similarities need`)
    }
  }
  if (all.size === 0) throw new Error('There are no texts to measure on; give another --split, --dataset or --text.')
  return all
}

/**
 * With unit embeddings t [teacher] and s [student] and the axes A: cosine of the student with the teacher (Aᵀs)·t = s·(At); the
 * most it can be is |At|. Where both have the same length and there are no axes, s·t.
 */
async function measureCloseness() {
  const embedders = [await openEmbedder(teacher, { threads }), await openEmbedder(student, { threads })]
  const results = []
  for (const [kind, texts] of kinds) {
    const side = kind === 'questions' ? 'query' : 'node'
    const [ofTeacher, ofStudent] = [
      await embedders[0].embedTexts(texts, side),
      await embedders[1].embedTexts(texts, side),
    ]
    const t = unitRows(ofTeacher.embeddings, teacher.dimension)
    const s = unitRows(ofStudent.embeddings, student.dimension)
    const target = axes === undefined ? t : project(t, texts.length)
    const comparable = target.length === s.length
    const cosine = (i, j) => (comparable ? product(s, i, target, j, student.dimension) : Number.NaN)
    const cosines = Float64Array.from(texts, (_, i) => cosine(i, i))
    const norms = Float64Array.from(texts, (_, i) =>
      axes === undefined ? Number.NaN : Math.sqrt(product(target, i, target, i, student.dimension)),
    )
    results.push({
      kind,
      texts: texts.length,
      mean: meanOf(cosines),
      // the control: the student's embedding of a text with the teacher's of the next one
      other: meanOf(texts.map((_, i) => cosine(i, (i + 1) % texts.length))),
      low: quantile(cosines.sort(), 0.05),
      most: meanOf(norms),
      rho: spearman(pairs(t, teacher.dimension), pairs(s, student.dimension)),
      cut: [ofTeacher, ofStudent].map(({ truncated }) => truncated.filter(Boolean).length),
      tokens: [ofTeacher, ofStudent].map(({ tokens }) => meanOf(tokens)),
    })
    log(`${kind}: ${texts.length} texts`)
  }
  for (const embedder of embedders) await embedder.close()
  return results
}

function project(t, texts) {
  const out = new Float32Array(texts * student.dimension)
  for (let i = 0; i < texts; i++)
    for (let k = 0; k < student.dimension; k++)
      out[i * student.dimension + k] = product(axes, k, t, i, teacher.dimension)
  return out
}

/** Cosines of every two of the rows. */
function pairs(rows, width) {
  const count = rows.length / width
  const out = new Float64Array((count * (count - 1)) / 2)
  let at = 0
  for (let i = 1; i < count; i++) for (let j = 0; j < i; j++) out[at++] = product(rows, i, rows, j, width)
  return out
}

function meanOf(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length
}

/** Texts of all kinds that neither encoder cuts, in random order. */
async function measureSpeed() {
  const tokenizers = [await loadTokenizer(teacher), await loadTokenizer(student)]
  const everything = [...new Set([...kinds.values()].flat())]
  random.shuffle(everything)
  const texts = everything
    .filter((text) => tokenizers.every((tokenizer) => !tokenizer.encode(text).truncated))
    .slice(0, speedTexts)
  const encoders = [teacher, student].map(({ id, folder }, i) => ({
    id,
    folder,
    onnx: flags[i === 0 ? 'teacher-onnx' : 'student-onnx'],
    tokens: texts.reduce((sum, text) => sum + tokenizers[i].encode(text).ids.length, 0),
  }))
  const rows = await compareSpeed(encoders, { texts, threads, rounds, folder: join(work, 'speed'), log })
  console.log(
    `\n${markdownTable(
      ['', 'with', 'texts/s', 'tokens/s', `times ${teacher.id}`, 'loading s', 'peak memory MiB', 'batches'],
      rows.map(({ id, program, error, textsPerSecond, tokensPerSecond, timesFaster, loadSeconds, memory, note }) => [
        id,
        program,
        error === undefined ? fixed(textsPerSecond, 0) : 'failed',
        fixed(tokensPerSecond, 0),
        fixed(timesFaster, 2),
        fixed(loadSeconds, 2),
        fixed(memory / 2 ** 20, 0),
        note ?? '–',
      ]),
    )}\n\n${texts.length} texts (${encoders.map(({ id, tokens }) => `${tokens} tokens for ${id}`).join(', ')}), ${threads} threads, medians of ${rounds} rounds in turn; each program's ratio is to ${teacher.id} in the same program, round by round.`,
  )
  return { texts: texts.length, tokens: encoders.map(({ tokens }) => tokens), rows }
}

/** Every dataset gives an equal part of the questions. */
async function measureServing() {
  const share = Math.ceil(caseCount / flags.dataset.length)
  const cases = []
  for (const folder of flags.dataset)
    cases.push(...(await refinementCases(folder, flags.split, { questions: share, count: 10, random })))
  const rows = await compareServing([teacher, student], {
    ...{ cases, threads, rounds, log },
    folder: join(work, 'serving'),
  })
  console.log(
    `\n${markdownTable(
      ['openEncoder, ten items a question', 'median ms', '95th percentile ms', 'opening s', 'peak memory MiB'],
      rows.map(({ id, error, p50, p95, loadSeconds, memory }) => [
        id,
        error === undefined ? fixed(p50, 0) : 'failed',
        fixed(p95, 0),
        fixed(loadSeconds, 2),
        fixed(memory / 2 ** 20, 0),
      ]),
    )}\n\n${cases.length} questions, ${fixed(rows[0].nodesPerQuestion, 0)} nodes each, ${threads} threads, ${rounds} rounds.`,
  )
  return { cases: cases.length, rows }
}
