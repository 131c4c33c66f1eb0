import type { RenderOptions } from '../hierarchy/index.ts'
import type { PairKind, PreferenceInstance } from '../preferences/index.ts'
import { type RawInstance, renderInstance, type TrainingSet } from './data.ts'
import type { MicroBatch } from './engine.ts'
import { pairWeights, type WeightedPair } from './loss.ts'
import { packUnits } from './sampler.ts'

/** What turns a node's string into the encoder's tokens, prompt included. */
export type Tokenise = (text: string) => { ids: Int32Array; truncated: boolean }

/** A pair of an instance, by the places of its nodes among the instance's distinct sequences. */
export interface InstancePair {
  preferred: number
  other: number
  kind: PairKind
}

/** The pairs of one decision node; those of equal token sequences, which have d = 0 by construction, are kept apart. */
export interface DecisionPairs {
  learnable: InstancePair[]
  equal: InstancePair[]
}

/** An instance ready for the encoder. */
export interface Instance {
  item: string
  /** Numbers of the question and the benchmark in the training set. */
  question: number
  benchmark: number
  /** The distinct token sequences of its nodes. */
  sequences: Int32Array[]
  decisions: DecisionPairs[]
  /** Nodes, and how many of them were cut at the encoder's maximum length. */
  nodes: number
  truncated: number
}

/** Reads an instance and tokenises its nodes. */
export async function readInstance(
  set: TrainingSet,
  number: number,
  tokenise: Tokenise,
  rendering: RenderOptions,
): Promise<Instance> {
  return prepareInstance(await set.read(number), {
    tokenise,
    rendering,
    question: set.index.question[number]!,
    benchmark: set.index.benchmark[number]!,
  })
}

/** Tokenises an instance's nodes; nodes of equal token sequences become one. */
export function prepareInstance(
  raw: RawInstance,
  options: { tokenise: Tokenise; rendering: RenderOptions; question: number; benchmark: number },
): Instance {
  const { preferences } = raw
  const distinct = createDistinct()
  let truncated = 0
  const place = renderInstance(raw, options.rendering).map((text) => {
    const encoded = options.tokenise(text)
    if (encoded.truncated) truncated++
    return distinct.add(encoded.ids)
  })
  const decisions = new Map<number, DecisionPairs>()
  for (const [preferred, other, kind] of preferences.pairs) {
    const decision = decisionOf(preferences.nodes, preferred, other, kind)
    if (!decisions.has(decision)) decisions.set(decision, { learnable: [], equal: [] })
    const { learnable, equal } = decisions.get(decision)!
    const pair: InstancePair = { preferred: place[preferred]!, other: place[other]!, kind }
    ;(pair.preferred === pair.other ? equal : learnable).push(pair)
  }
  return {
    item: preferences.item,
    question: options.question,
    benchmark: options.benchmark,
    sequences: distinct.sequences,
    decisions: [...decisions.values()],
    nodes: place.length,
    truncated,
  }
}

/** The decision node that a pair belongs to, by its index: the parent among the two, or the parent of both. */
function decisionOf(nodes: PreferenceInstance['nodes'], preferred: number, other: number, kind: PairKind): number {
  if (kind === 'fully-gold' || kind === 'non-gold-child') return preferred
  if (kind === 'gold-child') return other
  const from = Math.min(nodes[preferred]![0], nodes[other]![0])
  const to = Math.max(nodes[preferred]![1], nodes[other]![1])
  let parent = -1
  let size = Number.POSITIVE_INFINITY
  nodes.forEach(([start, end], i) => {
    if (start <= from && end >= to && end - start < size) {
      parent = i
      size = end - start
    }
  })
  return parent
}

/** Token sequences, each once. */
function createDistinct() {
  const sequences: Int32Array[] = []
  const places = new Map<string, number>()
  return {
    sequences,
    /** The place of a sequence equal to this one. */
    add(ids: Int32Array): number {
      const key = ids.join()
      let place = places.get(key)
      if (place === undefined) {
        place = sequences.push(ids) - 1
        places.set(key, place)
      }
      return place
    },
  }
}

export interface WeightingSettings {
  kindWeights: Record<PairKind, number>
  weighting: 'decision-node' | 'item'
  benchmarkWeights: Record<string, number>
}

/** The weight of a benchmark: 1 unless the settings say otherwise. */
export function benchmarkWeight(
  { benchmarkWeights }: Pick<WeightingSettings, 'benchmarkWeights'>,
  name: string,
): number {
  // A benchmark may be called like something that every object has, "constructor" for one.
  return Object.hasOwn(benchmarkWeights, name) ? benchmarkWeights[name]! : 1
}

/** A batch, cut into micro-batches of whole instances; `oversize` ones are over the token budget all by themselves. */
export interface Batch {
  micro: (MicroBatch & { oversize: boolean })[]
  instances: number
  pairs: number
  /** Pairs of equal token sequences, left out. */
  droppedPairs: number
  nodes: number
  truncatedNodes: number
  /** Tokens of the distinct sequences, without padding. */
  tokens: number
}

/**
 * Puts instances together: each pair's share of the loss over the whole batch (see `pairWeights`), and micro-batches within
 * the token budget, in each of which equal sequences are encoded once. Instances of one item stay together where they fit.
 *
 * @param benchmarks names of the benchmarks
 * @param cost tokens that a run over these sequences computes, padding included
 */
export function assembleBatch(
  instances: Instance[],
  settings: WeightingSettings,
  benchmarks: string[],
  cost: (sequences: Int32Array[]) => number,
  budget: number,
): Batch {
  const groups = instances.flatMap((instance, i) => {
    const perDecision = instance.decisions.map(({ learnable }) => learnable)
    const grouped = settings.weighting === 'item' ? [perDecision.flat()] : perDecision
    return grouped
      .filter((pairs) => pairs.length > 0)
      .map((pairs) => ({ instance: i, pairs, omega: benchmarkWeight(settings, benchmarks[instance.benchmark]!) }))
  })
  const shares = pairWeights(
    groups.map(({ omega, pairs }) => ({ omega, pairs: pairs.map(({ kind }) => settings.kindWeights[kind]) })),
  )
  const pairsOf: (InstancePair & { weight: number })[][] = instances.map(() => [])
  groups.forEach(({ instance, pairs }, g) => {
    pairs.forEach((pair, p) => {
      pairsOf[instance]!.push({ ...pair, weight: shares[g]![p]! })
    })
  })

  const active = instances.map((_, i) => i).filter((i) => pairsOf[i]!.length > 0)
  const units = sharedItems(instances, active, (sequences) => cost(sequences) <= budget)
  const sequencesOf = (unit: number): Int32Array[] => distinctSequences(units[unit]!.map((i) => instances[i]!))
  const packed = packUnits(
    units.map((_, u) => sequencesOf(u).reduce((sum, { length }) => sum + length, 0)),
    (chosen) => cost(chosen.flatMap(sequencesOf)),
    budget,
  )
  const micro = packed.map(({ units: chosen, oversize }) => {
    const distinct = createDistinct()
    const pairs: WeightedPair[] = []
    for (const i of chosen.flatMap((u) => units[u]!)) {
      const { sequences, question } = instances[i]!
      const place = sequences.map((ids) => distinct.add(ids))
      for (const { preferred, other, weight } of pairsOf[i]!)
        pairs.push({ preferred: place[preferred]!, other: place[other]!, question, weight })
    }
    return { sequences: distinct.sequences, pairs, oversize }
  })
  const sum = (of: (instance: Instance) => number): number => instances.reduce((total, i) => total + of(i), 0)
  return {
    micro,
    instances: instances.length,
    pairs: sum(({ decisions }) => decisions.reduce((n, { learnable }) => n + learnable.length, 0)),
    droppedPairs: sum(({ decisions }) => decisions.reduce((n, { equal }) => n + equal.length, 0)),
    nodes: sum(({ nodes }) => nodes),
    truncatedNodes: sum(({ truncated }) => truncated),
    tokens: micro.reduce((n, { sequences }) => n + sequences.reduce((m, { length }) => m + length, 0), 0),
  }
}

/** Instances of one item as one unit, unless that is over the budget. */
function sharedItems(instances: Instance[], active: number[], fits: (sequences: Int32Array[]) => boolean): number[][] {
  const byItem = new Map<string, number[]>()
  for (const i of active) {
    const { item } = instances[i]!
    byItem.set(item, [...(byItem.get(item) ?? []), i])
  }
  return [...byItem.values()].flatMap((unit) =>
    unit.length > 1 && !fits(distinctSequences(unit.map((i) => instances[i]!))) ? unit.map((i) => [i]) : [unit],
  )
}

function distinctSequences(instances: Instance[]): Int32Array[] {
  if (instances.length === 1) return instances[0]!.sequences
  const distinct = createDistinct()
  for (const { sequences } of instances) for (const ids of sequences) distinct.add(ids)
  return distinct.sequences
}
