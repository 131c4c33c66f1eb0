import { addGradients } from '../autodiff/index.ts'
import { type Graph, GraphBuilder, prune } from '../onnx/index.ts'
import { withUnitLength } from '../train/index.ts'

/** Names of what a distillation graph takes and gives besides the encoder's own inputs. */
export const distillation = {
  /** float32 [texts, dimension]: the teacher's embeddings, of unit length. */
  targets: 'target_embeddings',
  /** float32 scalar: what a text counts, 1 / the texts of the whole step. */
  weight: 'text_weight',
  loss: 'distillation_loss',
  cosines: 'teacher_cosines',
} as const

export interface DistillationGraph {
  graph: Graph
  /** Weight -> the output that holds the loss's gradient there. */
  gradients: Map<string, string>
}

/**
 * Forward and backward of distillation over the texts of a run, e and t being unit embeddings of student and teacher:
 *
 *   L = w [ Σᵢ (1 - eᵢ·tᵢ) + ρ/n Σᵢⱼ (eᵢ·eⱼ - tᵢ·tⱼ)² ]
 *
 * The first term places each text, the second keeps texts as far from each other as the teacher has them (Reimers & Gurevych,
 * Making Monolingual Sentence Embeddings Multilingual; Park et al., Relational Knowledge Distillation); n is the texts of the run.
 *
 * @param forward graph whose output `embeddings` is [texts, dimension]; its weights are inputs
 * @param weights names of those inputs
 * @param relations ρ
 */
export function distillationGraph(
  forward: Graph,
  weights: string[],
  { unitLength, relations }: { unitLength: boolean; relations: number },
): DistillationGraph {
  const unit = withUnitLength(forward, unitLength)
  const [embeddings] = unit.outputs as [string]
  const g = GraphBuilder.from(unit)
  const dimension = g.shape(embeddings)[1]!
  const targets = g.input(distillation.targets, 'float32', ['nodes', dimension])
  const weight = g.input(distillation.weight, 'float32', [])
  const cosines = g.reduceSum(g.mul(embeddings, targets), [1], false)
  g.output(cosines, distillation.cosines)
  let loss = g.reduceSum(g.sub(g.scalar(1), cosines), [0], false)
  if (relations > 0) {
    const apart = g.sub(
      g.fusedMatmul(embeddings, embeddings, { transB: true }),
      g.fusedMatmul(targets, targets, { transB: true }),
    )
    const sum = g.reduceSum(g.mul(apart, apart), [0, 1], false)
    const count = g.cast(g.reshape(g.sizeOf('nodes'), []), 'float32')
    loss = g.add(loss, g.mul(g.scalar(relations), g.div(sum, count)))
  }
  g.output(g.mul(weight, loss), distillation.loss)
  const { graph, gradients } = addGradients(g.build(), { [distillation.loss]: 1 }, weights)
  const outputs = [distillation.loss, distillation.cosines, ...new Set(gradients.values())]
  return { graph: prune({ ...graph, outputs }), gradients }
}
