import { mkdir, rename, rm } from 'node:fs/promises'
import { dirname, join, resolve } from 'node:path'
import { DATASET_FILES, type Dataset, splitHash } from '../data/index.ts'
import {
  buildHierarchy,
  type GoldEntry,
  goldLeaves,
  nodeKey,
  type Question,
  type TreeNode,
} from '../hierarchy/index.ts'
import { InputError } from '../support/errors.ts'
import { fileError, openLineWriter, syncFolder, temporaryName } from '../support/files.ts'
import type { Progress } from '../support/progress.ts'
import { PREFERENCES_SCHEMA, type PreferenceInstance, type PreferencesHeader } from './format.ts'
import {
  DECISION_CASES,
  type DecisionCase,
  type DecisionNode,
  decisionCase,
  decisionNodes,
  decisionPairs,
  type PairKind,
} from './pairs.ts'

export interface CountOptions {
  dataset: Dataset
  split: string
  /** Default 2. */
  branching?: number | undefined
  /** `leave-out`: questions that are marked with a variant give no pairs; they are counted. Default `keep`. */
  variants?: 'keep' | 'leave-out' | undefined
  onProgress?: Progress | undefined
  signal?: AbortSignal | undefined
}

export interface BuildOptions extends CountOptions {
  /** The file to write; it changes only when all is built. */
  output: string
}

/** Gold annotations that mark no leaf, for one reason. */
export interface DroppedAnnotations {
  reason: string
  count: number
  /** The first `PLACES_KEPT` of them. */
  places: { question: string; item: string; line: number; annotation: unknown }[]
}

/** How many places of each reason a summary lists; the count is always complete. */
const PLACES_KEPT = 100

/** What the walk over the gold items of a split meets. */
export interface PreferenceCounts {
  questions: number
  questionsWithoutGold: number
  /** Questions that are marked with a variant, by its name. */
  questionsByVariant: Record<string, number>
  /** Questions that gave nothing because of their variant. */
  variantsLeftOut: number
  /** (question, gold item); each is a line of the file. */
  instances: number
  /** Gold entries merged into another one of the same question and item. */
  mergedEntries: number
  /** Instances that give no pairs. */
  withoutPairs: { oneLeaf: number; noGoldLeaf: number }
  /** By where the gold lies; `some` only of trees with more than two branches. */
  decisions: { total: number; cases: Partial<Record<DecisionCase, number>> }
  pairs: { total: number; kinds: Record<PairKind, number> }
  droppedAnnotations: { total: number; reasons: DroppedAnnotations[] }
}

export interface PreferenceSummary extends PreferencesHeader, PreferenceCounts {
  output: string
}

/**
 * Writes the preference pairs of a split: a header line, then one line per (question, gold item), in file order. The gold
 * entries that a question has for one item are merged. Streams: memory does not grow with the dataset.
 *
 * @throws InputError, with file and line of the question: gold that its item does not bear out, an item that is not there or
 *   has no leaves; an output that is one of the dataset's files; nothing is written then
 */
export async function buildPreferences(options: BuildOptions): Promise<PreferenceSummary> {
  const { dataset, split, output, onProgress, signal } = options
  const branching = checkedBranching(options)
  if (DATASET_FILES.some((name) => resolve(dataset.folder, name) === resolve(output)))
    throw new InputError('This file is a part of the dataset; choose another --output.', { file: output })
  onProgress?.({ phase: 'hashing the split', done: 0 })
  const header: PreferencesHeader = {
    schema: PREFERENCES_SCHEMA,
    dataset: dataset.meta.name,
    split,
    hash: await splitHash(dataset, split),
    branching,
    ...(options.variants === 'leave-out' && { variants: 'leave-out' as const }),
  }
  signal?.throwIfAborted()
  const counts = noCounts(branching)
  await writeLinesAtomic(output, async (write) => {
    await write(JSON.stringify(header))
    for await (const instance of walk(options, branching, counts)) await write(JSON.stringify(instance))
  })
  return { ...header, ...counts, output }
}

/**
 * What {@link buildPreferences} would find in a split, without writing anything.
 *
 * @throws InputError as it does for questions and items
 */
export async function countPreferences(options: CountOptions): Promise<PreferenceCounts> {
  const branching = checkedBranching(options)
  const counts = noCounts(branching)
  for await (const _ of walk(options, branching, counts)) options.signal?.throwIfAborted()
  return counts
}

function checkedBranching({ branching = 2 }: CountOptions): number {
  if (!Number.isSafeInteger(branching) || branching < 2) {
    throw new InputError(`The branching factor is a whole number, at least 2, not ${branching}.`)
  }
  return branching
}

/** The instances of a split, in file order; everything that is met is counted. */
async function* walk(
  { dataset, split, variants = 'keep', onProgress, signal }: CountOptions,
  branching: number,
  counts: PreferenceCounts,
): AsyncGenerator<PreferenceInstance> {
  const total = dataset.meta.splits[split]?.questions
  for await (const { question, line } of dataset.questions(split)) {
    signal?.throwIfAborted()
    counts.questions++
    const { variant } = question
    if (variant !== undefined) counts.questionsByVariant[variant] = (counts.questionsByVariant[variant] ?? 0) + 1
    if (variant !== undefined && variants === 'leave-out') counts.variantsLeftOut++
    else {
      for (const [item, entries] of entriesByItem(question, counts)) {
        yield await buildInstance(dataset, question.id, item, entries, branching, line, counts)
      }
    }
    onProgress?.({
      phase: 'building preferences',
      done: counts.questions,
      ...(total !== undefined && { total }),
      note: `${counts.pairs.total} pairs`,
    })
  }
}

/** The gold entries of each item, items in the order in which the question names them first. */
function entriesByItem(question: Question, counts: PreferenceCounts): Map<string, GoldEntry[]> {
  const byItem = new Map<string, GoldEntry[]>()
  for (const entry of question.gold) {
    const entries = byItem.get(entry.item)
    if (entries === undefined) byItem.set(entry.item, [entry])
    else {
      entries.push(entry)
      counts.mergedEntries++
    }
  }
  if (byItem.size === 0) counts.questionsWithoutGold++
  return byItem
}

async function buildInstance(
  dataset: Dataset,
  question: string,
  itemId: string,
  entries: GoldEntry[],
  branching: number,
  line: number,
  counts: PreferenceCounts,
): Promise<PreferenceInstance> {
  try {
    const hierarchy = buildHierarchy(await dataset.item(itemId), branching)
    const gold = hierarchy.leaves.map(() => false)
    for (const entry of entries) {
      const marked = goldLeaves(hierarchy, entry)
      for (const [leaf, isGold] of marked.gold.entries()) if (isGold) gold[leaf] = true
      for (const { reason, annotation } of marked.dropped) {
        drop(counts, reason, { question, item: itemId, line, annotation })
      }
    }
    const decisions = decisionNodes(hierarchy.root, (leaf) => gold[leaf]!)
    count(counts, decisions, gold.length === 1)
    return { question, item: itemId, ...indexedPairs(hierarchy.nodes, decisions) }
  } catch (error) {
    if (!(error instanceof InputError) || error.file !== undefined) throw error
    const place = { file: join(dataset.folder, 'questions.jsonl'), line }
    throw new InputError(`question "${question}": ${error.message}`, place, error)
  }
}

/** The pairs of an instance as indices into the nodes that are in one, which keep their pre-order. */
function indexedPairs(preOrder: TreeNode[], decisions: DecisionNode[]): Pick<PreferenceInstance, 'nodes' | 'pairs'> {
  const used = new Set<TreeNode>()
  for (const { node } of decisions) for (const member of [node, ...node.children]) used.add(member)
  const nodes = preOrder.filter((node) => used.has(node))
  const place = new Map(nodes.map((node, i) => [nodeKey(node), i]))
  const at = (node: TreeNode): number => place.get(nodeKey(node))!
  return {
    nodes: nodes.map(({ from, to }) => [from, to]),
    pairs: decisions.flatMap(decisionPairs).map(({ preferred, other, kind }) => [at(preferred), at(other), kind]),
  }
}

function noCounts(branching: number): PreferenceCounts {
  return {
    questions: 0,
    questionsWithoutGold: 0,
    questionsByVariant: {},
    variantsLeftOut: 0,
    instances: 0,
    mergedEntries: 0,
    withoutPairs: { oneLeaf: 0, noGoldLeaf: 0 },
    decisions: {
      total: 0,
      cases: Object.fromEntries(
        DECISION_CASES.filter((name) => branching > 2 || name !== 'some').map((name) => [name, 0]),
      ),
    },
    pairs: {
      total: 0,
      kinds: { 'fully-gold': 0, 'gold-child': 0, 'non-gold-child': 0, 'sibling-separation': 0 },
    },
    droppedAnnotations: { total: 0, reasons: [] },
  }
}

function count(counts: PreferenceCounts, decisions: DecisionNode[], oneLeaf: boolean): void {
  counts.instances++
  if (oneLeaf) counts.withoutPairs.oneLeaf++
  else if (decisions.length === 0) counts.withoutPairs.noGoldLeaf++
  for (const decision of decisions) {
    const key = decisionCase(decision)
    counts.decisions.total++
    counts.decisions.cases[key] = (counts.decisions.cases[key] ?? 0) + 1
    for (const { kind } of decisionPairs(decision)) {
      counts.pairs.total++
      counts.pairs.kinds[kind]++
    }
  }
}

function drop(counts: PreferenceCounts, reason: string, place: DroppedAnnotations['places'][number]): void {
  const { reasons } = counts.droppedAnnotations
  counts.droppedAnnotations.total++
  let entry = reasons.find((dropped) => dropped.reason === reason)
  if (entry === undefined) {
    entry = { reason, count: 0, places: [] }
    reasons.push(entry)
  }
  entry.count++
  if (entry.places.length < PLACES_KEPT) entry.places.push(place)
}

/** Lets `fill` write the lines of a file beside `path`, which then takes its name whole; when it fails, nothing is left. */
async function writeLinesAtomic(
  path: string,
  fill: (write: (line: string) => Promise<unknown>) => Promise<void>,
): Promise<void> {
  const temporary = temporaryName(path)
  const folder = dirname(temporary)
  try {
    await mkdir(folder, { recursive: true })
    const writer = await openLineWriter(temporary)
    try {
      await fill((line) => writer.write(line))
    } catch (error) {
      await writer.abandon()
      throw error
    }
    await writer.close()
    await rename(temporary, path)
    await syncFolder(folder)
  } catch (error) {
    await rm(temporary, { force: true }).catch(() => {})
    throw fileError(error, 'cannot write the preferences', path)
  }
}
