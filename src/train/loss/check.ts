import { InputError } from '../../support/errors.ts'
import { createRandom } from '../../support/random.ts'
import { type LossInstance, type LossModule, nodeName } from './module.ts'

/** Step of the finite differences, in units of cosine. */
const H = 1e-5
/** Nodes whose slope is compared one by one; of more, that many evenly spread ones. */
const MOST_NODES = 256

/**
 * Checks a loss module on a batch before training begins: numbers are finite, two calls with the same input agree, and the
 * gradient is the loss's. For every node v, with L± = L(s_v ± h),
 *
 *   dL/ds_v lies between (L₊ - L)/h and (L - L₋)/h, up to rounding and curvature
 *
 * which holds at a kink for every subgradient, too. Both at the scores of the batch and at made-up ones, since the scores of a
 * frozen encoder may all lie where a loss is flat.
 *
 * @throws InputError naming the module, the node, and both numbers
 */
export function checkLossModule(module: LossModule, batch: readonly LossInstance[]): void {
  const random = createRandom('loss check')
  const made = batch.map((instance) => ({ ...instance, scores: instance.scores.map(() => 2 * random.next() - 1) }))
  for (const [instances, scores] of [
    [batch, 'at the scores of the first batch'],
    [made, 'at made-up scores between -1 and 1'],
  ] as const)
    checkAt(module, instances, scores)
}

function checkAt(module: LossModule, instances: readonly LossInstance[], where: string): void {
  const fault = (what: string): InputError =>
    new InputError(`The loss module is wrong ${where}: ${what}`, { file: module.path })
  const run = (moved?: { instance: number; node: number; by: number }) =>
    module.run(
      instances.map((instance, i) => {
        const scores = instance.scores.slice()
        if (moved?.instance === i) scores[moved.node]! += moved.by
        return { ...instance, scores }
      }),
    )

  const { loss, gradients, notFinite } = run()
  if (notFinite !== undefined) throw fault(`${notFinite} is not finite.`)
  const again = run()
  if (!Object.is(again.loss, loss))
    throw fault(`two calls with the same input gave the losses ${loss} and ${again.loss}.`)
  instances.forEach((instance, i) => {
    const differing = gradients[i]!.findIndex((x, node) => !Object.is(x, again.gradients[i]![node]))
    if (differing !== -1)
      throw fault(
        `two calls with the same input gave ${gradients[i]![differing]} and ${again.gradients[i]![differing]} as the gradient at ${nodeName(instance, differing)}.`,
      )
  })

  const largest = Math.max(0, ...gradients.map((row) => row.reduce((most, x) => Math.max(most, Math.abs(x)), 0)))
  for (const { instance, node } of spread(instances)) {
    const up = (run({ instance, node, by: H }).loss - loss) / H
    const down = (loss - run({ instance, node, by: -H }).loss) / H
    const slope = gradients[instance]![node]!
    const slack = 1e-4 * Math.abs(up + down) + 1e-6 * largest + (1e-14 * (1 + Math.abs(loss))) / H
    if (slope >= Math.min(up, down) - slack && slope <= Math.max(up, down) + slack) continue
    throw fault(
      `the gradient at ${nodeName(instances[instance]!, node)} is ${slope}, but finite differences of the loss give ${(up + down) / 2}.`,
    )
  }
}

/** Nodes of the instances, all of them or evenly spread ones. */
function spread(instances: readonly LossInstance[]): { instance: number; node: number }[] {
  const all = instances.flatMap(({ nodes }, instance) => nodes.map((_, node) => ({ instance, node })))
  if (all.length <= MOST_NODES) return all
  return Array.from({ length: MOST_NODES }, (_, i) => all[Math.floor((i * all.length) / MOST_NODES)]!)
}
