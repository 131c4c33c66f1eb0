import { resolve } from 'node:path'
import { createKeyTable, type Dataset, mayHoldMedia } from '../../data/index.ts'
import { type EncoderInput, encoderInput } from '../../encoder/index.ts'
import {
  addTrainingQuestion,
  createOverlapCounter,
  emptyTrainingData,
  type Overlap,
  type TrainingData,
} from '../../eval/index.ts'
import {
  buildHierarchy,
  type Hierarchy,
  type Item,
  nodeKey,
  type Question,
  type RenderOptions,
} from '../../hierarchy/index.ts'
import { checkFresh, openPreferences, type PreferenceInstance, type Preferences } from '../../preferences/index.ts'
import { InputError } from '../../support/errors.ts'
import { sha256File } from '../../support/files.ts'
import type { Progress } from '../../support/progress.ts'
import type { SamplerIndex } from './sampler.ts'

/** One preferences file and the dataset it was built from. */
export interface TrainingSource {
  dataset: string
  /** Absolute path of the dataset. */
  folder: string
  split: string
  branching: number
  preferences: string
  /** Guards the split's questions and items. */
  hash: string
  /** SHA-256 of the preferences file. */
  sha256: string
}

/** An instance, read from disk: what to encode and what to prefer. */
export interface RawInstance {
  preferences: PreferenceInstance
  hierarchy: Hierarchy
  /** The dataset's, in which pictures and videos lie. */
  folder: string
}

/** What is trained on. Instances and questions stay on disk; memory holds a few numbers of each. */
export interface TrainingSet {
  sources: TrainingSource[]
  /** Parallel over instances: numbers of the source, the benchmark, and the question. */
  index: SamplerIndex & { question: Int32Array }
  benchmarks: string[]
  questionCount: number
  /** The questions of the instances with their numbers, in the order of their files. */
  questions(): AsyncIterable<{ number: number; text: string }>
  /** Instances without pairs, which teach nothing. */
  empty: number
  /** What is trained and selected on, as hashes. */
  trainingData(): Promise<TrainingData>
  /** How much of some instances' questions is among what was trained on before. */
  seen(before: TrainingData, instances: Int32Array): Promise<Overlap>
  read(instance: number): Promise<RawInstance>
  /** An instance's item. */
  item(instance: number): Promise<Item>
  /** Whether an instance's item can be an image or a video, without reading it. */
  mayBeVisual(instance: number): Promise<boolean>
  /** Where an instance comes from: number of its source, question and item. */
  name(instance: number): Promise<{ data: number; question: string; item: string }>
}

/**
 * Opens preferences together with the datasets they name.
 *
 * @throws InputError for preferences without a dataset, a dataset without preferences, stale preferences (saying what
 *   changed) and preferences whose questions are gone
 */
export async function openTrainingSet(
  preferenceFiles: string[],
  datasets: Dataset[],
  onProgress: Progress = () => {},
): Promise<TrainingSet> {
  const byName = new Map<string, Dataset>()
  for (const dataset of datasets) {
    const other = byName.get(dataset.meta.name)
    if (other !== undefined)
      throw new InputError(
        `The datasets ${other.folder} and ${dataset.folder} are both called "${dataset.meta.name}", so preferences cannot be told apart; rename one (its dataset.json and preferences).`,
      )
    byName.set(dataset.meta.name, dataset)
  }
  const table = createTable()
  const sources: TrainingSource[] = []
  const files: { dataset: Dataset; preferences: Preferences }[] = []
  const used = new Set<Dataset>()
  for (const path of preferenceFiles) {
    onProgress({ phase: 'checking preferences', done: sources.length, total: preferenceFiles.length })
    const preferences = await openPreferences(path)
    const { header } = preferences
    const dataset = byName.get(header.dataset)
    if (dataset === undefined)
      throw new InputError(
        `These preferences belong to the dataset "${header.dataset}"; the datasets given are ${[...byName.keys()].map((name) => `"${name}"`).join(', ')}. Add it with --dataset.`,
        { file: path },
      )
    await checkFresh(preferences, dataset)
    const first = sources[0]
    if (first !== undefined && first.branching !== header.branching)
      throw new InputError(
        `These preferences are for trees of branching factor ${header.branching}, those in ${first.preferences} for ${first.branching}; train on one of them.`,
        { file: path },
      )
    const twice = sources.find((s) => s.dataset === header.dataset && s.split === header.split)
    if (twice !== undefined)
      throw new InputError(
        `${twice.preferences} holds the preferences of the same dataset and split; give one of them.`,
        {
          file: path,
        },
      )
    used.add(dataset)
    await table.add(preferences, files.length, dataset)
    files.push({ dataset, preferences })
    sources.push({
      dataset: header.dataset,
      folder: resolve(dataset.folder),
      split: header.split,
      branching: header.branching,
      preferences: path,
      hash: header.hash,
      sha256: await sha256File(path),
    })
  }
  const unused = datasets.find((dataset) => !used.has(dataset))
  if (unused !== undefined)
    throw new InputError(
      `No preferences belong to the dataset "${unused.meta.name}" (${unused.folder}); make them with "canopy preferences" and add them with --preferences.`,
    )
  onProgress({ phase: 'checking preferences', done: sources.length, total: preferenceFiles.length })
  const { index, places, benchmarks, questionCount, questionNumbers, empty } = table.finish()
  const questions = async function* (): AsyncGenerator<{ number: number; question: Question }> {
    for (const [i, { dataset, preferences }] of files.entries()) {
      let place = 0
      for await (const { question } of dataset.questions(preferences.header.split)) {
        const number = questionNumbers[i]!.at(place++)
        if (number !== undefined && number >= 0) yield { number, question }
      }
    }
  }
  const media = new Map<Dataset, Promise<boolean>>()
  return {
    sources,
    index,
    benchmarks,
    questionCount,
    async *questions() {
      for await (const { number, question } of questions()) yield { number, text: question.question }
    },
    empty,
    async trainingData() {
      const data = emptyTrainingData()
      for await (const { question } of questions()) addTrainingQuestion(data, question)
      return data
    },
    async seen(before, instances) {
      const wanted = new Set(Array.from(instances, (instance) => index.question[instance]!))
      const counter = createOverlapCounter(before)
      for await (const { number, question } of questions()) if (wanted.has(number)) counter.add(question)
      return counter.result()
    },
    async name(instance) {
      const data = places.file[instance]!
      const { question, item } = await files[data]!.preferences.at(places.line[instance]!)
      return { data, question, item }
    },
    mayBeVisual(instance) {
      const { dataset } = files[places.file[instance]!]!
      let found = media.get(dataset)
      if (found === undefined) {
        found = mayHoldMedia(dataset)
        media.set(dataset, found)
      }
      return found
    },
    async item(instance) {
      const { dataset, preferences } = files[places.file[instance]!]!
      return dataset.item((await preferences.at(places.line[instance]!)).item)
    },
    async read(instance) {
      const { dataset, preferences } = files[places.file[instance]!]!
      const found = await preferences.at(places.line[instance]!)
      return {
        preferences: found,
        folder: dataset.folder,
        hierarchy: buildHierarchy(await dataset.item(found.item), preferences.header.branching),
      }
    },
  }
}

/** Collects the instances of preferences files into flat arrays. */
function createTable() {
  const file = growing()
  const line = growing()
  const question = growing()
  const source = growing()
  const benchmark = growing()
  const sourceKeys = createKeyTable()
  const benchmarks: string[] = []
  /** For each file the number of every question of its split, in the split's order; -1 where it has no instance. */
  const questionNumbers: Int32Array[] = []
  let questionCount = 0
  let empty = 0

  return {
    async add(preferences: Preferences, fileNumber: number, dataset: Dataset): Promise<void> {
      const { split } = preferences.header
      const ids = createKeyTable()
      const first = question.size
      let i = -1
      for await (const { question: id, pairs } of preferences.instances()) {
        i++
        if (pairs.length === 0) {
          empty++
          continue
        }
        file.push(fileNumber)
        line.push(i)
        question.push(ids.add(id).entry)
      }
      const benchmarkOf = new Int32Array(ids.size)
      const sourceOf = new Int32Array(ids.size)
      const numbers = growing()
      let found = 0
      for await (const { question: q } of dataset.questions(split)) {
        const number = ids.find(q.id)
        numbers.push(number < 0 ? -1 : questionCount + number)
        if (number < 0) continue
        found++
        let b = benchmarks.indexOf(q.benchmark)
        if (b === -1) b = benchmarks.push(q.benchmark) - 1
        benchmarkOf[number] = b
        // A question without a source is its own.
        sourceOf[number] = sourceKeys.add(q.source === undefined ? `${fileNumber}\0${q.id}` : `\0${q.source}`).entry
      }
      if (found < ids.size)
        throw new InputError(
          `${ids.size - found} of the questions are not in the split "${split}" of "${dataset.meta.name}"; build the preferences again.`,
          { file: preferences.file },
        )
      for (let j = first; j < question.size; j++) {
        const number = question.at(j)
        question.set(j, questionCount + number)
        source.push(sourceOf[number]!)
        benchmark.push(benchmarkOf[number]!)
      }
      questionNumbers.push(numbers.array())
      questionCount += ids.size
    },
    finish() {
      return {
        index: {
          count: question.size,
          source: source.array(),
          benchmark: benchmark.array(),
          question: question.array(),
        },
        places: { file: file.array(), line: line.array() },
        benchmarks,
        questionCount,
        questionNumbers,
        empty,
      }
    },
  }
}

/** Whole numbers in an array that grows. */
function growing() {
  let data = new Int32Array(1024)
  let size = 0
  return {
    get size() {
      return size
    },
    push(value: number) {
      if (size === data.length) {
        const larger = new Int32Array(size * 2)
        larger.set(data)
        data = larger
      }
      data[size++] = value
    },
    at: (i: number) => data[i]!,
    set(i: number, value: number) {
      data[i] = value
    },
    array: () => data.slice(0, size),
  }
}

/** What an encoder reads of an instance's nodes, in the order of its `nodes`. */
export function instanceInputs(
  { preferences, hierarchy, folder }: RawInstance,
  rendering: RenderOptions,
): EncoderInput[] {
  const nodes = new Map(hierarchy.nodes.map((node) => [nodeKey(node), node]))
  return preferences.nodes.map(([from, to]) => {
    const node = nodes.get(nodeKey({ from, to, children: [] }))
    if (node === undefined)
      throw new InputError(
        `The preferences name the node [${from}, ${to}) of item "${preferences.item}", whose hierarchy has none; build the preferences again.`,
      )
    return encoderInput(hierarchy, node, rendering, folder)
  })
}
