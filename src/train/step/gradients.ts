import type { TokenSequence } from '../../encoder/index.ts'
import { type Batch, createDistinct, type Instance, type InstancePair } from '../data/instances.ts'
import type { QueryRows } from '../data/query-file.ts'
import type { Engine } from '../engine/engine.ts'
import { lossInstance } from '../loss/instances.ts'
import { type LossInstance, type LossModule, nameOf, unscored } from '../loss/module.ts'
import { accumulate, type Tensors, zerosLike } from './optimizer.ts'

/** What an optimizer step needs to know of a whole batch. */
export interface BatchGradients {
  loss: number
  /** Learnable pairs whose preferred node scores higher. */
  right: number
  gradients: Tensors
  /** What is not finite, with its verb, where more is known than that the loss or the gradient isn't. */
  notFinite?: string | undefined
}

/** Those of a built-in loss: micro-batches summed in their order. */
export async function builtInGradients(
  batch: Batch,
  tensors: Tensors,
  engine: Pick<Engine, 'onePass' | 'twoPass'>,
): Promise<BatchGradients> {
  const gradients = zerosLike(tensors)
  let loss = 0
  let right = 0
  for (const micro of batch.micro) {
    const part = await (micro.oversize ? engine.twoPass(micro, tensors) : engine.onePass(micro, tensors))
    loss += part.loss
    right += part.differences.reduce((n, d) => n + (d > 0 ? 1 : 0), 0)
    accumulate(gradients, part.gradients)
  }
  return { loss, right, gradients }
}

/** What a loss module's step works with. */
export interface ModuleParts {
  module: LossModule
  engine: Pick<Engine, 'embed' | 'pullBack'>
  queries: QueryRows
  dimension: number
  benchmarks: string[]
}

/**
 * Those of a loss module, by gradient caching whatever the size: all nodes of the batch are embedded within the token budget,
 * the module gives dL/ds, and what that is at the embeddings is pulled back within the budget again.
 *
 *   s(q, v) = e_v · q,   dL/de_v = Σ over the instances that score v of dL/ds(q, v) · q
 */
export async function moduleGradients(batch: Batch, tensors: Tensors, parts: ModuleParts): Promise<BatchGradients> {
  const { module, engine, queries, dimension } = parts
  const { sequences, instances, places } = await scoreBatch(batch, tensors, parts)
  const right = batch.members.reduce((n, { instance, pairs }, i) => n + pairsRight(instance, pairs, instances[i]!), 0)
  const nothing = zerosLike(tensors)
  if (instances.length === 0) return { loss: 0, right, gradients: nothing }
  const without = unscored(instances)
  if (without !== undefined)
    return { loss: Number.NaN, right, gradients: nothing, notFinite: `a score of ${nameOf(without)} is` }

  const outcome = module.run(instances)
  if (outcome.notFinite !== undefined)
    return { loss: Number.NaN, right, gradients: nothing, notFinite: `in ${module.path}, ${outcome.notFinite} is` }
  const slope = new Float64Array(sequences.length * dimension)
  batch.members.forEach(({ instance }, i) => {
    const query = queries(instance.question)
    outcome.gradients[i]!.forEach((factor, node) => {
      const row = places[i]![node]! * dimension
      for (let k = 0; k < dimension; k++) slope[row + k]! += factor * query[k]!
    })
  })
  return { loss: outcome.loss, right, gradients: await engine.pullBack(sequences, Float32Array.from(slope), tensors) }
}

function pairsRight({ preferences }: Instance, pairs: InstancePair[], { scores }: LossInstance): number {
  return pairs.filter(({ number }) => {
    const [preferred, other] = preferences.pairs[number]!
    return scores[preferred]! > scores[other]!
  }).length
}

/** The instances of a batch with their scores, and the place of each node's sequence among the batch's distinct ones. */
export async function scoreBatch(
  batch: Batch,
  tensors: Tensors,
  { engine, queries, dimension, benchmarks }: Omit<ModuleParts, 'module'>,
): Promise<{ sequences: TokenSequence[]; instances: LossInstance[]; places: number[][] }> {
  const distinct = createDistinct()
  const rowsOf = batch.members.map(({ instance }) => instance.sequences.map((sequence) => distinct.add(sequence)))
  const { sequences } = distinct
  const embeddings = await engine.embed(sequences, tensors)
  const instances = batch.members.map((member, i) => {
    const { question, benchmark } = member.instance
    const query = queries(question)
    const scores = rowsOf[i]!.map((row) => {
      let sum = 0
      for (let k = 0; k < dimension; k++) sum += embeddings[row * dimension + k]! * query[k]!
      return sum
    })
    return lossInstance(member, benchmarks[benchmark]!, scores)
  })
  const places = batch.members.map(({ instance }, i) => instance.places.map((place) => rowsOf[i]![place]!))
  return { sequences, instances, places }
}
