import { createHash } from 'node:crypto'
import { readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { type Dataset, openDataset, splitHash } from '../data/index.ts'
import {
  buildHierarchy,
  type GoldEntry,
  goldLeaves,
  type Hierarchy,
  type Question,
  RENDERING_VERSION,
  renderContent,
  renderHeader,
  renderNode,
  SEGMENTER_VERSION,
  type TableFormatName,
} from '../hierarchy/index.ts'
import { decisionCase } from '../preferences/index.ts'
import { InputError } from '../support/errors.ts'
import { atomicFolder, fileError, openLineWriter, writeFileAtomic } from '../support/files.ts'
import type { Progress } from '../support/progress.ts'
import { permuteQuestions } from './controls.ts'
import { type Estimates, estimate, RESAMPLES } from './estimates.ts'
import { addLevels, type LevelScores, levelMedians } from './levels.ts'
import { appendLook, countLooks, type LookCount } from './looks.ts'
import { getOrMake } from './maps.ts'
import { type InstanceSums, measureInstance, questionSums } from './metrics.ts'
import { createOverlapCounter, type Overlap, type TrainingData } from './overlap.ts'
import { ENCODERS, type EncoderName, MODEL_ENCODERS, type ModelEncoder, type ScoredInstance } from './scored.ts'
import { addDenominators, addInstance, emptySums, RESERVED_BENCHMARKS } from './sums.ts'
import { type BenchmarkCounts, csvTable, type Evaluation, metricsJson, summaryMarkdown } from './tables.ts'

/** What an evaluation needs of an encoder; an `Embedder` has it. */
export interface TextEmbedder {
  /** Identifies encoder, adapter, prompts and length. */
  readonly fingerprint: string
  /** Embeddings [texts, dim] of one side; `same[i]`: the first text with the token sequence of text i. */
  embedTexts(
    texts: string[],
    side: 'query' | 'node',
    options?: { signal?: AbortSignal },
  ): Promise<{ embeddings: Float32Array; truncated: ArrayLike<boolean>; same: Int32Array }>
}

export interface EvaluateOptions {
  /** Dataset folders; benchmarks are what their questions say. */
  datasets: readonly string[]
  split: string
  /** f0, which embeds the questions of every row. */
  query: TextEmbedder
  /** The node encoder of the row `frozen`: f0 again. */
  frozen: TextEmbedder
  /** The trained node encoder; without one, `fine-tuned` and `permuted` are absent. */
  fineTuned?: TextEmbedder | undefined
  /** Names of the encoders for the tables. */
  names: { query: string; frozen: string; fineTuned?: string | undefined }
  /** Tokens of a text by the node encoder's tokenizer, without special tokens, however long it is. */
  countTokens: (text: string) => number
  /** Name of that tokenizer. */
  tokenizer: string
  /** Whether nodes carry their item's title (and a table's caption). */
  title: boolean
  /** How tables become text, for the encoder and for counting tokens; Markdown unless told. */
  tableFormat?: TableFormatName | undefined
  /** Branching factor of the trees; 2 unless told. */
  branching?: number | undefined
  /** Seeds the permutation of questions and the bootstrap; '1' unless told. */
  seed?: string | undefined
  resamples?: number | undefined
  /** Score what was retrieved beside the gold items, too (where known); yes unless told. */
  retrieved?: boolean | undefined
  /** What the fine-tuned encoder was trained on; undefined: not known. */
  trainingData?: TrainingData | undefined
  /** Evaluate although sources of the split were trained on. */
  allowOverlap?: boolean | undefined
  /** Folder of the results, written whole when everything is done. */
  output: string
  /** Log in which evaluations of this run are counted. */
  looksFile?: string | undefined
  /** Nodes that are embedded at once; bounds memory, changes nothing else. */
  batchNodes?: number | undefined
  onProgress?: Progress | undefined
  signal?: AbortSignal | undefined
}

export interface EvaluationResult {
  estimates: Estimates
  evaluation: Evaluation
  looks: LookCount | undefined
}

/** Files of an evaluation's folder, those of later commands included. */
const RESULT_FILES = [
  'decisions.csv',
  'pruning.csv',
  'selection.csv',
  'metrics.json',
  'summary.md',
  'decisions.jsonl',
  'report.html',
]

/**
 * Measures node encoders on a split: embeds every node of the gold items (and of the other retrieved ones), refines, compares
 * with gold and with the controls, and writes `decisions.csv`, `pruning.csv`, `metrics.json`, `summary.md` and
 * `decisions.jsonl`. The same input gives the same bytes. Memory grows with the number of sources and of question texts, not
 * with that of nodes' texts or embeddings.
 *
 * @throws InputError for bad data (with file and line), for a benchmark with a reserved name, a question that occurs twice,
 *   sources that the encoder was trained on, and an output folder that holds something else
 */
export async function evaluate(options: EvaluateOptions): Promise<EvaluationResult> {
  const { split, output, branching = 2, seed = '1', resamples = RESAMPLES, onProgress, signal } = options
  await requireResultsFolder(output)
  const datasets: Dataset[] = []
  try {
    for (const folder of options.datasets) datasets.push(await openDataset(folder))
    const survey = await surveyQuestions(datasets, options)
    const hashes: string[] = []
    for (const dataset of datasets) hashes.push(await splitHash(dataset, split))
    signal?.throwIfAborted()

    const encoders = ENCODERS.filter(
      (encoder) => options.fineTuned !== undefined || (encoder !== 'fine-tuned' && encoder !== 'permuted'),
    )
    const evaluation = describe(options, datasets, hashes, survey)
    const look = {
      split: sha256(JSON.stringify([split, hashes])),
      configuration: sha256(
        JSON.stringify([
          ...[options.query, options.frozen, options.fineTuned].map((encoder) => encoder?.fingerprint ?? ''),
          ...[RENDERING_VERSION, SEGMENTER_VERSION, options.title, options.tableFormat ?? 'markdown', branching],
        ]),
      ),
    }
    const looks = options.looksFile === undefined ? undefined : await countLooks(options.looksFile, look)
    if (looks !== undefined) evaluation.looks = looks.configuration

    const estimates = await atomicFolder(output, async (folder) => {
      const sums = emptySums(encoders)
      const levels: LevelScores = new Map()
      const decisions = await openLineWriter(join(folder, 'decisions.jsonl'))
      try {
        for await (const scored of scoreQuestions(datasets, survey, options)) {
          const counts = evaluation.counts[scored.benchmark]!
          addDenominators(sums, scored.benchmark, scored.source, questionSums(scored.retrieved))
          counts.questions++
          if (scored.retrieved) counts.questionsWithRetrieved++
          counts.droppedAnnotations += scored.droppedAnnotations
          for (const instance of scored.instances) {
            const measured = measureNamed(instance, encodersOf(instance, encoders))
            addInstance(sums, instance.benchmark, instance.source, measured)
            addLevels(levels, instance)
            addCounts(counts, instance, measured)
            for (const line of decisionLines(instance, measured)) await decisions.write(line)
          }
        }
        await decisions.close()
      } catch (error) {
        await decisions.abandon()
        throw error
      }
      signal?.throwIfAborted()
      const estimates = estimate(sums, {
        seed,
        resamples,
        available: (benchmark, encoder) =>
          encoder !== 'permuted' || survey.benchmarks.get(benchmark)?.partners !== undefined,
        onProgress: (done, total) => onProgress?.({ phase: 'bootstrap', done, total }),
      })
      evaluation.clusters = estimates.clusters
      for (const benchmark of Object.keys(evaluation.counts)) {
        evaluation.scoreByLevel[benchmark] = Object.fromEntries(
          MODEL_ENCODERS.map((encoder) => [encoder, levelMedians(levels, benchmark, encoder)] as const).filter(
            ([, medians]) => medians.length > 0,
          ),
        )
      }
      await writeFileAtomic(join(folder, 'decisions.csv'), csvTable(estimates, 'decisions'))
      await writeFileAtomic(join(folder, 'pruning.csv'), csvTable(estimates, 'pruning'))
      await writeFileAtomic(join(folder, 'metrics.json'), metricsJson(estimates, evaluation))
      await writeFileAtomic(join(folder, 'summary.md'), summaryMarkdown(estimates, evaluation))
      return estimates
    })
    if (options.looksFile !== undefined) {
      await appendLook(options.looksFile, { time: new Date().toISOString(), ...look })
    }
    return { estimates, evaluation, looks }
  } finally {
    for (const dataset of datasets) await dataset.close()
  }
}

/** What a first reading of the questions gives. */
interface Survey {
  questions: number
  benchmarks: Map<string, BenchmarkSurvey>
  overlap: Overlap | null | undefined
}

interface BenchmarkSurvey {
  /** The different question texts, in file order. */
  texts: Set<string>
  /** Another question for each text; undefined where there is no other. */
  partners: Map<string, string> | undefined
}

async function surveyQuestions(datasets: readonly Dataset[], options: EvaluateOptions): Promise<Survey> {
  const { split, trainingData, fineTuned, allowOverlap, seed = '1', signal } = options
  const survey: Survey = { questions: 0, benchmarks: new Map(), overlap: fineTuned === undefined ? undefined : null }
  const counter = trainingData === undefined ? undefined : createOverlapCounter(trainingData)
  const seen = new Set<string>()
  for (const dataset of datasets) {
    for await (const { question, line } of dataset.questions(split)) {
      signal?.throwIfAborted()
      const place = { file: join(dataset.folder, 'questions.jsonl'), line }
      const { benchmark } = question
      if ((RESERVED_BENCHMARKS as readonly string[]).includes(benchmark)) {
        throw new InputError(
          `The benchmark is called "${benchmark}", which means something else in the results (${RESERVED_BENCHMARKS.join(', ')}); give it another name.`,
          place,
        )
      }
      const key = sha256(`${benchmark}\0${question.id}`)
      if (seen.has(key)) {
        throw new InputError(
          `Question "${question.id}" of "${benchmark}" is there twice, so it would count twice; name each dataset once.`,
          place,
        )
      }
      seen.add(key)
      survey.questions++
      const make = (): BenchmarkSurvey => ({ texts: new Set(), partners: undefined })
      getOrMake(survey.benchmarks, benchmark, make).texts.add(question.question)
      counter?.add(question)
    }
  }
  if (survey.questions === 0)
    throw new InputError(`The split "${split}" has no questions in ${options.datasets.join(', ')}.`)
  for (const [benchmark, entry] of survey.benchmarks) {
    entry.partners = permuteQuestions(entry.texts, `${seed}/permuted/${benchmark}`)
  }
  if (fineTuned !== undefined && counter !== undefined) {
    survey.overlap = counter.result()
    const { sources, of, examples } = survey.overlap
    if (sources > 0 && allowOverlap !== true) {
      const some = examples.map((source) => JSON.stringify(source)).join(', ')
      throw new InputError(
        `${sources} of ${of.sources} sources of the split "${split}" were trained on (${some}${sources > examples.length ? ', …' : ''}), so its numbers would flatter the encoder; evaluate on other data, or add --allow-overlap.`,
      )
    }
  }
  return survey
}

function describe(
  options: EvaluateOptions,
  datasets: readonly Dataset[],
  hashes: readonly string[],
  survey: Survey,
): Evaluation {
  const { names, query, frozen, fineTuned } = options
  const notes: string[] = []
  if (fineTuned === undefined) notes.push('Fine-tuned and permuted are absent: only the frozen encoder was evaluated')
  else {
    for (const [benchmark, { partners }] of survey.benchmarks) {
      if (partners === undefined) {
        notes.push(`Permuted is absent for ${benchmark}, which has one question: there is no other to ask instead`)
      }
    }
  }
  return {
    schema: 'canopy-evaluation/1',
    split: options.split,
    datasets: datasets.map((dataset, i) => ({ name: dataset.meta.name, hash: hashes[i]! })),
    encoders: {
      query: { name: names.query, fingerprint: query.fingerprint },
      frozen: { name: names.frozen, fingerprint: frozen.fingerprint },
      ...(fineTuned && { 'fine-tuned': { name: names.fineTuned ?? 'fine-tuned', fingerprint: fineTuned.fingerprint } }),
    },
    rendering: RENDERING_VERSION,
    segmenter: SEGMENTER_VERSION,
    title: options.title,
    tableFormat: options.tableFormat ?? 'markdown',
    branching: options.branching ?? 2,
    tokenizer: options.tokenizer,
    seed: options.seed ?? '1',
    resamples: options.resamples ?? RESAMPLES,
    clusters: {},
    counts: Object.fromEntries([...survey.benchmarks.keys()].sort().map((benchmark) => [benchmark, noCounts()])),
    scoreByLevel: {},
    ...(survey.overlap !== undefined && { overlap: survey.overlap }),
    notes,
  }
}

/** A question with its items scored. */
interface ScoredQuestion {
  benchmark: string
  source: string
  retrieved: boolean
  instances: ScoredInstance[]
  droppedAnnotations: number
}

interface PendingItem {
  hierarchy: Hierarchy
  headerTokens: number
  leafTokens: Int32Array
  /** Where its nodes' texts start in the batch. */
  offset: number
}

interface PendingQuestion {
  question: Question
  place: { file: string; line: number }
  /** `entries`: the question's gold in the item; none for an item that was only retrieved. */
  items: { entries: GoldEntry[]; item: PendingItem }[]
  retrieved: boolean
}

/** The questions of all datasets in file order, scored in batches of whole questions. */
async function* scoreQuestions(
  datasets: readonly Dataset[],
  survey: Survey,
  options: EvaluateOptions,
): AsyncIterable<ScoredQuestion> {
  const {
    split,
    title,
    tableFormat = 'markdown',
    branching = 2,
    batchNodes = 512,
    countTokens,
    onProgress,
    signal,
  } = options
  let done = 0
  const phase = 'evaluate'
  onProgress?.({ phase, done, total: survey.questions })
  for (const dataset of datasets) {
    let pending: PendingQuestion[] = []
    let items = new Map<string, PendingItem>()
    let texts: string[] = []
    const flush = async function* (): AsyncIterable<ScoredQuestion> {
      yield* scoreBatch(pending, texts, survey, options)
      done += pending.length
      onProgress?.({ phase, done, total: survey.questions })
      pending = []
      items = new Map()
      texts = []
    }
    for await (const { question, line } of dataset.questions(split)) {
      signal?.throwIfAborted()
      const retrieved = question.retrieved !== undefined && options.retrieved !== false
      const entriesOf = new Map<string, GoldEntry[]>()
      for (const entry of question.gold) getOrMake(entriesOf, entry.item, (): GoldEntry[] => []).push(entry)
      if (retrieved) for (const id of question.retrieved ?? []) getOrMake(entriesOf, id, () => [])
      const place = { file: join(dataset.folder, 'questions.jsonl'), line }
      const waiting: PendingQuestion = { question, place, items: [], retrieved }
      for (const [id, entries] of entriesOf) {
        let item = items.get(id)
        if (item === undefined) {
          const hierarchy = buildHierarchy(await dataset.item(id), branching)
          item = {
            hierarchy,
            headerTokens: countTokens(renderHeader(hierarchy.item, { title: true, tableFormat })),
            leafTokens: Int32Array.from(hierarchy.leaves, (_, leaf) =>
              countTokens(renderContent(hierarchy, { from: leaf, to: leaf + 1, children: [] }, { tableFormat })),
            ),
            offset: texts.length,
          }
          items.set(id, item)
          for (const node of hierarchy.nodes) texts.push(renderNode(hierarchy, node, { title, tableFormat }))
        }
        waiting.items.push({ entries, item })
      }
      pending.push(waiting)
      if (texts.length >= batchNodes) yield* flush()
    }
    if (pending.length > 0) yield* flush()
  }
}

async function* scoreBatch(
  pending: readonly PendingQuestion[],
  texts: string[],
  survey: Survey,
  { query, frozen, fineTuned, names, signal }: EvaluateOptions,
): AsyncIterable<ScoredQuestion> {
  const run = signal === undefined ? {} : { signal }
  const partnerOf = ({ benchmark, question }: Question): string | undefined =>
    fineTuned === undefined ? undefined : survey.benchmarks.get(benchmark)?.partners?.get(question)
  const queries = [
    ...new Set(
      pending.flatMap(({ question }) => [question.question, partnerOf(question)].filter((t) => t !== undefined)),
    ),
  ]
  const asked = await query.embedTexts(queries, 'query', run)
  const frozenNodes = await frozen.embedTexts(texts, 'node', run)
  const tunedNodes = fineTuned === undefined ? undefined : await fineTuned.embedTexts(texts, 'node', run)
  const { same, truncated } = tunedNodes ?? frozenNodes
  const dimension = asked.embeddings.length / queries.length
  for (const [name, nodes] of [
    [names.frozen, frozenNodes],
    [names.fineTuned, tunedNodes],
  ] as const) {
    if (nodes !== undefined && nodes.embeddings.length !== texts.length * dimension) {
      throw new InputError(
        `The query encoder ${names.query} gives embeddings of ${dimension} numbers, the node encoder ${name} of ${nodes.embeddings.length / texts.length}; a cosine needs equal sizes, so give the query encoder that the node encoder was trained with.`,
      )
    }
  }
  const queryAt = new Map(
    queries.map((text, i) => [text, asked.embeddings.subarray(i * dimension, (i + 1) * dimension)]),
  )

  for (const { question, place, items, retrieved } of pending) {
    const { benchmark, id } = question
    const source = question.source ?? `question\0${benchmark}\0${id}`
    const own = queryAt.get(question.question)!
    const partner = partnerOf(question)
    let droppedAnnotations = 0
    const instances = items.map(({ entries, item }): ScoredInstance => {
      const { hierarchy, offset, headerTokens, leafTokens } = item
      const { nodes, root } = hierarchy
      const marked = entries.map((entry) => placed(place, () => goldLeaves(hierarchy, entry)))
      for (const { dropped } of marked) droppedAnnotations += dropped.length
      const scores: ScoredInstance['scores'] = { frozen: cosines(own, frozenNodes.embeddings, offset, nodes.length) }
      if (tunedNodes !== undefined) {
        scores['fine-tuned'] = cosines(own, tunedNodes.embeddings, offset, nodes.length)
        if (partner !== undefined) {
          scores.permuted = cosines(queryAt.get(partner)!, tunedNodes.embeddings, offset, nodes.length)
        }
      }
      return {
        benchmark,
        question: id,
        item: hierarchy.item.id,
        source,
        role: entries.length === 0 ? 'other' : 'gold',
        retrieved,
        root,
        nodes,
        gold: hierarchy.leaves.map((_, leaf) => marked.some(({ gold }) => gold[leaf])),
        leafTokens,
        headerTokens,
        truncated: nodes.map((_, i) => truncated[offset + i]!),
        same: firstWithin(same.subarray(offset, offset + nodes.length)),
        scores,
      }
    })
    yield { benchmark, source, retrieved, instances, droppedAnnotations }
  }
}

/** An error of `work` that names no file gets this place. */
function placed<T>(place: { file: string; line: number }, work: () => T): T {
  try {
    return work()
  } catch (error) {
    if (error instanceof InputError && error.file === undefined) throw new InputError(error.message, place, error)
    throw error
  }
}

/** cos(query, node) for `count` rows of `embeddings` [rows, dim] from `first`, in double precision. */
function cosines(query: Float32Array, embeddings: Float32Array, first: number, count: number): Float64Array {
  const dimension = query.length
  const scores = new Float64Array(count)
  let queryNorm = 0
  for (let d = 0; d < dimension; d++) queryNorm += query[d]! * query[d]!
  for (let i = 0; i < count; i++) {
    const row = (first + i) * dimension
    let dot = 0
    let norm = 0
    for (let d = 0; d < dimension; d++) {
      const x = embeddings[row + d]!
      dot += query[d]! * x
      norm += x * x
    }
    scores[i] = dot / Math.sqrt(queryNorm * norm)
  }
  return scores
}

/** {@link measureInstance}, whose errors know nodes only, with question and item in them. */
function measureNamed(instance: ScoredInstance, encoders: readonly EncoderName[]): InstanceSums {
  try {
    return measureInstance(instance, encoders)
  } catch (error) {
    if (!(error instanceof InputError)) throw error
    throw new InputError(`Item "${instance.item}" of question "${instance.question}": ${error.message}`, {}, error)
  }
}

/** Indices of the first text with the same tokens, as indices within this item's own nodes. */
function firstWithin(same: Int32Array): Int32Array {
  const first = new Map<number, number>()
  return same.map((key, i) => {
    const before = first.get(key)
    if (before !== undefined) return before
    first.set(key, i)
    return i
  })
}

function encodersOf({ scores }: ScoredInstance, encoders: readonly EncoderName[]): EncoderName[] {
  const models = MODEL_ENCODERS as readonly string[]
  return encoders.filter((encoder) => !models.includes(encoder) || scores[encoder as ModelEncoder] !== undefined)
}

/** A JSON line for each decision node: what was asked for, and what each model's scores do there. */
function decisionLines(instance: ScoredInstance, { behaviours }: InstanceSums): string[] {
  const models = MODEL_ENCODERS.filter((encoder) => behaviours.has(encoder))
  const index = new Map(instance.nodes.map((node, i) => [node, i]))
  const decisions = behaviours.get('frozen')?.decisions ?? []
  return decisions.map(({ decision }, i) => {
    const { node, gold, full } = decision
    const of = <T>(pick: (encoder: ModelEncoder) => T): Record<string, T> =>
      Object.fromEntries(models.map((encoder) => [encoder, pick(encoder)]))
    const score = (encoder: ModelEncoder, n: typeof node): number => behaviours.get(encoder)!.scores[index.get(n)!]!
    return JSON.stringify({
      benchmark: instance.benchmark,
      question: instance.question,
      item: instance.item,
      range: [node.from, node.to],
      children: node.children.map(({ from, to }) => [from, to]),
      case: decisionCase(decision),
      gold: node.children.flatMap((child, c) => (!full && gold.includes(child) ? [c] : [])),
      scores: of((encoder) => ({
        node: score(encoder, node),
        children: node.children.map((child) => score(encoder, child)),
      })),
      entered: of((encoder) => {
        const entered = new Set(behaviours.get(encoder)!.decisions[i]!.entered)
        return node.children.flatMap((child, c) => (entered.has(child) ? [c] : []))
      }),
      correct: of((encoder) => behaviours.get(encoder)!.decisions[i]!.correct),
    })
  })
}

function noCounts(): BenchmarkCounts {
  return {
    questions: 0,
    questionsWithRetrieved: 0,
    goldItems: 0,
    oneLeafItems: 0,
    itemsWithoutGold: 0,
    droppedAnnotations: 0,
    otherItems: 0,
    decisionNodes: 0,
    droppedPairs: 0,
    nodes: 0,
    truncatedNodes: 0,
  }
}

function addCounts(counts: BenchmarkCounts, instance: ScoredInstance, measured: InstanceSums): void {
  if (instance.role === 'other') {
    counts.otherItems++
    return
  }
  counts.goldItems++
  if (!instance.gold.includes(true)) {
    counts.itemsWithoutGold++
    return
  }
  if (instance.root.children.length === 0) counts.oneLeafItems++
  counts.decisionNodes += measured.behaviours.get('frozen')?.decisions.length ?? 0
  counts.droppedPairs += measured.droppedPairs
  counts.nodes += instance.nodes.length
  counts.truncatedNodes += instance.truncated.filter(Boolean).length
}

/** A folder of results may be replaced by new ones; anything else that stands there is not ours to delete. */
async function requireResultsFolder(output: string): Promise<void> {
  let names: string[]
  try {
    names = await readdir(output)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return
    throw fileError(error, 'cannot write results there', output)
  }
  const foreign = names.find((name) => !RESULT_FILES.includes(name))
  if (foreign !== undefined) {
    throw new InputError(
      `The output folder holds "${foreign}", which no evaluation wrote; results replace the whole folder, so give a new or empty one.`,
      { file: output },
    )
  }
}

const sha256 = (text: string): string => createHash('sha256').update(text).digest('hex')
