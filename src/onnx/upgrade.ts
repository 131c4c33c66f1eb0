import { InputError } from '../support/errors.ts'
import { intAttribute, intsAttribute } from './attributes.ts'
import type { Attribute, Graph, Node, Tensor } from './graph.ts'
import { inferTypes } from './infer.ts'
import { int64, tensorOf } from './known.ts'

/** The operator set that older graphs are brought to. */
const TARGET = 17

/** Older operator sets broadcast by attributes, and are refused. */
const OLDEST = 7

interface UpgradeContext {
  node: Node
  graph: Graph
  /** Adds a constant and returns its name. */
  constant(tensor: Tensor): string
  /** A new name for a value between nodes. */
  value(): string
  refuse(why: string): never
}

interface Upgrade {
  /** The operator set from which on the node needs no change. */
  from: number
  /** The nodes in its place. */
  nodes(ctx: UpgradeContext): Node[]
}

/**
 * The same graph under operator set 17, where its own is older: what was an attribute and became an input (the axes of
 * Squeeze, Unsqueeze and ReduceSum, Split's sizes, Clip's bounds, ...) is one, and Softmax over several axes at once,
 * its meaning before 13, is said with Reshapes. Graphs of operator set 17 and later are returned as they are. Types of
 * new values are left to {@link inferTypes}.
 *
 * @throws InputError for operator sets before 7, and for uses of an operator that 17 cannot say, naming the node.
 */
export function upgradeOpset(graph: Graph): Graph {
  if (graph.opset >= TARGET) return graph
  if (graph.opset < OLDEST)
    throw new InputError(
      `the model's operator set is ${graph.opset}; ${OLDEST} and later are supported. ` +
        'Convert it with the onnx package (onnx.version_converter.convert_version)',
    )
  const typed = inferTypes(graph)
  const nodes: Node[] = []
  const out: Graph = {
    ...typed,
    opset: TARGET,
    nodes,
    initializers: new Map(typed.initializers),
    types: new Map(typed.types),
  }
  const names = new Set([...out.types.keys(), ...typed.nodes.flatMap((node) => [...node.inputs, ...node.outputs])])
  let counter = 0
  const unique = (base: string) => {
    let name: string
    do name = `${base}_${counter++}`
    while (names.has(name))
    names.add(name)
    return name
  }
  for (const node of typed.nodes) {
    const upgrade = node.domain === '' && Object.hasOwn(upgrades, node.op) ? upgrades[node.op] : undefined
    if (upgrade === undefined || graph.opset >= upgrade.from) {
      nodes.push(node)
      continue
    }
    const made = upgrade.nodes({
      node,
      graph: typed,
      constant: (tensor) => {
        const name = unique('upgraded')
        out.initializers.set(name, tensor)
        out.types.set(name, { dtype: tensor.dtype, shape: tensor.shape })
        return name
      },
      value: () => unique(node.outputs[0] as string),
      refuse: (why) => {
        throw new InputError(`node "${node.name}" (${node.op}, operator set ${graph.opset}): ${why}`)
      },
    })
    nodes.push(...made)
  }
  return out
}

const vector = (values: number[]): Tensor => ({
  dtype: 'int64',
  shape: [values.length],
  data: BigInt64Array.from(values, int64),
})

const without = (attributes: Record<string, Attribute>, ...names: string[]): Record<string, Attribute> =>
  Object.fromEntries(Object.entries(attributes).filter(([name]) => !names.includes(name)))

/** The integers of attribute `name` become the second input. */
const attributeToInput =
  (name: string): Upgrade['nodes'] =>
  ({ node, constant }) => {
    const ints = intsAttribute(node.attributes, name)
    const inputs = ints === undefined ? node.inputs : [node.inputs[0] as string, constant(vector(ints))]
    return [{ ...node, inputs, attributes: without(node.attributes, name) }]
  }

/**
 * Softmax of the input flattened to a matrix [axes before `axis`, axes from it on], by rows. Over the last axis alone
 * this is today's Softmax.
 */
const flattenedSoftmax: Upgrade['nodes'] = ({ node, graph, value }) => {
  const [x, y] = [node.inputs[0] as string, node.outputs[0] as string]
  const axis = intAttribute(node.attributes, 'axis', 1)
  const rank = graph.types.get(x)?.shape.length
  const last: Node = { ...node, attributes: { axis: { i: -1 } } }
  if (axis === -1 || axis === (rank ?? Number.NaN) - 1) return [last]
  const [shape, matrix, softmax] = [value(), value(), value()]
  const plain = { domain: '', name: '', attributes: {} }
  return [
    { ...plain, op: 'Shape', inputs: [x], outputs: [shape] },
    { ...plain, op: 'Flatten', inputs: [x], outputs: [matrix], attributes: { axis: { i: axis } } },
    { ...last, inputs: [matrix], outputs: [softmax] },
    { ...plain, op: 'Reshape', inputs: [softmax, shape], outputs: [y] },
  ]
}

/** A float constant of the input's element type. */
function scalarLike({ node, graph, constant, refuse }: UpgradeContext, value: number): string {
  const dtype = graph.types.get(node.inputs[0] as string)?.dtype
  const tensor = dtype === undefined ? undefined : tensorOf({ dtype, shape: [], elements: [value] })
  return tensor === undefined ? refuse('the element type of its input is not known') : constant(tensor)
}

const floatOf = (node: Node, name: string): number | undefined => {
  const a = node.attributes[name]
  return a !== undefined && 'f' in a ? a.f : undefined
}

const upgrades: Record<string, Upgrade> = {
  Squeeze: { from: 13, nodes: attributeToInput('axes') },
  Unsqueeze: { from: 13, nodes: attributeToInput('axes') },
  ReduceSum: { from: 13, nodes: attributeToInput('axes') },
  Split: { from: 13, nodes: attributeToInput('split') },
  Softmax: { from: 13, nodes: flattenedSoftmax },
  LogSoftmax: { from: 13, nodes: flattenedSoftmax },
  Hardmax: { from: 13, nodes: flattenedSoftmax },
  Clip: {
    from: 11,
    nodes: (ctx) => {
      const { node } = ctx
      const bounds = ['min', 'max'].map((name) => floatOf(node, name))
      const inputs = bounds.map((bound) => (bound === undefined ? '' : scalarLike(ctx, bound)))
      return [{ ...node, inputs: [node.inputs[0] as string, ...inputs], attributes: {} }]
    },
  },
  // Its ratio does nothing at inference, all that the older ones are for.
  Dropout: { from: 12, nodes: ({ node }) => [{ ...node, attributes: {} }] },
  Pad: {
    from: 11,
    nodes: (ctx) => {
      const { node, constant } = ctx
      const pads = intsAttribute(node.attributes, 'pads') ?? ctx.refuse('it has no pads')
      const value = floatOf(node, 'value')
      const inputs = [node.inputs[0] as string, constant(vector(pads))]
      if (value !== undefined) inputs.push(scalarLike(ctx, value))
      return [{ ...node, inputs, attributes: without(node.attributes, 'pads', 'value') }]
    },
  },
  Slice: {
    from: 10,
    nodes: ({ node, constant, refuse }) => {
      const [starts, ends, axes] = ['starts', 'ends', 'axes'].map((name) => intsAttribute(node.attributes, name))
      if (starts === undefined || ends === undefined) return refuse('it has no starts or no ends')
      const bounds = axes === undefined ? [starts, ends] : [starts, ends, axes]
      return [
        { ...node, inputs: [node.inputs[0] as string, ...bounds.map((b) => constant(vector(b)))], attributes: {} },
      ]
    },
  },
  TopK: {
    from: 10,
    nodes: ({ node, constant }) => {
      const k = constant(vector([intAttribute(node.attributes, 'k', 1)]))
      return [{ ...node, inputs: [node.inputs[0] as string, k], attributes: without(node.attributes, 'k') }]
    },
  },
  BatchNormalization: {
    from: 14,
    nodes: ({ node, refuse }) =>
      node.outputs.slice(1).some((name) => name !== '')
        ? refuse('it gives statistics of its batch, as in training; export the model for inference')
        : [{ ...node, outputs: node.outputs.slice(0, 1), attributes: without(node.attributes, 'spatial') }],
  },
  Scatter: { from: Number.POSITIVE_INFINITY, nodes: ({ node }) => [{ ...node, op: 'ScatterElements' }] },
  Upsample: {
    from: Number.POSITIVE_INFINITY,
    nodes: ({ refuse }) => refuse('Upsample left ONNX with operator set 10; export the model again'),
  },
  Resize: { from: 11, nodes: ({ refuse }) => refuse('Resize means something else from 11 on; export the model again') },
}
