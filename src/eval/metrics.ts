import type { TreeNode } from '../hierarchy/index.ts'
import { DECISION_CASES, type DecisionNode, decisionCase, decisionNodes, type PairKind } from '../preferences/index.ts'
import { refine } from '../refine/index.ts'
import { blindScores } from './controls.ts'
import { countPairs, type JudgedDecision, judgeDecisions } from './decisions.ts'
import {
  checkInstance,
  type EncoderName,
  isModel,
  isSelector,
  type RowName,
  type ScoredInstance,
  scoreOf,
} from './scored.ts'
import { select } from './selection.ts'

/** A metric is a ratio of two sums over instances, so that any set of sources can be added up and divided. */
export interface Metric {
  name: string
  /** The table it stands in. */
  table: 'decisions' | 'pruning' | 'selection'
  /** A share of one, or a number of tokens. */
  unit: 'share' | 'tokens'
  /** What its `n` counts. */
  counts: string
  /** Which of two values a user would rather have; undefined where neither is better in itself. */
  better?: 'higher' | 'lower'
  /** Defined for encoders with scores of their own; a policy has none that could be compared. */
  modelsOnly?: true
  /** The metric whose denominator is its `n`, where its own denominator counts something else (tokens). */
  countedBy?: string
}

const share = (table: Metric['table'], names: string[], counts: string, more: Partial<Metric> = {}): Metric[] =>
  names.map((name) => ({ name, table, unit: 'share', counts, ...more }))

const severalLeaves = 'gold items with two or more leaves'
const anyLeaves = 'all gold items'
const higher = { better: 'higher' } as const
const lower = { better: 'lower' } as const

/**
 * Every metric, in the order of the tables.
 *
 * - `decision_accuracy`: decision nodes at which the rule does what gold asks (all children right); then by case.
 * - `edge_accuracy`: (decision node, child) comparisons that come out right.
 * - `pair_accuracy…`: preference pairs whose preferred node scores strictly higher, all and by kind.
 * - `truncated_nodes`: nodes of gold items of which the encoder saw only the beginning.
 * - `pruned_item_rate`: gold items with two or more leaves from which refinement goes below the root.
 * - `dropped_item_rate`: those from which it drops at least one leaf.
 * - `retained_tokens`: (header + kept leaves) / (header + all leaves) in tokens, mean over gold items with two or more leaves.
 * - `gold_recall`, `gold_precision`, `gold_f1`: kept leaves against gold leaves, mean over the same items.
 * - `…_all`: the same means over all gold items, one-leaf items included.
 * - `tokens_gold`, `tokens_other`, `tokens_all`: tokens kept per question on its gold items, on the other retrieved items, and
 *   on both, over the questions of which it is known what was retrieved; `…_ratio`: as a share of those items' tokens.
 * - `kept_tokens`: header + kept leaves in tokens, mean over gold items with two or more leaves; `kept_tokens_all`: over all.
 */
export const METRICS: readonly Metric[] = [
  ...share('decisions', ['decision_accuracy'], 'decision nodes', higher),
  ...share(
    'decisions',
    DECISION_CASES.map((c) => `decision_accuracy_${c}`),
    'decision nodes of the case',
    higher,
  ),
  ...share('decisions', ['edge_accuracy'], 'parent-child comparisons', higher),
  ...share(
    'decisions',
    ['', '_fully_gold', '_gold_child', '_non_gold_child', '_sibling_separation'].map((kind) => `pair_accuracy${kind}`),
    'preference pairs',
    { ...higher, modelsOnly: true },
  ),
  ...share('decisions', ['truncated_nodes'], 'nodes of gold items', lower),
  ...share('pruning', ['pruned_item_rate', 'dropped_item_rate'], severalLeaves),
  ...share('pruning', ['retained_tokens'], severalLeaves, lower),
  ...share('pruning', ['gold_recall', 'gold_precision', 'gold_f1'], severalLeaves, higher),
  ...share('pruning', ['retained_tokens_all'], anyLeaves, lower),
  ...share('pruning', ['gold_recall_all', 'gold_precision_all', 'gold_f1_all'], anyLeaves, higher),
  ...['tokens_gold', 'tokens_other', 'tokens_all'].flatMap((name): Metric[] => [
    { name, table: 'pruning', unit: 'tokens', counts: 'questions with known retrieved items', ...lower },
    ...share('pruning', [`${name}_ratio`], 'questions with known retrieved items', { countedBy: name, ...lower }),
  ]),
  { name: 'kept_tokens', table: 'selection', unit: 'tokens', counts: severalLeaves, ...lower },
  { name: 'kept_tokens_all', table: 'selection', unit: 'tokens', counts: anyLeaves, ...lower },
]

/** What a selection of evidence is measured by; each also as `…_all`. */
const ITEM_MEANS = ['kept_tokens', 'retained_tokens', 'gold_recall', 'gold_precision', 'gold_f1'] as const

/** The metrics of the selection table, in its order. */
export const SELECTION_METRICS: readonly string[] = [...ITEM_MEANS, ...ITEM_MEANS.map((name) => `${name}_all`)]

const columns = new Map(METRICS.map((metric, i) => [metric.name, i]))

/** The metric's place in every vector of sums. */
export function metricIndex(name: string): number {
  const index = columns.get(name)
  if (index === undefined) throw new RangeError(`No metric is called "${name}".`)
  return index
}

/** Whether the metric says something about the encoder or selector. */
export function isDefined({ name, modelsOnly }: Metric, row: RowName): boolean {
  if (isSelector(row)) return SELECTION_METRICS.includes(name) || name === 'truncated_nodes'
  return modelsOnly !== true || isModel(row)
}

/** What one encoder did with one item. */
export interface Behaviour {
  /** At the item's decision nodes, in pre-order; empty for an item without gold. */
  decisions: JudgedDecision[]
  /** What refinement keeps. */
  kept: TreeNode[]
  /** Scores [nodes]. */
  scores: Float64Array
}

/** Sums of one instance: `denominators` [metrics], which no encoder influences, and `numerators` [metrics] of each row. */
export interface InstanceSums {
  denominators: Float64Array
  numerators: Map<RowName, Float64Array>
  behaviours: Map<EncoderName, Behaviour>
  /** The instance's decision nodes, in pre-order. */
  decisions: readonly DecisionNode[]
  /** Pairs of two nodes with one token sequence, which no metric counts. */
  droppedPairs: number
}

/**
 * What an instance adds to every metric, for each of the encoders and selectors.
 *
 * A gold item without a gold leaf (its annotations were dropped) and an item that was only retrieved add to the tokens per
 * question and to nothing else. {@link questionSums} adds the questions themselves.
 *
 * @param rows encoders with scores in the instance, any of the blind controls, any of the selectors
 * @throws InputError naming a node without a score, and an item whose parts don't fit each other
 */
export function measureInstance(instance: ScoredInstance, rows: readonly RowName[]): InstanceSums {
  const { root, nodes, gold } = checkInstance(instance)
  const isGold = (leaf: number): boolean => gold[leaf - root.from] ?? false
  const located = instance.role === 'gold' && gold.includes(true)
  const decisions = located ? decisionNodes(root, isGold) : []
  const denominators = new Float64Array(METRICS.length)
  const numerators = new Map<RowName, Float64Array>()
  const behaviours = new Map<EncoderName, Behaviour>()
  let droppedPairs = 0

  const wholeTokens = tokensOf(instance, [root])
  const several = located && root.children.length > 0
  if (located) {
    addTo(denominators, 'truncated_nodes', nodes.length)
    for (const name of ITEM_MEANS) {
      addTo(denominators, `${name}_all`, 1)
      if (several) addTo(denominators, name, 1)
    }
    if (several) for (const name of ['pruned_item_rate', 'dropped_item_rate']) addTo(denominators, name, 1)
    for (const decision of decisions) {
      addTo(denominators, 'decision_accuracy', 1)
      addTo(denominators, `decision_accuracy_${decisionCase(decision)}`, 1)
      addTo(denominators, 'edge_accuracy', decision.node.children.length)
    }
    for (const [kind, { total, dropped }] of pairEntries(
      countPairs(decisions, nodes, new Float64Array(nodes.length), instance.same),
    )) {
      addTo(denominators, 'pair_accuracy', total)
      addTo(denominators, pairMetric(kind), total)
      droppedPairs += dropped
    }
  }
  if (instance.retrieved) for (const name of tokenMetrics(instance)) addTo(denominators, `${name}_ratio`, wholeTokens)

  for (const row of rows) {
    const sums = new Float64Array(METRICS.length)
    numerators.set(row, sums)
    if (isSelector(row)) {
      if (located) addItem(sums, instance, select(instance, row), wholeTokens)
      continue
    }
    const scores = scoresOf(instance, row)
    const score = scoreOf(nodes, scores)
    const behaviour: Behaviour = { decisions: judgeDecisions(decisions, score), kept: refine(root, score), scores }
    behaviours.set(row, behaviour)
    if (located) {
      addItem(sums, instance, behaviour.kept, wholeTokens)
      for (const { decision, correct, edgesRight } of behaviour.decisions) {
        if (correct) {
          addTo(sums, 'decision_accuracy', 1)
          addTo(sums, `decision_accuracy_${decisionCase(decision)}`, 1)
        }
        addTo(sums, 'edge_accuracy', edgesRight)
      }
      if (isModel(row)) {
        for (const [kind, { right }] of pairEntries(countPairs(decisions, nodes, scores, instance.same))) {
          addTo(sums, 'pair_accuracy', right)
          addTo(sums, pairMetric(kind), right)
        }
      }
      if (several) {
        if (behaviour.kept[0] !== root) addTo(sums, 'pruned_item_rate', 1)
        if (keptLeaves(behaviour.kept) < root.to - root.from) addTo(sums, 'dropped_item_rate', 1)
      }
    }
    if (instance.retrieved) {
      const keptTokens = tokensOf(instance, behaviour.kept)
      for (const name of tokenMetrics(instance)) {
        addTo(sums, name, keptTokens)
        addTo(sums, `${name}_ratio`, keptTokens)
      }
    }
  }
  return { denominators, numerators, behaviours, decisions, droppedPairs }
}

/** What keeping these nodes of a gold item adds to the numerators of the means over items. */
function addItem(sums: Float64Array, instance: ScoredInstance, kept: readonly TreeNode[], wholeTokens: number): void {
  addTo(sums, 'truncated_nodes', instance.truncated.filter(Boolean).length)
  const tokens = tokensOf(instance, kept)
  const means = {
    kept_tokens: tokens,
    retained_tokens: ratio(tokens, wholeTokens),
    ...goldAgreement(instance, kept),
  }
  for (const name of ITEM_MEANS) {
    addTo(sums, `${name}_all`, means[name])
    if (instance.root.children.length > 0) addTo(sums, name, means[name])
  }
}

/** What a question itself adds to the denominators [metrics]: it is one to divide tokens by, if its retrieved items are known. */
export function questionSums(retrieved: boolean): Float64Array {
  const denominators = new Float64Array(METRICS.length)
  if (retrieved) for (const name of ['tokens_gold', 'tokens_other', 'tokens_all']) addTo(denominators, name, 1)
  return denominators
}

/** The scores [nodes] by which an encoder, or a blind control, refines the instance. */
function scoresOf(instance: ScoredInstance, encoder: EncoderName): Float64Array {
  if (!isModel(encoder)) return blindScores(encoder, instance.nodes)
  const scores = instance.scores[encoder]
  if (scores === undefined) throw new RangeError(`Item "${instance.item}" has no scores of the encoder "${encoder}".`)
  return scores
}

/** Tokens a reader sees of an item: the header once, then the leaves of the kept nodes. */
function tokensOf({ root, headerTokens, leafTokens }: ScoredInstance, kept: readonly TreeNode[]): number {
  let tokens = headerTokens
  for (const node of kept) for (let leaf = node.from; leaf < node.to; leaf++) tokens += leafTokens[leaf - root.from]!
  return tokens
}

const keptLeaves = (kept: readonly TreeNode[]): number => kept.reduce((leaves, node) => leaves + node.to - node.from, 0)

/** Recall |kept ∩ gold| / |gold|, precision |kept ∩ gold| / |kept| and their harmonic mean, in leaves of one item. */
function goldAgreement(
  { root, gold }: ScoredInstance,
  kept: readonly TreeNode[],
): { gold_recall: number; gold_precision: number; gold_f1: number } {
  let hits = 0
  for (const node of kept) for (let leaf = node.from; leaf < node.to; leaf++) if (gold[leaf - root.from]) hits++
  const goldCount = gold.filter(Boolean).length
  const keptCount = keptLeaves(kept)
  return {
    gold_recall: hits / goldCount,
    gold_precision: hits / keptCount,
    gold_f1: (2 * hits) / (goldCount + keptCount),
  }
}

function tokenMetrics({ role }: ScoredInstance): string[] {
  return [role === 'gold' ? 'tokens_gold' : 'tokens_other', 'tokens_all']
}

const pairMetric = (kind: PairKind): string => `pair_accuracy_${kind.replaceAll('-', '_')}`
const pairEntries = <T>(counts: Record<PairKind, T>): [PairKind, T][] => Object.entries(counts) as [PairKind, T][]
const ratio = (part: number, whole: number): number => (whole === 0 ? 1 : part / whole)

function addTo(sums: Float64Array, name: string, amount: number): void {
  sums[metricIndex(name)]! += amount
}
