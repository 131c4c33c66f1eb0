import type { Graph, Node } from '../graph.ts'
import { readersOf } from '../readers.ts'

/**
 * Puts each DynamicQuantizeLinear → MatMulInteger → Cast → Mul by the scales, as dynamic quantisation writes a product,
 * into one com.microsoft DynamicQuantizeMatMul with the last Mul's output, as ONNX Runtime's own fusion does. A product
 * of two dynamically quantised activations becomes their MatMul.
 */
export function fuseDynamicQuantisation(graph: Graph): Graph {
  const producers = new Map(graph.nodes.flatMap((node) => node.outputs.map((output) => [output, node] as const)))
  const readers = readersOf(graph)
  const outputs = new Set(graph.outputs)

  /** The node that alone reads a value, if it is an `op`. */
  const onlyReader = (value: string, op: string): Node | undefined => {
    const [node, ...more] = readers.get(value) ?? []
    return node?.op === op && more.length === 0 && !outputs.has(value) ? node : undefined
  }
  /** The two scales that a value is the product of, or itself. */
  const factors = (value: string): string[] => {
    const node = producers.get(value)
    return node?.op === 'Mul' ? node.inputs : [value]
  }
  const quantised = (value: string): Node | undefined => {
    const node = producers.get(value)
    return node?.op === 'DynamicQuantizeLinear' && node.outputs[0] === value ? node : undefined
  }

  const gone = new Set<Node>()
  const fused = new Map<Node, Node>()
  for (const product of graph.nodes) {
    if (product.op !== 'MatMulInteger') continue
    const [a = '', b = '', , zeroPoint = ''] = product.inputs
    const [left, right] = [quantised(a), quantised(b)]
    const cast = onlyReader(product.outputs[0] as string, 'Cast')
    if (left === undefined || cast === undefined) continue
    // y = cast · (s_A · s_B), or (cast · s_A) · s_B: Muls until both scales are there
    const scales: string[] = []
    const muls: Node[] = []
    for (let value = cast.outputs[0] as string; scales.length < 2; ) {
      const mul = onlyReader(value, 'Mul')
      if (mul === undefined) break
      scales.push(...factors(mul.inputs[0] === value ? (mul.inputs[1] as string) : (mul.inputs[0] as string)))
      muls.push(mul)
      value = mul.outputs[0] as string
    }
    const last = muls.at(-1)
    const others = scales.filter((scale) => scale !== left.outputs[1])
    const [scale] = others
    if (last === undefined || scale === undefined || scales.length !== 2 || others.length !== 1) continue
    if (right === undefined ? !graph.initializers.has(scale) : right.outputs[1] !== scale) continue
    const [x, y] = [left.inputs[0] as string, right?.inputs[0]]
    for (const node of [product, cast, ...muls]) gone.add(node)
    fused.set(last, {
      op: y === undefined ? 'DynamicQuantizeMatMul' : 'MatMul',
      domain: y === undefined ? 'com.microsoft' : '',
      name: product.name,
      inputs: y === undefined ? [x, b, scale, zeroPoint] : [x, y],
      outputs: last.outputs,
      attributes: {},
    })
  }
  const nodes = graph.nodes.flatMap((node) => fused.get(node) ?? (gone.has(node) ? [] : [node]))
  return { ...graph, nodes }
}
