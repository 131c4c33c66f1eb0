import { addGradients } from '../../autodiff/index.ts'
import { type Graph, GraphBuilder, inHalfPrecision, type Precision, prune } from '../../onnx/index.ts'
import { addLoss, type LossSettings, lossValues } from '../loss/pairwise.ts'

/** Name of the output that holds node embeddings of unit length, `[nodes, dimension]`. */
export const UNIT_EMBEDDINGS = 'unit_embeddings'
/** Name of the input that holds the loss's gradient at the embeddings, `[nodes, dimension]`. */
export const EMBEDDING_GRADIENT = 'embedding_gradient'
/** Name of `step`'s scalar input by which the gradients come out multiplied; only in float16. */
export const LOSS_SCALE = 'loss_scale'

/** A graph together with the names of its gradient outputs. */
export interface GradientGraph {
  graph: Graph
  /** Differentiated value -> the output that holds the loss's gradient there. */
  gradients: Map<string, string>
}

export interface PrecisionOptions {
  precision: Precision
  /** Round as the precision would, on a device that has no kernels of it. */
  emulate?: boolean
}

/** Everything that training runs. All of them are ordinary ONNX graphs over the same forward pass. */
export interface TrainingGraphs {
  /** Batch -> loss, differences and gradients of the trainable tensors, in one run; for a built-in loss. */
  step: GradientGraph | undefined
  /** Batch -> embeddings. */
  embed: Graph
  /** Batch and gradient at the embeddings -> gradients of the trainable tensors (a vector-Jacobian product). */
  pullBack: GradientGraph
}

/**
 * The training graphs of a node encoder. `step` is the usual one; the other two split it in two passes, so that an
 * instance of any size trains in bounded memory: embed all of its nodes batch by batch, take the loss's gradient at the
 * embeddings, pull that back batch by batch and add up (gradient caching: Gao et al., Scaling Deep Contrastive Learning
 * Batch Size under Memory Limited Setup). Both ways give the same gradients up to rounding.
 *
 * @param forward graph whose output `embeddings` is `[nodes, dimension]`; its trainable tensors are inputs
 * @param trainable names of those inputs
 * @param unitLength whether `embeddings` already have unit length
 * @param precision what matrix products are computed in; see `inHalfPrecision`
 */
export function trainingGraphs(
  forward: Graph,
  trainable: string[],
  loss: LossSettings | undefined,
  unitLength: boolean,
  { precision, emulate }: PrecisionOptions = { precision: 'fp32' },
): TrainingGraphs {
  const rounded = (graph: Graph): Graph =>
    precision === 'fp32' ? graph : inHalfPrecision(graph, precision, { trainable, emulate: emulate ?? false })
  const inPrecision = (whole: GradientGraph): GradientGraph => ({ ...whole, graph: rounded(whole.graph) })
  const embed = withUnitLength(forward, unitLength)
  const pullBack = GraphBuilder.from(embed)
  pullBack.input(EMBEDDING_GRADIENT, 'float32', embed.types.get(UNIT_EMBEDDINGS)!.shape)

  return {
    step: loss && inPrecision(stepGraph(embed, trainable, loss, precision === 'fp16')),
    embed: rounded(embed),
    pullBack: inPrecision(differentiated(pullBack.build(), { [UNIT_EMBEDDINGS]: EMBEDDING_GRADIENT }, trainable, [])),
  }
}

function stepGraph(embed: Graph, trainable: string[], loss: LossSettings, scaled: boolean): GradientGraph {
  const g = GraphBuilder.from(embed)
  addLoss(g, UNIT_EMBEDDINGS, loss)
  const seed = scaled ? g.input(LOSS_SCALE, 'float32', []) : 1
  return differentiated(g.build(), { [lossValues.loss]: seed }, trainable, [lossValues.loss, lossValues.differences])
}

/** The forward graph with embeddings of unit length as its one output. */
export function withUnitLength(forward: Graph, unitLength: boolean): Graph {
  const g = GraphBuilder.from(forward)
  const embeddings = 'embeddings'
  if (unitLength) g.output(embeddings, UNIT_EMBEDDINGS)
  else {
    const length = g.sqrt(g.reduceSum(g.mul(embeddings, embeddings), [1], true))
    g.output(g.div(embeddings, g.max(length, g.scalar(1e-12))), UNIT_EMBEDDINGS)
  }
  return prune({ ...g.build(), outputs: [UNIT_EMBEDDINGS] })
}

function differentiated(
  graph: Graph,
  seeds: Record<string, string | 1>,
  wrt: string[],
  outputs: string[],
): GradientGraph {
  const { graph: whole, gradients } = addGradients(graph, seeds, wrt)
  return { graph: prune({ ...whole, outputs: [...outputs, ...gradients.values()] }), gradients }
}
