import { setImmediate as nextTurn } from 'node:timers/promises'
import type { TokenSequence } from '../encoder/index.ts'
import type { RenderOptions } from '../hierarchy/index.ts'
import {
  benchmarkWeight,
  type EncodeNodes,
  type Instance,
  readInstance,
  textKey,
  type WeightingSettings,
} from './data/instances.ts'
import type { QueryRows } from './data/query-file.ts'
import type { TrainingSet } from './data/training-set.ts'
import type { Engine } from './engine/engine.ts'
import { createModuleMean } from './loss/instances.ts'
import type { LossModule } from './loss/module.ts'
import { type LossSettings, pairLoss } from './loss/pairwise.ts'
import type { ValidationMetrics } from './run/metrics.ts'
import type { Tensors } from './step/optimizer.ts'

/**
 * How the adapter does on the validation part. Decisions are judged by the refinement rule (a child that scores at least as
 * high as its parent is entered), so children cut to their parent's very tokens count as entered.
 *
 * @throws an AbortError when `signal` asks for it
 */
export async function validate(options: {
  set: TrainingSet
  instances: Int32Array
  engine: Engine
  tensors: Tensors
  queries: QueryRows
  dimension: number
  encode: EncodeNodes
  rendering: RenderOptions
  /** A built-in loss, or a module's; a module gets as many instances at once as in training. */
  loss: LossSettings | LossModule
  weighting: WeightingSettings & { batchSize: number }
  onInstance?: (done: number) => void
  signal?: AbortSignal | undefined
}): Promise<ValidationMetrics> {
  const { set, instances, engine, tensors, queries, dimension } = options
  const mean = 'run' in options.loss ? createModuleMean(options.loss, options.weighting, set.benchmarks) : undefined
  const tally = createTally('run' in options.loss ? undefined : options.loss, options.weighting, set.benchmarks)
  const embedded = new Map<string, Float32Array>()
  // Chunks fill the encoder's runs; instances of one item need its nodes once.
  for (let start = 0; start < instances.length; start += CHUNK) {
    const chunk: Instance[] = []
    for (const number of instances.subarray(start, start + CHUNK))
      chunk.push(await readInstance(set, number, options.encode, options.rendering))
    const missing = new Map<string, TokenSequence>()
    for (const { sequences } of chunk) for (const sequence of sequences) missing.set(textKey(sequence), sequence)
    embedded.clear()
    const rows = await engine.embed([...missing.values()], tensors)
    ;[...missing.keys()].forEach((key, i) => {
      embedded.set(key, rows.subarray(i * dimension, (i + 1) * dimension))
    })
    for (const instance of chunk) {
      const query = queries(instance.question)
      const scores = instance.sequences.map((sequence) => dot(embedded.get(textKey(sequence))!, query))
      tally.add(instance, scores)
      mean?.add(instance, scores)
    }
    // Only now does a signal reach this process: runs of the graph hold up its event loop.
    await nextTurn()
    options.signal?.throwIfAborted()
    options.onInstance?.(Math.min(start + CHUNK, instances.length))
  }
  return mean === undefined ? tally.metrics() : { ...tally.metrics(), loss: mean.loss() }
}

const CHUNK = 64

function dot(a: Float32Array, b: Float32Array): number {
  let sum = 0
  for (let i = 0; i < a.length; i++) sum += a[i]! * b[i]!
  return sum
}

/** Counts decisions, comparisons, pairs and, for a built-in one, loss over scored instances. */
export function createTally(loss: LossSettings | undefined, weighting: WeightingSettings, benchmarks: string[]) {
  const perBenchmark = benchmarks.map(() => ({ decisions: 0, right: 0 }))
  let edges = 0
  let edgesRight = 0
  let pairs = 0
  let pairsRight = 0
  let omegas = 0
  let losses = 0

  return {
    /** @param scores one per distinct sequence of the instance */
    add(instance: Instance, scores: number[]): void {
      const counts = perBenchmark[instance.benchmark]!
      const omega = benchmarkWeight(weighting, benchmarks[instance.benchmark]!)
      const groups = weighting.weighting === 'item' ? [instance.decisions.flatMap((d) => d.learnable)] : []
      for (const { learnable, equal } of instance.decisions) {
        let right = true
        for (const { preferred, other, kind } of [...learnable, ...equal]) {
          if (kind === 'sibling-separation') continue
          const d = scores[preferred]! - scores[other]!
          // Ties descend: enough for a child that shall be entered, not for one that shall not.
          const comesOut = kind === 'gold-child' ? d >= 0 : d > 0
          edges++
          if (comesOut) edgesRight++
          else right = false
        }
        counts.decisions++
        if (right) counts.right++
        if (weighting.weighting === 'decision-node') groups.push(learnable)
        for (const { preferred, other } of learnable) {
          pairs++
          if (scores[preferred]! > scores[other]!) pairsRight++
        }
      }
      for (const group of groups) {
        let weights = 0
        let sum = 0
        for (const { preferred, other, kind } of group) {
          const w = weighting.kindWeights[kind]
          weights += w
          if (loss !== undefined) sum += w * pairLoss(scores[preferred]! - scores[other]!, loss)
        }
        if (weights === 0) continue
        omegas += omega
        losses += (omega * sum) / weights
      }
    },
    metrics(): ValidationMetrics {
      const known = perBenchmark
        .map((counts, i) => ({ ...counts, name: benchmarks[i]! }))
        .filter((c) => c.decisions > 0)
      const accuracies = known.map(({ decisions, right }) => right / decisions)
      const decisions = known.reduce((n, c) => n + c.decisions, 0)
      return {
        decision_accuracy: known.reduce((n, c) => n + c.right, 0) / decisions,
        mean_decision_accuracy: accuracies.reduce((a, b) => a + b, 0) / accuracies.length,
        edge_accuracy: edgesRight / edges,
        pair_accuracy: pairsRight / pairs,
        loss: losses / omegas,
        decisions,
        pairs,
        benchmarks: Object.fromEntries(known.map(({ name }, i) => [name, accuracies[i]!])),
      }
    },
  }
}
