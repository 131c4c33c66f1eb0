import { join } from 'node:path'
import type { Dataset } from '../data/index.ts'
import { judgeDecisions, readScores, SCORES_FILE, type StoredInstance, scoreOf } from '../eval/index.ts'
import { buildHierarchy, type Hierarchy, type Item, type Question } from '../hierarchy/index.ts'
import { decisionNodes } from '../preferences/index.ts'
import { InputError } from '../support/errors.ts'
import { exists } from '../support/files.ts'
import type { Progress } from '../support/progress.ts'
import { chooseQuestions, fairShares, type ScoredGroup } from './choose.ts'
import { compactScores } from './compact.ts'
import { closeAll, openEvaluated } from './datasets.ts'
import type { ReportEvaluation } from './evaluation.ts'
import type { Thumbnails } from './thumbnails.ts'
import {
  VIEWER_ENCODERS,
  type ViewerData,
  type ViewerInstance,
  type ViewerItem,
  type ViewerQuestion,
} from './viewer-data.ts'

/** What the viewer shows, how many questions it was drawn from, and what it lacks. */
export interface Evidence {
  data: ViewerData
  /** By name of the table's row: questions shown, of how many. */
  drawn: Map<string, { shown: number; of: number }>
  /** Sentences. */
  notes: string[]
}

export interface EvidenceOptions {
  /** Most questions. */
  questions: number
  seed: string
  datasets: readonly string[]
  /** Folders in which datasets are looked for besides. */
  guesses: readonly string[]
  /** Makes the pictures of image and video items; without it they are named by their paths. */
  thumbnails?: Thumbnails | undefined
  onProgress?: Progress | undefined
  signal?: AbortSignal | undefined
}

/**
 * Gathers the questions of evaluations with the content of all their items, as many of each benchmark as of the others.
 *
 * @throws InputError for a damaged scores file, for a given dataset that is not the evaluated one, and for an item whose tree is
 *   not the one that was scored
 */
export async function gatherEvidence(
  evaluations: readonly ReportEvaluation[],
  options: EvidenceOptions,
): Promise<Evidence> {
  const evidence: Evidence = {
    data: { evaluations: evaluations.map(({ name }) => ({ name })), items: [], questions: [] },
    drawn: new Map(),
    notes: [],
  }
  const places = new Map<string, number>()
  const withScores = []
  for (const [index, evaluation] of evaluations.entries()) {
    if (await exists(join(evaluation.folder, SCORES_FILE))) withScores.push({ index, evaluation })
    else {
      evidence.notes.push(
        `${evaluation.name} has no ${SCORES_FILE}, so its questions are not shown; "canopy evaluate" writes one.`,
      )
    }
  }
  const shares = fairShares(
    new Map(withScores.map(({ index }) => [String(index), Number.POSITIVE_INFINITY])),
    options.questions,
  )
  for (const { index, evaluation } of withScores) {
    const datasets = await openEvaluated(evaluation, options.datasets, options.guesses)
    try {
      const missing = evaluation.evaluation.datasets.filter((_, i) => datasets[i] === undefined)
      if (missing.length > 0) {
        evidence.notes.push(
          `The dataset ${missing.map(({ name }) => `"${name}"`).join(', ')} of ${evaluation.name} was not found, so its questions are not shown; name its folder by --dataset.`,
        )
      }
      const available = inDatasets(readScores(evaluation.folder, { signal: options.signal }), datasets)
      const { chosen, of } = await chooseQuestions(
        available,
        shares.get(String(index))!,
        `${options.seed}/${evaluation.name}`,
      )
      await addQuestions(evidence, chosen, places, { ...options, index, evaluation, opened: datasets })
      for (const [row, count] of of) {
        const { shown, of: total } = evidence.drawn.get(row) ?? { shown: 0, of: 0 }
        const here = evidence.data.questions.filter((q) => q.evaluation === index && q.benchmark === row).length
        evidence.drawn.set(row, { shown: shown + here, of: total + count })
      }
    } finally {
      await closeAll(datasets)
    }
  }
  return evidence
}

async function* inDatasets(
  instances: AsyncIterable<StoredInstance>,
  datasets: readonly (Dataset | undefined)[],
): AsyncIterable<StoredInstance> {
  for await (const instance of instances) if (datasets[instance.dataset ?? 0] !== undefined) yield instance
}

async function addQuestions(
  { data, notes }: Evidence,
  chosen: readonly ScoredGroup<StoredInstance>[],
  places: Map<string, number>,
  context: EvidenceOptions & { index: number; evaluation: ReportEvaluation; opened: readonly (Dataset | undefined)[] },
): Promise<void> {
  const { index, evaluation, opened, thumbnails, onProgress, signal } = context
  const { split } = evaluation.evaluation
  const asked = await readQuestions(chosen, opened, split)
  for (const [done, { row, instances }] of chosen.entries()) {
    signal?.throwIfAborted()
    const first = instances[0]!
    const place = first.dataset ?? 0
    const dataset = opened[place]!
    const { hash } = evaluation.evaluation.datasets[place]!
    const question = asked.get(keyOf(place, first.question))
    if (question === undefined) {
      throw new InputError(
        `The scores name a question "${first.question}", which the split "${split}" of ${dataset.folder} does not have.`,
        { file: join(evaluation.folder, SCORES_FILE) },
      )
    }
    const shown: ViewerQuestion = {
      evaluation: index,
      benchmark: row,
      id: question.id,
      question: question.question,
      answers: question.answers,
      items: [],
    }
    for (const instance of instances) {
      const hierarchy = buildHierarchy(await dataset.item(instance.item), instance.branching)
      if (hierarchy.nodes.length !== instance.nodes.length || hierarchy.leaves.length !== instance.root.to) {
        throw new InputError(
          `Item "${instance.item}" of question "${question.id}" has ${hierarchy.leaves.length} leaves, but its scores are of ${instance.root.to}; evaluate again.`,
          { file: join(evaluation.folder, SCORES_FILE) },
        )
      }
      const key = `${hash}\0${instance.item}`
      let item = places.get(key)
      if (item === undefined) {
        item = data.items.length
        places.set(key, item)
        data.items.push(await viewerItem(hierarchy, dataset.folder, thumbnails, signal))
      }
      shown.items.push(viewerInstance(instance, item))
    }
    shown.items.sort((a, b) => Number(a.role === 'other') - Number(b.role === 'other'))
    if (VIEWER_ENCODERS.some((encoder) => shown.items.every(({ scores }) => scores[encoder] !== undefined))) {
      data.questions.push(shown)
    } else notes.push(`Question ${shown.id} is not shown: no encoder, frozen or fine-tuned, scored all of its items.`)
    onProgress?.({ phase: 'questions', done: done + 1, total: chosen.length })
  }
}

const keyOf = (dataset: number, question: string): string => `${dataset}\0${question}`

async function readQuestions(
  chosen: readonly ScoredGroup<StoredInstance>[],
  datasets: readonly (Dataset | undefined)[],
  split: string,
): Promise<Map<string, Question>> {
  const wanted = new Set(chosen.map(({ instances: [first] }) => keyOf(first!.dataset ?? 0, first!.question)))
  const found = new Map<string, Question>()
  for (const [place, dataset] of datasets.entries()) {
    if (dataset === undefined) continue
    for await (const { question } of dataset.questions(split)) {
      const key = keyOf(place, question.id)
      if (wanted.has(key)) found.set(key, question)
    }
  }
  return found
}

function viewerInstance(instance: StoredInstance, item: number): ViewerInstance {
  const { nodes, root, gold, branching, role, headerTokens, leafTokens } = instance
  const place = new Map(nodes.map((node, i) => [node, i]))
  const decisions = role === 'gold' ? decisionNodes(root, (leaf) => gold[leaf] ?? false) : []
  const shown: ViewerInstance = {
    item,
    role,
    branching,
    gold: placesOf(gold),
    decisions: decisions.map(({ node }) => place.get(node)!),
    wrong: {},
    leafTokens: Array.from(leafTokens),
    headerTokens,
    scores: {},
  }
  const truncated = placesOf(instance.truncated)
  if (truncated.length > 0) shown.truncated = truncated
  for (const encoder of VIEWER_ENCODERS) {
    const scores = instance.scores[encoder]
    if (scores === undefined) continue
    shown.scores[encoder] = compactScores(nodes, scores)
    shown.wrong[encoder] = judgeDecisions(decisions, scoreOf(nodes, scores))
      .filter(({ correct }) => !correct)
      .map(({ decision }) => place.get(decision.node)!)
  }
  return shown
}

const placesOf = (marked: readonly boolean[]): number[] => marked.flatMap((is, i) => (is ? [i] : []))

async function viewerItem(
  hierarchy: Hierarchy,
  folder: string,
  thumbnails: Thumbnails | undefined,
  signal: AbortSignal | undefined,
): Promise<ViewerItem> {
  const { item, leaves } = hierarchy
  const common = titled(item)
  switch (item.modality) {
    case 'text':
      return { ...common, modality: 'text', leaves: leaves.map(([start, end]) => item.text.slice(start, end)) }
    case 'table': {
      const { caption, header, rows } = item
      return { ...common, modality: 'table', ...(caption !== undefined && { caption }), header, rows }
    }
    case 'image': {
      const [picture] = (await thumbnails?.(folder, hierarchy, signal)) ?? []
      return { ...common, modality: 'image', path: item.image, ...(picture && { picture }) }
    }
    case 'video': {
      const frames = item.video === undefined ? undefined : await thumbnails?.(folder, hierarchy, signal)
      const path = item.video === undefined ? {} : { path: item.video }
      return { ...common, modality: 'video', ...path, segments: leaves, ...(frames && { frames }) }
    }
  }
}

const titled = ({ id, title }: Item): { id: string; title?: string } => ({ id, ...(title !== undefined && { title }) })
