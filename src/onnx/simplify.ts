import { floatAttribute, intAttribute, intsAttribute } from './attributes.ts'
import { sameShape } from './builder.ts'
import type { Dim, Graph, Node } from './graph.ts'
import { prune } from './prune.ts'
import { readersOf } from './readers.ts'
import { isExternal } from './tensor.ts'

/**
 * The graph with chains of standard operators replaced by the operator that they spell out: ½·x·(1 + erf(x/√2)) by Gelu, a mean
 * and a variance over the last axis by LayerNormalization, a product of batches times a number by FusedMatMul. ONNX Runtime does
 * the same to a graph for inference; to a training graph it cannot, whose backward pass reads what lies within the chains. A
 * training step of an exported MiniLM needs a third less memory for it, since a chain's inner values are kept for the backward
 * pass and an operator's are not, and up to 3 % less time.
 *
 * Values that are read outside of their chain, and outputs, stay. The graph needs types.
 */
export function simplify(graph: Graph): Graph {
  const rewritten = [gelus, layerNormalizations, scaledProducts].reduce(
    (g, rewrite) => replace(g, rewrite(viewOf(g))),
    graph,
  )
  return prune(rewritten)
}

/** Value -> the node that makes it instead of the chain that did. */
type Replacements = Map<string, Node>

function replace(graph: Graph, replacements: Replacements): Graph {
  if (replacements.size === 0) return graph
  const nodes = graph.nodes.map((node) => replacements.get(node.outputs[0] as string) ?? node)
  return { ...graph, nodes }
}

/** What patterns look at. */
interface View {
  graph: Graph
  /** The node that makes a value, if it is one of these operators. */
  made(value: string | undefined, ...ops: string[]): Node | undefined
  /** The one node that reads a value, if it is one of these operators and the value is no output. */
  read(value: string | undefined, ...ops: string[]): Node | undefined
  /** The number that a value is, where it adds no axes to what it is broadcast with. */
  scalar(value: string | undefined): number | undefined
  shape(value: string | undefined): Dim[]
}

function viewOf(graph: Graph): View {
  const makers = new Map<string, Node>()
  for (const node of graph.nodes) for (const output of node.outputs) makers.set(output, node)
  const readers = readersOf(graph)
  const outputs = new Set(graph.outputs)
  const isOne = (node: Node | undefined, ops: string[]) =>
    node !== undefined && ops.includes(node.op) ? node : undefined
  return {
    graph,
    made: (value = '', ...ops) => isOne(makers.get(value), ops),
    read(value = '', ...ops) {
      const all = readers.get(value) ?? []
      return all.length === 1 && !outputs.has(value) ? isOne(all[0], ops) : undefined
    },
    scalar(value = '') {
      const tensor = graph.initializers.get(value)
      if (tensor === undefined || isExternal(tensor) || tensor.dtype !== 'float32') return undefined
      return tensor.data.length === 1 && tensor.shape.length <= 1 ? Number(tensor.data[0]) : undefined
    },
    shape: (value = '') => graph.types.get(value)?.shape ?? [],
  }
}

const output = (node: Node | undefined): string | undefined => node?.outputs[0]

/** The other input of a node of two inputs, one of which is `value`. */
const other = ({ inputs: [a, b] }: Node, value: string | undefined): string | undefined => (a === value ? b : a)

/** Exporters write constants in float32, or as float16 rounded them. */
const near = (x: number | undefined, y: number): boolean => x !== undefined && Math.abs(x - y) < 1e-3 * Math.abs(y)

// ½ and x, in any order, times 1 + erf(x/√2)
function gelus(view: View): Replacements {
  const found: Replacements = new Map()
  for (const erf of view.graph.nodes) {
    if (erf.op !== 'Erf') continue
    const x = dividedBy(view, erf.inputs[0], Math.SQRT2)
    const plusOne = view.read(output(erf), 'Add')
    if (x === undefined || plusOne === undefined || !near(view.scalar(other(plusOne, output(erf))), 1)) continue
    let last: Node = plusOne
    const wanted = new Set(['x', 'half'])
    while (wanted.size > 0) {
      const next = view.read(output(last), 'Mul', 'Div')
      if (next === undefined) break
      const factor = factorOf(view, next, output(last), x)
      if (!factor.every((name) => wanted.delete(name)) || factor.length === 0) break
      last = next
    }
    if (wanted.size > 0) continue
    const [y] = last.outputs as [string]
    found.set(y, { op: 'Gelu', domain: 'com.microsoft', name: last.name, inputs: [x], outputs: [y], attributes: {} })
  }
  return found
}

/** The x of x/number, written as a quotient or as a product. */
function dividedBy(view: View, value: string | undefined, number: number): string | undefined {
  const node = view.made(value, 'Div', 'Mul')
  const [a, b] = node?.inputs ?? []
  if (node?.op === 'Div') return near(view.scalar(b), number) ? a : undefined
  if (near(view.scalar(b), 1 / number)) return a
  return near(view.scalar(a), 1 / number) ? b : undefined
}

/** What `node` multiplies `value` by: x, ½, both, or something else. */
function factorOf(view: View, node: Node, value: string | undefined, x: string): string[] {
  if (node.op === 'Div') return node.inputs[0] === value && near(view.scalar(node.inputs[1]), 2) ? ['half'] : []
  const factor = other(node, value)
  if (factor === x) return ['x']
  if (near(view.scalar(factor), 0.5)) return ['half']
  return dividedBy(view, factor, 2) === x ? ['x', 'half'] : []
}

// (x − m) / √(v + ε) · γ + β, m = mean x, v = mean (x − m)²
function layerNormalizations(view: View): Replacements {
  const found: Replacements = new Map()
  if (view.graph.opset < 17) return found
  for (const quotient of view.graph.nodes) {
    if (quotient.op !== 'Div') continue
    const root = view.made(quotient.inputs[1], 'Sqrt')
    const sum = view.made(root?.inputs[0], 'Add')
    const variance = sum?.inputs.map((value) => view.made(value, 'ReduceMean')).find((node) => node !== undefined)
    if (sum === undefined || variance === undefined || !isOverLast(view, variance)) continue
    const epsilon = view.scalar(other(sum, output(variance)))
    const x = centredBy(view, quotient.inputs[0])
    if (epsilon === undefined || x === undefined || centredBy(view, squareRoot(view, variance.inputs[0])) !== x)
      continue
    const scaled = view.read(output(quotient), 'Mul')
    const shifted = view.read(output(scaled), 'Add')
    if (scaled === undefined || shifted === undefined) continue
    const [gamma, beta] = [other(scaled, output(quotient)), other(shifted, output(scaled))] as [string, string]
    const width = view.shape(x).at(-1)
    if (![gamma, beta].every((value) => sameShape(view.shape(value), [width as Dim]))) continue
    const [y] = shifted.outputs as [string]
    const attributes = { axis: { i: -1 }, epsilon: { f: epsilon } }
    const inputs = [x, gamma, beta]
    found.set(y, { op: 'LayerNormalization', domain: '', name: shifted.name, inputs, outputs: [y], attributes })
  }
  return found
}

function isOverLast({ graph, shape }: View, { inputs, attributes }: Node): boolean {
  const given = inputs[1] === undefined ? undefined : graph.initializers.get(inputs[1])
  const axes =
    given === undefined || isExternal(given)
      ? intsAttribute(attributes, 'axes')
      : Array.from(given.data as ArrayLike<number | bigint>, Number)
  const last = shape(inputs[0]).length - 1
  return intAttribute(attributes, 'keepdims', 1) === 1 && axes?.length === 1 && (axes[0] === -1 || axes[0] === last)
}

/** The x of x − mean x. */
function centredBy(view: View, value: string | undefined): string | undefined {
  const difference = view.made(value, 'Sub')
  const mean = view.made(difference?.inputs[1], 'ReduceMean')
  const [x] = difference?.inputs ?? []
  return mean !== undefined && isOverLast(view, mean) && mean.inputs[0] === x ? x : undefined
}

/** The d of d². */
function squareRoot(view: View, value: string | undefined): string | undefined {
  const node = view.made(value, 'Pow', 'Mul')
  const [d, e] = node?.inputs ?? []
  if (node?.op === 'Pow') return view.scalar(e) === 2 ? d : undefined
  return d === e ? d : undefined
}

// s · (A B) of batches of matrices in float32
function scaledProducts(view: View): Replacements {
  const found: Replacements = new Map()
  for (const node of view.graph.nodes) {
    if (node.op !== 'Mul' && node.op !== 'Div') continue
    const product = node.inputs
      .map((value) => view.made(value, 'MatMul', 'FusedMatMul'))
      .find((made) => made !== undefined)
    if (product === undefined || view.read(output(product), node.op) === undefined) continue
    if (node.op === 'Div' && node.inputs[0] !== output(product)) continue
    const number = view.scalar(other(node, output(product)))
    const [a, b] = product.inputs as [string, string]
    const isBatch = [a, b].every(
      (value) => view.shape(value).length > 2 && view.graph.types.get(value)?.dtype === 'float32',
    )
    if (number === undefined || !isBatch) continue
    const alpha = floatAttribute(product.attributes, 'alpha', 1) * (node.op === 'Mul' ? number : 1 / number)
    const attributes = { ...product.attributes, alpha: { f: alpha } }
    const [y] = node.outputs as [string]
    found.set(y, {
      op: 'FusedMatMul',
      domain: 'com.microsoft',
      name: product.name,
      inputs: [a, b],
      outputs: [y],
      attributes,
    })
  }
  return found
}
