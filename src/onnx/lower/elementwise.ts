import { floatAttribute, intAttribute, normalAxis, stringAttribute } from '../attributes.ts'
import { type Lowering, refuse, UNFUSED } from './lowering.ts'

/** com.microsoft FusedGemm: f(α·op(A)·op(B) + β·C) with an activation f. */
export const fusedGemm: Lowering = ({ node, x, g }) => {
  const { attributes } = node
  const flag = (name: string) => intAttribute(attributes, name, 0) === 1
  const y = g.gemm(x(0), x(1), x(2) === '' ? null : x(2), {
    transA: flag('transA'),
    transB: flag('transB'),
    alpha: floatAttribute(attributes, 'alpha', 1),
    beta: floatAttribute(attributes, 'beta', 1),
  })
  const activation = stringAttribute(attributes, 'activation', '')
  const activations: Record<string, (x: string) => string> = { Relu: g.relu, Sigmoid: g.sigmoid, Tanh: g.tanh }
  const f = Object.hasOwn(activations, activation) ? activations[activation] : undefined
  return [f === undefined ? refuse(node, `the activation "${activation}" is not supported`, UNFUSED) : f(y)]
}

/** com.microsoft BiasSoftmax: softmax(x + bias) over the last axis. */
export const biasSoftmax: Lowering = ({ node, x, g }) => {
  const rank = g.shape(x(0)).length
  if (normalAxis(intAttribute(node.attributes, 'axis', 1), rank) !== rank - 1)
    refuse(node, 'only a softmax over the last axis is supported', UNFUSED)
  return [g.softmax(g.add(x(0), x(1)), -1)]
}

/** Dropout and the like outside training: y = x. */
export const dropout: Lowering = (ctx) => {
  const training = ctx.x(2)
  const flag = training === '' ? undefined : ctx.g.constantOf(training)
  if (training !== '' && Number(flag?.data[0] ?? 1) !== 0)
    refuse(ctx.node, 'it is in training mode', 'Export the model for inference (torch: model.eval()).')
  return [ctx.x(0)]
}
