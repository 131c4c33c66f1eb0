import { floatAttribute, intAttribute, normalAxis } from './attributes.ts'
import { GraphBuilder } from './builder.ts'
import type { Graph, Node, ValueType } from './graph.ts'

/**
 * The graph in operators that ONNX Runtime's WebGPU provider computes, and computes rightly:
 *
 * - FusedMatMul, for which it has no kernel, as Transpose, MatMul and Mul. Its matrices, the largest of an encoder, would leave the
 *   device for the CPU and come back each time.
 * - 1/√(mean x² + ε), the second output of SimplifiedLayerNormalization, from its definition: the kernel leaves it unwritten.
 *
 * @param graph a graph whose types are known
 */
export function forWebgpu(graph: Graph): Graph {
  const g = GraphBuilder.rewriting(graph)
  for (const node of graph.nodes) {
    const types = node.outputs.map((name) => graph.types.get(name))
    if (node.op === 'FusedMatMul' && !batchesMove(node)) plainProduct(node, types as ValueType[], g)
    else if (node.op === 'SimplifiedLayerNormalization' && node.outputs[1])
      plainStatistic(node, types as ValueType[], g)
    else g.take(node, types)
  }
  return g.build()
}

const batchesMove = ({ attributes }: Node): boolean =>
  ['transBatchA', 'transBatchB'].some((name) => intAttribute(attributes, name, 0) === 1)

/** α · op(a) · op(b). */
function plainProduct({ inputs, outputs, attributes }: Node, types: ValueType[], g: GraphBuilder): void {
  const turned = (value: string, flag: string): string => {
    const rank = g.shape(value).length
    if (intAttribute(attributes, flag, 0) === 0 || rank < 2) return value
    const batch = Array.from({ length: rank - 2 }, (_, i) => i)
    return g.transpose(value, [...batch, rank - 1, rank - 2])
  }
  const [a = '', b = ''] = inputs
  const operands = [turned(a, 'transA'), turned(b, 'transB')]
  const alpha = floatAttribute(attributes, 'alpha', 1)
  if (alpha === 1) {
    g.node('MatMul', operands, { outputs, types })
    return
  }
  const product = g.one('MatMul', operands, { types })
  g.node('Mul', [product, g.cast(g.scalar(alpha), g.type(product).dtype)], { outputs, types })
}

/** The normalisation without its statistic, and the statistic beside it. */
function plainStatistic(node: Node, types: ValueType[], g: GraphBuilder): void {
  const [x = ''] = node.inputs
  const [y = '', statistic = ''] = node.outputs
  g.take({ ...node, outputs: [y] }, types)
  const rank = g.shape(x).length
  const first = normalAxis(intAttribute(node.attributes, 'axis', -1), rank)
  const axes = Array.from({ length: rank - first }, (_, i) => first + i)
  const mean = g.reduceMean(g.mul(x, x), axes, true)
  const root = g.sqrt(g.add(mean, g.scalar(floatAttribute(node.attributes, 'epsilon', 1e-5))))
  g.node('Reciprocal', [root], { outputs: [statistic], types: types.slice(1) })
}
