import {
  decisionOf,
  type Instance,
  shareOut,
  type WeightedInstance,
  type WeightingSettings,
} from '../data/instances.ts'
import { type LossInstance, type LossModule, type LossNode, unscored } from './module.ts'

/**
 * An instance as a loss module sees it.
 *
 * @param scores one per distinct sequence of the instance
 */
export function lossInstance(
  { instance, pairs: weighted }: WeightedInstance,
  benchmark: string,
  scores: ArrayLike<number>,
): LossInstance {
  const { preferences, places } = instance
  const weights = new Map(weighted.map(({ number, weight }) => [number, weight]))
  return {
    question: preferences.question,
    item: preferences.item,
    benchmark,
    nodes: frozen(lossNodes(preferences.nodes, preferences.pairs)),
    pairs: frozen(
      preferences.pairs.map(([preferred, other, kind], number) => ({
        preferred,
        other,
        kind,
        decision: decisionOf(preferences.nodes, preferred, other, kind),
        weight: weights.get(number) ?? 0,
      })),
    ),
    scores: Float64Array.from(places, (place) => scores[place]!),
  }
}

/** A list that a module cannot change by mistake, which would tell in the next call. */
function frozen<T>(list: T[]): readonly T[] {
  return Object.freeze(list.map((entry) => Object.freeze(entry)))
}

/** The tree over ranges in pre-order, with what the pairs say of gold. */
function lossNodes(ranges: Instance['preferences']['nodes'], pairs: Instance['preferences']['pairs']): LossNode[] {
  const gold: LossNode['gold'][] = ranges.map(() => 'none')
  for (const [preferred, other, kind] of pairs) {
    if (kind === 'fully-gold') gold[preferred] = gold[other] = 'all'
    if (kind === 'non-gold-child' && gold[preferred] === 'none') gold[preferred] = 'some'
    if (kind !== 'gold-child') continue
    if (gold[other] === 'none') gold[other] = 'some'
    // A child that is partly gold has leaves of both sorts; one leaf is gold or not.
    const [from, to] = ranges[preferred]!
    if (to - from === 1) gold[preferred] = 'all'
    else if (gold[preferred] === 'none') gold[preferred] = 'some'
  }
  const children: number[][] = ranges.map(() => [])
  const open: number[] = []
  const nodes = ranges.map(([from, to], i): LossNode => {
    while (open.length > 0 && ranges[open.at(-1)!]![1] <= from) open.pop()
    const parent = open.at(-1) ?? -1
    if (parent !== -1) children[parent]!.push(i)
    open.push(i)
    return { from, to, parent, children: children[i]!, gold: gold[i]! }
  })
  for (const list of children) Object.freeze(list)
  return nodes
}

/**
 * A module's loss over any number of instances: batches as in training, Σ Ω_b L_b / Σ Ω_b with Ω_b the sum of ω over batch b.
 * For a loss that is Σ weight · ℓ(d) that is the loss of all of them together.
 */
export function createModuleMean(
  module: LossModule,
  settings: WeightingSettings & { batchSize: number },
  benchmarks: string[],
) {
  let waiting: Instance[] = []
  const scoresOf = new Map<Instance, ArrayLike<number>>()
  let losses = 0
  let omegas = 0
  const flush = (): void => {
    const { members, omega } = shareOut(waiting, settings, benchmarks)
    if (omega > 0) {
      const given = members.map((member) =>
        lossInstance(member, benchmarks[member.instance.benchmark]!, scoresOf.get(member.instance)!),
      )
      losses += unscored(given) === undefined ? omega * module.run(given).loss : Number.NaN
      omegas += omega
    }
    waiting = []
    scoresOf.clear()
  }
  return {
    /** @param scores one per distinct sequence of the instance */
    add(instance: Instance, scores: ArrayLike<number>): void {
      waiting.push(instance)
      scoresOf.set(instance, scores)
      if (waiting.length === settings.batchSize) flush()
    },
    /** The mean over everything that was added; NaN where nothing was. */
    loss(): number {
      flush()
      return losses / omegas
    },
  }
}
