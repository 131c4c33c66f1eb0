import { createHash } from 'node:crypto'
import { type Column, createColumn, createKeyTable, type KeyTable } from '../data/index.ts'
import { InputError } from '../support/errors.ts'
import type { Progress } from '../support/progress.ts'
import { RESAMPLES, resamplingPasses } from './estimates.ts'
import { getOrMake } from './maps.ts'
import { isDefined, METRICS, measureInstance, metricIndex, questionSums } from './metrics.ts'
import { bootstrapRatios, clustersOf, pairedInterval, type ResampledRatio } from './ratios.ts'
import { isModel, MODEL_ENCODERS, type RowName, tableRow } from './scored.ts'
import { readScores, type StoredInstance } from './scores-file.ts'
import { readEvaluation, type StoredEvaluation } from './stored.ts'
import {
  addDenominators,
  addInstance,
  type ClusterSums,
  denominatorAt,
  emptySums,
  numeratorAt,
  rowLength,
} from './sums.ts'

export interface CompareOptions {
  /** Folders of two evaluations; what is reported is B minus A. */
  a: string
  b: string
  /** Whose scores are compared; the fine-tuned encoder's, or the frozen one's where nothing was trained. */
  rowA?: RowName | undefined
  rowB?: RowName | undefined
  /** Compare what both have measured, though the data differ. */
  common?: boolean | undefined
  seed?: string | undefined
  resamples?: number | undefined
  onProgress?: Progress | undefined
  signal?: AbortSignal | undefined
}

/** A metric of A and of B, and their paired difference with its 95 % interval (null where fewer than two sources are there). */
export interface Compared {
  a: number
  b: number
  /** b - a */
  difference: number
  lo: number | null
  hi: number | null
  /** How many of what the metric counts, in A; for a mean over benchmarks, benchmarks. */
  n: number
}

/** One side of a comparison. */
export interface ComparedSide {
  folder: string
  row: RowName
  /** The encoder's name, or the control's. */
  name: string
  /** Branching factor of its trees. */
  branching: number
}

export interface Comparison {
  schema: 'canopy-comparison/1'
  a: ComparedSide
  b: ComparedSide
  split: string
  /** (question, item) instances that were compared, and those that only one side has. */
  instances: { compared: number; onlyA: number; onlyB: number }
  seed: string
  resamples: number
  /** Sources that were resampled, by benchmark. */
  clusters: Record<string, number>
  /** By benchmark (`pooled` and `mean` among them) and metric. */
  benchmarks: Record<string, Record<string, Compared>>
  /** Benchmarks that stand in no pooled figure and no mean: variants. */
  apart: string[]
  notes: string[]
}

/**
 * The paired difference of two evaluations of the same data in every metric: both are measured anew from their scores, instance by
 * instance, and both see the same resamples of sources (95 % percentile bootstrap). An evaluation compared with itself differs
 * by exactly zero. Memory grows with the number of instances by some 30 bytes each, and with that of sources.
 *
 * @throws InputError when the data differ (unless the common instances are asked for), when an instance has other gold leaves in
 *   A than in B, and when an encoder that was asked for has no scores
 */
export async function compare(options: CompareOptions): Promise<Comparison> {
  const { a, b, common = false, seed = '1', resamples = RESAMPLES, onProgress, signal } = options
  const [of, other] = [await readEvaluation(a), await readEvaluation(b)]
  if (!common) requireSameData(of, other, a, b)
  const sideA = sideOf(a, of, options.rowA)
  const sideB = sideOf(b, other, options.rowB)

  const known = await indexInstances(a, signal)
  const measuredB = emptySide(sideB.row)
  const inB = createKeyTable()
  let onlyB = 0
  for await (const instance of readScores(b, { signal })) {
    const key = keyOf(instance)
    if (!inB.add(key).isNew) throw listedTwice(instance, b)
    const entry = known.keys.find(key)
    if (entry < 0) onlyB++
    else {
      requireSameGold(instance, known.contents.get(entry), a, b)
      measure(measuredB, instance, known.sourceAt(entry), b)
    }
  }
  const compared = inB.size - onlyB
  const onlyA = known.keys.size - compared
  if (!common && onlyA + onlyB > 0) {
    throw new InputError(
      `Not the same was measured: ${onlyA} items are in ${a} alone, ${onlyB} in ${b} alone (retrieved items, images and videos may be left out of one); add --common to compare the ${compared} that both have.`,
    )
  }
  if (compared === 0) throw new InputError(`${a} and ${b} have no item of a question in common.`)
  const measuredA = emptySide(sideA.row)
  for await (const instance of readScores(a, { signal })) {
    const key = keyOf(instance)
    if (inB.find(key) >= 0) measure(measuredA, instance, known.sourceAt(known.keys.find(key)), a)
  }

  const apart = [...measuredA.apart].sort()
  const found = estimateDifferences(measuredA, measuredB, { seed, resamples, apart, onProgress, signal })
  return {
    schema: 'canopy-comparison/1',
    a: sideA,
    b: sideB,
    split: of.split,
    instances: { compared, onlyA, onlyB },
    seed,
    resamples,
    ...found,
    apart,
    notes: notesOn(of, other, { onlyA, onlyB }),
  }
}

function requireSameData(a: StoredEvaluation, b: StoredEvaluation, folderA: string, folderB: string): void {
  const hashes = ({ datasets }: StoredEvaluation): string =>
    datasets
      .map(({ hash }) => hash)
      .sort()
      .join()
  if (a.split === b.split && hashes(a) === hashes(b)) return
  const show = ({ split, datasets }: StoredEvaluation): string =>
    `the split "${split}" of ${datasets.map(({ name, hash }) => `${name} (${hash.slice(0, 12)})`).join(', ')}`
  throw new InputError(
    `${folderA} is of ${show(a)}, ${folderB} of ${show(b)}: not the same questions and items. Evaluate both on the same data, or add --common to compare the items of questions that both have.`,
  )
}

function sideOf(folder: string, { encoders, branching }: StoredEvaluation, asked: RowName | undefined): ComparedSide {
  const row = asked ?? (encoders['fine-tuned'] === undefined ? 'frozen' : 'fine-tuned')
  const encoder = row === 'permuted' ? encoders['fine-tuned'] : isModel(row) ? encoders[row] : { name: row }
  if (encoder === undefined) {
    const there = MODEL_ENCODERS.filter((name) => encoders[name === 'permuted' ? 'fine-tuned' : name] !== undefined)
    throw new InputError(`The evaluation has no encoder "${row}"; it has ${there.join(', ')}.`, { file: folder })
  }
  const name = row === 'permuted' ? `${encoder.name}, questions permuted` : encoder.name
  return { folder, row, name, branching }
}

const keyOf = ({ benchmark, variant, question, item }: StoredInstance): string =>
  JSON.stringify([benchmark, variant ?? null, question, item])

const nameOf = ({ item, question, benchmark }: StoredInstance): string =>
  `Item "${item}" of question "${question}" (${benchmark})`

const listedTwice = (instance: StoredInstance, folder: string): InputError =>
  new InputError(`${nameOf(instance)} stands there twice; evaluate again.`, { file: folder })

/** 48 bits of what has to agree between two evaluations of an instance. */
function contentOf({ root, gold, role }: StoredInstance): number {
  const text = JSON.stringify([root.to - root.from, role, gold.flatMap((is, leaf) => (is ? [leaf] : []))])
  return createHash('sha256').update(text).digest().readUIntBE(0, 6)
}

async function indexInstances(
  folder: string,
  signal: AbortSignal | undefined,
): Promise<{ keys: KeyTable; contents: Column; sourceAt(entry: number): string }> {
  const keys = createKeyTable()
  const contents = createColumn(0)
  const sourceOf = createColumn(0)
  const sources = new Map<string, number>()
  for await (const instance of readScores(folder, { signal })) {
    const { entry, isNew } = keys.add(keyOf(instance))
    if (!isNew) throw listedTwice(instance, folder)
    contents.set(entry, contentOf(instance))
    sourceOf.set(
      entry,
      getOrMake(sources, instance.source, () => sources.size),
    )
  }
  const names = [...sources.keys()]
  return { keys, contents, sourceAt: (entry) => names[sourceOf.get(entry)]! }
}

function requireSameGold(instance: StoredInstance, content: number, a: string, b: string): void {
  if (contentOf(instance) === content) return
  throw new InputError(
    `${nameOf(instance)} has other leaves or other gold in ${b} than in ${a}; evaluate both with the same version on the same data.`,
  )
}

/** What is added up of one side. */
interface Side {
  row: RowName
  sums: ClusterSums
  questions: KeyTable
  apart: Set<string>
}

const emptySide = (row: RowName): Side => ({
  row,
  sums: emptySums([row]),
  questions: createKeyTable(),
  apart: new Set(),
})

function measure(
  { row, sums, questions, apart }: Side,
  instance: StoredInstance,
  source: string,
  folder: string,
): void {
  const name = tableRow(instance)
  if (isModel(row) && instance.scores[row] === undefined) {
    throw new InputError(`${nameOf(instance)} has no scores of the encoder "${row}".`, { file: folder })
  }
  if (instance.variant !== undefined) apart.add(name)
  if (instance.retrieved && questions.add(JSON.stringify([name, instance.question])).isNew) {
    addDenominators(sums, name, source, questionSums(true))
  }
  addInstance(sums, name, source, measureInstance(instance, [row]))
}

function estimateDifferences(
  a: Side,
  b: Side,
  {
    seed,
    resamples,
    apart,
    onProgress,
    signal,
  }: { seed: string; resamples: number; apart: string[] } & Pick<CompareOptions, 'onProgress' | 'signal'>,
): Pick<Comparison, 'benchmarks' | 'clusters'> {
  // A cluster has the sums of A, then those of B.
  const half = rowLength(a.sums)
  const joined = (name: string): Map<string, Float64Array> => {
    const clusters = new Map<string, Float64Array>()
    for (const [side, { sums }] of [a, b].entries()) {
      for (const [source, values] of sums.benchmarks.get(name) ?? []) {
        getOrMake(clusters, source, () => new Float64Array(2 * half)).set(values, side * half)
      }
    }
    return clusters
  }
  const defined = METRICS.filter((metric) => isDefined(metric, a.row) && isDefined(metric, b.row))
  const ratios = [0, half].flatMap((offset) =>
    defined.map(({ name }) => ({
      numerator: offset + numeratorAt(0, metricIndex(name)),
      denominator: offset + denominatorAt(metricIndex(name)),
    })),
  )
  const found: Pick<Comparison, 'benchmarks' | 'clusters'> = { benchmarks: {}, clusters: {} }
  const passes = resamplingPasses([...a.sums.benchmarks.keys()].sort(), (name) => apart.includes(name))
  for (const [pass, { key, groups, tables }] of passes.entries()) {
    signal?.throwIfAborted()
    const clusters = clustersOf(groups.map(joined))
    const { observed, results } = bootstrapRatios(clusters, {
      groups: groups.length,
      columns: 2 * half,
      ratios,
      combines: tables.map(({ combine }) => combine),
      resamples,
      seed: `${seed}/bootstrap/${key}`,
      onResample: (resample) => {
        if (resample % 500 > 0) return
        onProgress?.({ phase: 'bootstrap', done: pass * resamples + resample, total: passes.length * resamples })
      },
    })
    for (const [t, { name, combine }] of tables.entries()) {
      const count = (m: number, { present }: ResampledRatio): number => {
        if (combine === 'mean') return present.length
        const { countedBy, name: own } = defined[m]!
        const column = denominatorAt(metricIndex(countedBy ?? own))
        return groups.reduce((n, _, group) => n + observed[group * 2 * half + column]!, 0)
      }
      found.clusters[name] = clusters.length
      found.benchmarks[name] = Object.fromEntries(
        defined.flatMap((metric, m): [string, Compared][] => {
          const [of, other] = [results[t]![m], results[t]![defined.length + m]]
          if (of === undefined || other === undefined) return []
          const interval = clusters.length > 1 ? pairedInterval(other, of) : undefined
          const difference = other.value - of.value
          const [lo, hi] = interval ?? [null, null]
          return [[metric.name, { a: of.value, b: other.value, difference, lo, hi, n: count(m, of) }]]
        }),
      )
    }
  }
  return found
}

function notesOn(
  a: StoredEvaluation,
  b: StoredEvaluation,
  { onlyA, onlyB }: { onlyA: number; onlyB: number },
): string[] {
  const notes: string[] = []
  if (onlyA + onlyB > 0) {
    notes.push(`Only the common items were compared: ${onlyA} are in A alone, ${onlyB} in B alone`)
  }
  if (a.branching !== b.branching) {
    notes.push(
      `The trees differ (branching ${a.branching} in A, ${b.branching} in B), so decisions, edges and pairs are not the same ones; kept leaves and tokens are comparable`,
    )
  }
  if (a.tokens !== b.tokens || a.tokenizer !== b.tokenizer) {
    notes.push(`Tokens are not counted alike (${a.tokenizer} in A, ${b.tokenizer} in B)`)
  }
  return notes
}
