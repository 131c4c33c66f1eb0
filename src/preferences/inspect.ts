import { createKeyTable, type Dataset } from '../data/index.ts'
import {
  buildHierarchy,
  type GoldEntry,
  goldLeaves,
  type Hierarchy,
  type Item,
  nodeKey,
  readsAsText,
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
  /** What an encoder makes of an item's nodes; without it, tokens are not looked at. */
  encoder?: InspectedEncoder | undefined
  onProgress?: Progress | undefined
  signal?: AbortSignal | undefined
}

/** What an inspection needs of an encoder. */
export interface InspectedEncoder {
  /** Whether it reads images and videos, too. */
  multimodal: boolean
  /** The tokens of a tree's nodes, in their order; undefined where the item's picture or video cannot be read. */
  encode(hierarchy: Hierarchy): Promise<NodeTokens[] | undefined>
}

/** A node's tokens as one string to compare, how many they are, and whether they are cut. */
export interface NodeTokens {
  sequence: string
  length: number
  truncated: boolean
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
  /** Images and videos among the instances, unless the encoder reads them: one of text leaves them out of what follows. */
  notText: number
  /** Instances whose picture or video cannot be read. Nor have these. */
  unreadable: number
  decisions: { total: number; cases: Record<DecisionCase, number> }
  pairs: { total: number; kinds: Record<PairKind, number> }
  /** Decision accuracy of policies that read nothing: always the first child, none, all. NaN without decision nodes. */
  controls: { 'always-left': number; 'keep-root': number; constant: number }
  tokens?: GoldTokens
}

/** Distinct gold items that the encoder reads, each counted once a row; pairs by instance. */
export interface GoldTokens {
  items: number
  nodes: number
  /** Nodes of which the encoder sees only the beginning, and roots among them. */
  truncatedNodes: number
  truncatedRoots: number
  /** By modality: nodes, the tokens of all of them, cut ones as they are cut, and of the longest one. */
  sizes: Record<Item['modality'], { nodes: number; tokens: number; longest: number }>
  /** Nodes that are the same tokens as the node above them. */
  equalToParent: number
  /** Pairs of two nodes that are the same tokens: they cannot be learned, and are left out. */
  droppedPairs: { total: number; kinds: Record<PairKind, number> }
}

/**
 * Walks the gold of every question of a dataset and tells, by split and benchmark, what there is to learn and to measure: decision
 * nodes by case, pairs by kind, what blind policies would score, and, given an encoder, how much it would see cut.
 * Memory: about 30 bytes for each gold item and benchmark.
 *
 * @throws InputError as reading the dataset does, and for gold that its item does not bear out
 */
export async function inspectGold(options: InspectOptions): Promise<GoldRow[]> {
  const { dataset, branching = 2, encoder, signal, onProgress } = options
  const rows = new Map<string, GoldRow>()
  const seen = createKeyTable()
  const total = Object.values(dataset.meta.splits).reduce((sum, { questions }) => sum + questions, 0)
  const tokensOf = encoder === undefined ? undefined : createTokenCache(encoder)
  let done = 0
  for await (const { question } of dataset.questions()) {
    signal?.throwIfAborted()
    const benchmark = question.variant === undefined ? question.benchmark : `${question.benchmark}:${question.variant}`
    const key = JSON.stringify([question.split, benchmark])
    let row = rows.get(key)
    if (row === undefined) {
      row = emptyRow(question.split, benchmark, encoder !== undefined)
      rows.set(key, row)
    }
    row.questions++
    for (const id of new Set(question.gold.map((entry) => entry.item))) {
      const entries = question.gold.filter((entry) => entry.item === id)
      const item = await dataset.item(id)
      row.instances[item.modality]++
      if (!readsAsText(item) && encoder?.multimodal !== true) {
        row.notText++
        if (encoder !== undefined) continue
      }
      const hierarchy = buildHierarchy(item, branching)
      const tokens = await tokensOf?.(hierarchy)
      if (tokens === 'unreadable') {
        row.unreadable++
        continue
      }
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

const noNodes = () => ({ nodes: 0, tokens: 0, longest: 0 })

function emptyRow(split: string, benchmark: string, withTokens: boolean): GoldRow {
  return {
    split,
    benchmark,
    questions: 0,
    instances: { text: 0, table: 0, image: 0, video: 0 },
    withoutDecision: { oneLeaf: 0, noGoldLeaf: 0 },
    notText: 0,
    unreadable: 0,
    decisions: { total: 0, cases: zeros(DECISION_CASES) },
    pairs: { total: 0, kinds: zeros(PAIR_KINDS) },
    controls: { 'always-left': Number.NaN, 'keep-root': Number.NaN, constant: Number.NaN },
    ...(withTokens && {
      tokens: {
        ...{ items: 0, nodes: 0, truncatedNodes: 0, truncatedRoots: 0, equalToParent: 0 },
        sizes: { text: noNodes(), table: noNodes(), image: noNodes(), video: noNodes() },
        droppedPairs: { total: 0, kinds: zeros(PAIR_KINDS) },
      },
    }),
  }
}

type TokensByNode = Map<string, NodeTokens> | 'unreadable'

/** Nodes whose tokens are kept, those of one item at least: several questions in a row may ask about one. */
const NODES_KEPT = 1 << 14

/** The tokens of every node, by its leaf range. */
function createTokenCache({ encode }: InspectedEncoder): (hierarchy: Hierarchy) => Promise<TokensByNode> {
  const cache = new Map<string, TokensByNode>()
  const sizeOf = (tokens: TokensByNode): number => (tokens === 'unreadable' ? 1 : tokens.size)
  let kept = 0
  return async (hierarchy) => {
    const { id } = hierarchy.item
    let tokens = cache.get(id)
    if (tokens === undefined) {
      const encoded = await encode(hierarchy)
      tokens =
        encoded === undefined ? 'unreadable' : new Map(hierarchy.nodes.map((node, i) => [nodeKey(node), encoded[i]!]))
      cache.set(id, tokens)
      kept += sizeOf(tokens)
      for (const [oldest, old] of cache) {
        if (kept <= NODES_KEPT || oldest === id) break
        cache.delete(oldest)
        kept -= sizeOf(old)
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

function addItem(sum: GoldTokens, { item, root, nodes }: Hierarchy, tokens: Map<string, NodeTokens>): void {
  sum.items++
  if (tokens.get(nodeKey(root))!.truncated) sum.truncatedRoots++
  const size = sum.sizes[item.modality]
  for (const node of nodes) {
    const own = tokens.get(nodeKey(node))!
    sum.nodes++
    size.nodes++
    size.tokens += own.length
    size.longest = Math.max(size.longest, own.length)
    if (own.truncated) sum.truncatedNodes++
    for (const child of node.children) if (tokens.get(nodeKey(child))!.sequence === own.sequence) sum.equalToParent++
  }
}
