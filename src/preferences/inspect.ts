import { createKeyTable, type Dataset } from '../data/index.ts'
import {
  buildHierarchy,
  type GoldEntry,
  goldLeaves,
  type Hierarchy,
  type Item,
  nodeKey,
  type RenderOptions,
  readsAsText,
  renderNode,
  type TreeNode,
} from '../hierarchy/index.ts'
import type { Progress } from '../support/progress.ts'
import {
  DECISION_CASES,
  type DecisionCase,
  decisionCase,
  decisionNodes,
  decisionPairs,
  PAIR_KINDS,
  type PairKind,
} from './pairs.ts'

export interface InspectOptions {
  dataset: Dataset
  /** Default 2. */
  branching?: number | undefined
  /** What an encoder of text makes of a node's string, prompt included; without it, tokens are not looked at. */
  tokenise?: ((text: string) => { ids: ArrayLike<number>; truncated: boolean }) | undefined
  /** How nodes are written out. Default: with titles, tables as Markdown. */
  rendering?: RenderOptions | undefined
  onProgress?: Progress | undefined
  signal?: AbortSignal | undefined
}

/** What training and evaluation will find in the questions of one split and benchmark. */
export interface GoldRow {
  split: string
  /** The benchmark; questions of a variant stand apart, as `benchmark:variant`. */
  benchmark: string
  questions: number
  /** (question, gold item), by the item's modality. */
  instances: Record<Item['modality'], number>
  /** Instances that ask for no decision: their item has one leaf, or no leaf of it is gold. */
  withoutDecision: { oneLeaf: number; noGoldLeaf: number }
  /** Instances that an encoder of text cannot read: images and videos. They have no part in what follows. */
  notText: number
  decisions: { total: number; cases: Record<DecisionCase, number> }
  pairs: { total: number; kinds: Record<PairKind, number> }
  /** Decision accuracy of policies that read nothing: always the first child, none, all. NaN without decision nodes. */
  controls: { 'always-left': number; 'keep-root': number; constant: number }
  tokens?: GoldTokens
}

/** Distinct gold items of text, each counted once a row; pairs by instance. */
export interface GoldTokens {
  items: number
  nodes: number
  /** Nodes of which the encoder sees only the beginning, and roots among them. */
  truncatedNodes: number
  truncatedRoots: number
  /** Nodes that are the same tokens as the node above them. */
  equalToParent: number
  /** Pairs of two nodes that are the same tokens: they cannot be learned, and are left out. */
  droppedPairs: { total: number; kinds: Record<PairKind, number> }
}

/**
 * Walks the gold of every question of a dataset and tells, by split and benchmark, what there is to learn and to measure: decision
 * nodes by case, pairs by kind, what blind policies would score, and, given a tokeniser, how much an encoder would see cut.
 * Memory: about 30 bytes for each gold item and benchmark.
 *
 * @throws InputError as reading the dataset does, and for gold that its item does not bear out
 */
export async function inspectGold(options: InspectOptions): Promise<GoldRow[]> {
  const { dataset, branching = 2, rendering = { title: true }, tokenise, signal, onProgress } = options
  const rows = new Map<string, GoldRow>()
  const seen = createKeyTable()
  const total = Object.values(dataset.meta.splits).reduce((sum, { questions }) => sum + questions, 0)
  const tokensOf = tokenise === undefined ? undefined : createTokenCache(tokenise, rendering)
  let done = 0
  for await (const { question } of dataset.questions()) {
    signal?.throwIfAborted()
    const benchmark = question.variant === undefined ? question.benchmark : `${question.benchmark}:${question.variant}`
    const key = JSON.stringify([question.split, benchmark])
    let row = rows.get(key)
    if (row === undefined) {
      row = emptyRow(question.split, benchmark, tokenise !== undefined)
      rows.set(key, row)
    }
    row.questions++
    for (const id of new Set(question.gold.map((entry) => entry.item))) {
      const entries = question.gold.filter((entry) => entry.item === id)
      const item = await dataset.item(id)
      row.instances[item.modality]++
      if (!readsAsText(item)) {
        row.notText++
        continue
      }
      const hierarchy = buildHierarchy(item, branching)
      const tokens = tokensOf?.(hierarchy)
      addDecisions(row, hierarchy, entries, tokens)
      if (tokens !== undefined && seen.add(`${key}\0${id}`).isNew) addItem(row.tokens!, hierarchy, tokens)
    }
    onProgress?.({ phase: 'walking the gold', done: ++done, total })
  }
  for (const row of rows.values()) {
    const { total: all, cases } = row.decisions
    row.controls = { 'always-left': cases.left / all, 'keep-root': cases.full / all, constant: cases.both / all }
  }
  return [...rows.values()]
}

const zeros = <K extends string>(names: readonly K[]): Record<K, number> =>
  Object.fromEntries(names.map((name) => [name, 0])) as Record<K, number>

function emptyRow(split: string, benchmark: string, withTokens: boolean): GoldRow {
  return {
    split,
    benchmark,
    questions: 0,
    instances: { text: 0, table: 0, image: 0, video: 0 },
    withoutDecision: { oneLeaf: 0, noGoldLeaf: 0 },
    notText: 0,
    decisions: { total: 0, cases: zeros(DECISION_CASES) },
    pairs: { total: 0, kinds: zeros(PAIR_KINDS) },
    controls: { 'always-left': Number.NaN, 'keep-root': Number.NaN, constant: Number.NaN },
    ...(withTokens && {
      tokens: {
        ...{ items: 0, nodes: 0, truncatedNodes: 0, truncatedRoots: 0, equalToParent: 0 },
        droppedPairs: { total: 0, kinds: zeros(PAIR_KINDS) },
      },
    }),
  }
}

/** A node's tokens as one string to compare, and whether they are cut. */
interface NodeTokens {
  sequence: string
  truncated: boolean
}

/** Nodes whose tokens are kept, those of one item at least: several questions in a row may ask about one. */
const NODES_KEPT = 1 << 14

/** The tokens of every node, by its leaf range. */
function createTokenCache(
  tokenise: NonNullable<InspectOptions['tokenise']>,
  rendering: RenderOptions,
): (hierarchy: Hierarchy) => Map<string, NodeTokens> {
  const cache = new Map<string, Map<string, NodeTokens>>()
  let kept = 0
  return (hierarchy) => {
    const { id } = hierarchy.item
    let tokens = cache.get(id)
    if (tokens === undefined) {
      tokens = new Map(
        hierarchy.nodes.map((node) => {
          const { ids, truncated } = tokenise(renderNode(hierarchy, node, rendering))
          return [nodeKey(node), { sequence: Array.from(ids).join(), truncated }]
        }),
      )
      cache.set(id, tokens)
      kept += tokens.size
      for (const [oldest, { size }] of cache) {
        if (kept <= NODES_KEPT || oldest === id) break
        cache.delete(oldest)
        kept -= size
      }
    }
    return tokens
  }
}

function addDecisions(
  row: GoldRow,
  hierarchy: Hierarchy,
  entries: GoldEntry[],
  tokens: Map<string, NodeTokens> | undefined,
): void {
  const marked = entries.map((entry) => goldLeaves(hierarchy, entry).gold)
  const decisions = decisionNodes(hierarchy.root, (leaf) => marked.some((gold) => gold[leaf]))
  if (hierarchy.leaves.length === 1) row.withoutDecision.oneLeaf++
  else if (decisions.length === 0) row.withoutDecision.noGoldLeaf++
  const sameTokens = (a: TreeNode, b: TreeNode): boolean =>
    tokens !== undefined && tokens.get(nodeKey(a))!.sequence === tokens.get(nodeKey(b))!.sequence
  for (const decision of decisions) {
    row.decisions.total++
    row.decisions.cases[decisionCase(decision)]++
    for (const { preferred, other, kind } of decisionPairs(decision)) {
      row.pairs.total++
      row.pairs.kinds[kind]++
      if (!sameTokens(preferred, other)) continue
      row.tokens!.droppedPairs.total++
      row.tokens!.droppedPairs.kinds[kind]++
    }
  }
}

function addItem(sum: GoldTokens, { root, nodes }: Hierarchy, tokens: Map<string, NodeTokens>): void {
  sum.items++
  if (tokens.get(nodeKey(root))!.truncated) sum.truncatedRoots++
  for (const node of nodes) {
    const own = tokens.get(nodeKey(node))!
    sum.nodes++
    if (own.truncated) sum.truncatedNodes++
    for (const child of node.children) if (tokens.get(nodeKey(child))!.sequence === own.sequence) sum.equalToParent++
  }
}
