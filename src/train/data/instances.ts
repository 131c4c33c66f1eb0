import { type EncodedInput, type EncoderInput, sequenceKey, type TokenSequence } from '../../encoder/index.ts'
import type { RenderOptions } from '../../hierarchy/index.ts'
import type { PairKind, PreferenceInstance } from '../../preferences/index.ts'
import type { MicroBatch } from '../engine/engine.ts'
import { pairWeights, type WeightedPair } from '../loss/pairwise.ts'
import { packUnits } from './sampler.ts'
import { instanceInputs, type TrainingSet } from './training-set.ts'

/** What turns nodes into the encoder's tokens, prompt or template included. */
export type EncodeNodes = (inputs: readonly EncoderInput[]) => Promise<EncodedInput[]>

/** A pair of an instance, by the places of its nodes among the instance's distinct sequences. */
export interface InstancePair {
  preferred: number
  other: number
  kind: PairKind
  /** Its place among `preferences.pairs`. */
  number: number
}

/** The pairs of one decision node; those of equal token sequences, which have d = 0 by construction, are kept apart. */
export interface DecisionPairs {
  learnable: InstancePair[]
  equal: InstancePair[]
}

/** An instance ready for the encoder. */
export interface Instance {
  item: string
  /** Its nodes and pairs, and the place of each node's sequence in `sequences`. */
  preferences: PreferenceInstance
  places: number[]
  /** Numbers of the question and the benchmark in the training set. */
  question: number
  benchmark: number
  /** The distinct token sequences of its nodes. */
  sequences: TokenSequence[]
  decisions: DecisionPairs[]
  /** Nodes, and how many of them were cut at the encoder's maximum length. */
  nodes: number
  truncated: number
}

/** Reads an instance and tokenises its nodes. */
export async function readInstance(
  set: TrainingSet,
  number: number,
  encode: EncodeNodes,
  rendering: RenderOptions,
): Promise<Instance> {
  const raw = await set.read(number)
  return prepareInstance(raw.preferences, await encode(instanceInputs(raw, rendering)), {
    question: set.index.question[number]!,
    benchmark: set.index.benchmark[number]!,
  })
}

/**
 * An instance whose nodes are tokenised; nodes of equal token sequences become one.
 *
 * @param encoded the preferences' `nodes`
 */
export function prepareInstance(
  preferences: PreferenceInstance,
  encoded: readonly EncodedInput[],
  options: { question: number; benchmark: number },
): Instance {
  const distinct = createDistinct()
  const place = encoded.map(({ sequence }) => distinct.add(sequence))
  const decisions = new Map<number, DecisionPairs>()
  for (const [number, [preferred, other, kind]] of preferences.pairs.entries()) {
    const decision = decisionOf(preferences.nodes, preferred, other, kind)
    if (!decisions.has(decision)) decisions.set(decision, { learnable: [], equal: [] })
    const { learnable, equal } = decisions.get(decision)!
    const pair: InstancePair = { preferred: place[preferred]!, other: place[other]!, kind, number }
    ;(pair.preferred === pair.other ? equal : learnable).push(pair)
  }
  return {
    item: preferences.item,
    preferences,
    places: place,
    question: options.question,
    benchmark: options.benchmark,
    sequences: distinct.sequences,
    decisions: [...decisions.values()],
    nodes: place.length,
    truncated: encoded.filter(({ truncated }) => truncated).length,
  }
}

/** The decision node that a pair belongs to, by its index: the parent among the two, or the parent of both. */
export function decisionOf(
  nodes: PreferenceInstance['nodes'],
  preferred: number,
  other: number,
  kind: PairKind,
): number {
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
export function createDistinct() {
  const sequences: TokenSequence[] = []
  const places = new Map<string, number>()
  return {
    sequences,
    /** The place of a sequence equal to this one. */
    add(sequence: TokenSequence): number {
      const key = textKey(sequence)
      let place = places.get(key)
      if (place === undefined) {
        place = sequences.push(sequence) - 1
        places.set(key, place)
      }
      return place
    },
  }
}

/** {@link sequenceKey} as a string, for maps. */
export const textKey = (sequence: TokenSequence): string => Buffer.from(sequenceKey(sequence)).toString('latin1')

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
  /** The instances that have something to learn, whole. */
  members: WeightedInstance[]
  micro: (MicroBatch & { oversize: boolean })[]
  instances: number
  pairs: number
  /** Pairs of equal token sequences, left out. */
  droppedPairs: number
  nodes: number
  truncatedNodes: number
  /** Tokens of the distinct sequences, without padding. */
  tokens: number
  /** Those of them that are computed, what sequences begin with alike counted once; absent where the encoder shares nothing. */
  computedTokens?: number
}

/**
 * Puts instances together: each pair's share of the loss over the whole batch (see `pairWeights`), and micro-batches within
 * the token budget, in each of which equal sequences are encoded once. Instances of one item stay together where they fit.
 *
 * @param benchmarks names of the benchmarks
 * @param cost tokens that a run over these sequences computes, padding included
 * @param wanted tokens that micro-batches should have where more would be within the budget
 * @param computed tokens that a run over these sequences computes without padding, for an encoder that shares what they begin
 *   with; `oversize` ones do not run at once
 */
export function assembleBatch(
  instances: Instance[],
  settings: WeightingSettings,
  benchmarks: string[],
  cost: (sequences: TokenSequence[]) => number,
  budget: number,
  wanted = budget,
  computed?: (sequences: TokenSequence[], oversize: boolean) => number,
): Batch {
  const { members } = shareOut(instances, settings, benchmarks)
  const units = sharedItems(members, (sequences) => cost(sequences) <= budget)
  const sequencesOf = (unit: number): TokenSequence[] => distinctSequences(units[unit]!)
  const packed = packUnits(
    units.map((_, u) => computed?.(sequencesOf(u), false) ?? tokensOf(sequencesOf(u))),
    (chosen) => cost(chosen.flatMap(sequencesOf)),
    budget,
    Math.min(budget, wanted),
  )
  const micro = packed.map(({ units: chosen, oversize }) => {
    const distinct = createDistinct()
    const pairs: WeightedPair[] = []
    for (const { instance, pairs: own } of chosen.flatMap((u) => units[u]!)) {
      const { sequences, question } = instance
      const place = sequences.map((sequence) => distinct.add(sequence))
      for (const { preferred, other, weight } of own)
        pairs.push({ preferred: place[preferred]!, other: place[other]!, question, weight })
    }
    return { sequences: distinct.sequences, pairs, oversize }
  })
  const sum = (of: (instance: Instance) => number): number => instances.reduce((total, i) => total + of(i), 0)
  return {
    members,
    micro,
    instances: instances.length,
    pairs: sum(({ decisions }) => decisions.reduce((n, { learnable }) => n + learnable.length, 0)),
    droppedPairs: sum(({ decisions }) => decisions.reduce((n, { equal }) => n + equal.length, 0)),
    nodes: sum(({ nodes }) => nodes),
    truncatedNodes: sum(({ truncated }) => truncated),
    tokens: micro.reduce((n, { sequences }) => n + tokensOf(sequences), 0),
    ...(computed !== undefined && {
      computedTokens: micro.reduce((n, { sequences, oversize }) => n + computed(sequences, oversize), 0),
    }),
  }
}

function tokensOf(sequences: readonly TokenSequence[]): number {
  return sequences.reduce((sum, { ids }) => sum + ids.length, 0)
}

/** An instance with its learnable pairs, each with its share of the loss. */
export interface WeightedInstance {
  instance: Instance
  pairs: (InstancePair & { weight: number })[]
}

/**
 * Each pair's share of the loss over these instances (see `pairWeights`); instances without a learnable pair are left out.
 *
 * @returns `omega`: Σ ω over the decision nodes (or items) that count
 */
export function shareOut(
  instances: readonly Instance[],
  settings: WeightingSettings,
  benchmarks: string[],
): { members: WeightedInstance[]; omega: number } {
  const members = instances
    .map((instance): WeightedInstance => ({ instance, pairs: [] }))
    .filter(({ instance }) => instance.decisions.some(({ learnable }) => learnable.length > 0))
  const groups = members.flatMap((member) => {
    const perDecision = member.instance.decisions.map(({ learnable }) => learnable)
    const grouped = settings.weighting === 'item' ? [perDecision.flat()] : perDecision
    const omega = benchmarkWeight(settings, benchmarks[member.instance.benchmark]!)
    return grouped
      .filter((pairs) => pairs.length > 0)
      .map((pairs) => ({ member, pairs, omega, weights: pairs.map(({ kind }) => settings.kindWeights[kind]) }))
  })
  const shares = pairWeights(groups.map(({ omega, weights }) => ({ omega, pairs: weights })))
  groups.forEach(({ member, pairs }, g) => {
    pairs.forEach((pair, p) => {
      member.pairs.push({ ...pair, weight: shares[g]![p]! })
    })
  })
  const counting = groups.filter(({ weights }) => weights.some((w) => w > 0))
  return { members, omega: counting.reduce((sum, { omega }) => sum + omega, 0) }
}

/** Instances of one item as one unit, unless that is over the budget. */
function sharedItems(members: WeightedInstance[], fits: (sequences: TokenSequence[]) => boolean): WeightedInstance[][] {
  const byItem = new Map<string, WeightedInstance[]>()
  for (const member of members) {
    const { item } = member.instance
    byItem.set(item, [...(byItem.get(item) ?? []), member])
  }
  return [...byItem.values()].flatMap((unit) =>
    unit.length > 1 && !fits(distinctSequences(unit)) ? unit.map((member) => [member]) : [unit],
  )
}

function distinctSequences(members: WeightedInstance[]): TokenSequence[] {
  if (members.length === 1) return members[0]!.instance.sequences
  const distinct = createDistinct()
  for (const { instance } of members) for (const sequence of instance.sequences) distinct.add(sequence)
  return distinct.sequences
}
