import type { TreeNode } from '../hierarchy/index.ts'
import { quantile } from './bootstrap.ts'
import { getOrMake } from './maps.ts'
import type { InstanceSums } from './metrics.ts'
import { type EncoderName, MODEL_ENCODERS, type ModelEncoder, type ScoredInstance, tableRow } from './scored.ts'

/** Median of score(node) - score(root) over the nodes of one level, gold-overlapping nodes and the rest apart. */
export interface LevelMedian {
  /** Steps below the root. */
  level: number
  gold: number | null
  goldNodes: number
  other: number | null
  otherNodes: number
}

/** Root-relative scores by benchmark, encoder and level. */
export type LevelScores = Map<string, Map<ModelEncoder, LevelNodes[]>>

interface LevelNodes {
  gold: number[]
  other: number[]
}

/** Adds the nodes of a gold item with two or more leaves; any other item adds nothing. */
export function addLevels(levels: LevelScores, instance: ScoredInstance): void {
  const { root, nodes, gold } = instance
  if (instance.role !== 'gold' || root.children.length === 0 || !gold.includes(true)) return
  const encoders = getOrMake(levels, tableRow(instance), () => new Map<ModelEncoder, LevelNodes[]>())
  const depth = depths(nodes)
  const before = new Uint32Array(gold.length + 1)
  for (let leaf = 0; leaf < gold.length; leaf++) before[leaf + 1] = before[leaf]! + (gold[leaf] ? 1 : 0)
  for (const encoder of MODEL_ENCODERS) {
    const scores = instance.scores[encoder]
    if (scores === undefined) continue
    const byLevel = getOrMake(encoders, encoder, (): LevelNodes[] => [])
    for (let i = 1; i < nodes.length; i++) {
      const level = depth[i]!
      while (byLevel.length <= level) byLevel.push({ gold: [], other: [] })
      const { from, to } = nodes[i]!
      const overlaps = before[to - root.from]! > before[from - root.from]!
      byLevel[level]![overlaps ? 'gold' : 'other'].push(scores[i]! - scores[0]!)
    }
  }
}

/** The medians of one benchmark and encoder, from the level below the root down. */
export function levelMedians(levels: LevelScores, benchmark: string, encoder: ModelEncoder): LevelMedian[] {
  return (levels.get(benchmark)?.get(encoder) ?? []).slice(1).map(({ gold, other }, i) => ({
    level: i + 1,
    gold: median(gold),
    goldNodes: gold.length,
    other: median(other),
    otherNodes: other.length,
  }))
}

function median(values: readonly number[]): number | null {
  return values.length === 0 ? null : quantile(Float64Array.from(values).sort(), 0.5)
}

/** Decision accuracy at the decision nodes of one level. */
export interface LevelAccuracy {
  /** Steps below the root. */
  level: number
  decisions: number
  correct: number
  /** Null where the level has no decision node. */
  accuracy: number | null
}

/** Right decisions by benchmark, encoder and level. */
export type LevelDecisions = Map<string, Map<EncoderName, { decisions: number; correct: number }[]>>

/** Adds the decision nodes of an instance, for every encoder that was measured on it, to each of the benchmarks. */
export function addDecisionLevels(
  levels: LevelDecisions,
  benchmarks: readonly string[],
  { nodes }: ScoredInstance,
  { behaviours, decisions }: InstanceSums,
): void {
  if (decisions.length === 0) return
  const depth = depths(nodes)
  const levelOf = new Map(nodes.map((node, i) => [node, depth[i]!]))
  for (const benchmark of benchmarks) {
    const encoders = getOrMake(
      levels,
      benchmark,
      () => new Map<EncoderName, { decisions: number; correct: number }[]>(),
    )
    for (const [encoder, behaviour] of behaviours) {
      const byLevel = getOrMake(encoders, encoder, (): { decisions: number; correct: number }[] => [])
      for (const { decision, correct } of behaviour.decisions) {
        const level = levelOf.get(decision.node)!
        while (byLevel.length <= level) byLevel.push({ decisions: 0, correct: 0 })
        byLevel[level]!.decisions++
        if (correct) byLevel[level]!.correct++
      }
    }
  }
}

/** The accuracies of one benchmark and encoder, from the root down. */
export function levelAccuracies(levels: LevelDecisions, benchmark: string, encoder: EncoderName): LevelAccuracy[] {
  return (levels.get(benchmark)?.get(encoder) ?? []).map(({ decisions, correct }, level) => ({
    level,
    decisions,
    correct,
    accuracy: decisions === 0 ? null : correct / decisions,
  }))
}

/** [nodes]: steps from the root, for nodes in pre-order. */
function depths(nodes: readonly TreeNode[]): number[] {
  const ends: number[] = []
  return nodes.map((node) => {
    // Ancestors of a node in pre-order are those whose range has not ended yet.
    while (ends.length > 0 && ends.at(-1)! <= node.from) ends.pop()
    ends.push(node.to)
    return ends.length - 1
  })
}
