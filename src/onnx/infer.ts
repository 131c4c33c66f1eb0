import { InputError } from '../support/errors.ts'
import { symbolsOf } from './dims.ts'
import type { Dim, ExternalTensor, Graph, Node, Subgraph, Tensor, ValueType } from './graph.ts'
import { type Known, knownTensor, tensorOf } from './known.ts'
import { nodeValues } from './shape-values.ts'
import { inferNodeTypes } from './shapes.ts'
import { isExternal } from './tensor.ts'

/**
 * The same graph with the type of every value for which there is a shape rule, or that the graph already types; the
 * graph's own symbols are followed through the arithmetic that shapes are made of (Shape, Gather, Concat, Mul, Where,
 * ...), so that a Reshape to such a shape has the dimensions `[batch, sequence, 12, 32]`.
 *
 * What is settled before the graph runs is settled: small integers, booleans and float scalars that depend on constants
 * and known sizes alone become initializers, an If with such a condition becomes its branch, and readers of an Identity
 * read its input. Names of other values, inputs and outputs stay. The graph given is left as it is.
 *
 * @throws InputError for an If whose condition is known only when the graph runs.
 */
export function inferTypes(graph: Graph): Graph {
  return new Inference(graph).run()
}

class Inference {
  private readonly given: Graph
  private readonly out: Graph
  private readonly values = new Map<string, Known>()
  /** Value -> the value that is read in its place. */
  private readonly aliases = new Map<string, string>()
  private readonly symbols = new Set<string>()
  /** Symbols that this walk made for sizes of which nothing is known. */
  private readonly unknown = new Set<string>()
  private readonly outputs: Set<string>
  private readonly names: Set<string>
  private counter = 0

  constructor(graph: Graph) {
    this.given = graph
    this.out = { ...graph, outputs: [...graph.outputs], nodes: [], initializers: new Map(), types: new Map() }
    this.outputs = new Set(graph.outputs)
    this.names = new Set([...graph.inputs, ...graph.initializers.keys(), ...graph.nodes.flatMap((n) => n.outputs)])
    for (const { shape } of graph.types.values())
      for (const symbol of shape.flatMap(symbolsOf)) this.symbols.add(symbol)
  }

  run(): Graph {
    for (const name of this.given.inputs) {
      const type = this.given.types.get(name)
      if (type !== undefined) this.out.types.set(name, type)
    }
    for (const [name, tensor] of this.given.initializers) this.initializer(name, tensor)
    for (const node of this.given.nodes) this.visit(node, this.given.types)
    return this.out
  }

  private visit(node: Node, declared: Graph['types']): void {
    const inputs = node.inputs.map((name) => this.aliases.get(name) ?? name)
    const read = inputs.some((name, i) => name !== node.inputs[i]) ? { ...node, inputs } : node
    const [input = '', output = ''] = [inputs[0], node.outputs[0]]
    if (node.op === 'If' && node.domain === '') {
      this.branch(read)
      return
    }
    if (node.op === 'Identity' && node.domain === '' && !this.outputs.has(output) && input !== '') {
      this.aliases.set(output, input)
      return
    }
    const types = this.typesOf(read, declared)
    node.outputs.forEach((name, i) => {
      const type = types[i]
      if (name !== '' && type !== undefined) this.out.types.set(name, type)
    })
    const values = nodeValues(read, this.values, this.out.types)
    node.outputs.forEach((name, i) => {
      const value = values[i]
      if (name !== '' && value !== undefined) this.values.set(name, value)
    })
    const tensors = values.map((value, i) => this.settled(node.outputs[i] as string, value))
    if (tensors.length === 0 || !tensors.every((tensor) => tensor !== undefined)) {
      this.out.nodes.push(read)
      return
    }
    tensors.forEach((tensor, i) => {
      if (node.outputs[i] !== '') this.initializer(node.outputs[i] as string, tensor)
    })
  }

  /** The tensor that a value is, whatever the graph is fed, where it takes a node's place. */
  private settled(name: string, value: Known | undefined): Tensor | undefined {
    if (value === undefined || this.outputs.has(name)) return undefined
    const isFloat = value.dtype.includes('float')
    return isFloat && value.elements.length > 1 ? undefined : tensorOf(value)
  }

  /** Rule first; where it does not know a size, or there is no rule, what the graph says. */
  private typesOf(node: Node, declared: Graph['types']): (ValueType | undefined)[] {
    const inferred = ((): ValueType[] => {
      try {
        return inferNodeTypes(node, this.out, () => this.fresh(), this.values)
      } catch {
        return []
      }
    })()
    return node.outputs.map((name, i) => {
      const [own, type] = [declared.get(name), inferred[i]]
      if (type === undefined || own === undefined || own.shape.length !== type.shape.length) return type ?? own
      return {
        dtype: type.dtype,
        shape: type.shape.map((d, axis) => (this.unknown.has(String(d)) ? (own.shape[axis] as Dim) : d)),
      }
    })
  }

  private branch(node: Node): void {
    const condition = this.values.get(node.inputs[0] as string)?.elements[0]
    if (typeof condition !== 'number')
      throw new InputError(
        `node "${node.name}" (If): its condition "${node.inputs[0]}" is known only when the graph runs, which is not ` +
          'supported; export the model with fixed choices (for a Squeeze, name its axes) or simplify it beforehand',
      )
    const attribute = node.attributes[condition === 0 ? 'else_branch' : 'then_branch']
    if (attribute === undefined || !('g' in attribute))
      throw new InputError(`node "${node.name}" (If) lacks the branch that its condition takes`)
    this.inline(node, attribute.g)
  }

  private inline(node: Node, { nodes, outputs, initializers, types }: Subgraph): void {
    // Both branches, and branches of different nodes, may use the same names.
    const renamed = new Map<string, string>()
    const unique = (name: string) => {
      let made = name
      while (this.names.has(made)) made = `${name}_${this.counter++}`
      this.names.add(made)
      renamed.set(name, made)
      return made
    }
    const rename = (name: string) => renamed.get(name) ?? name
    for (const [name, tensor] of initializers) this.initializer(unique(name), tensor)
    for (const inner of nodes) {
      const [inputs, made] = [inner.inputs.map(rename), inner.outputs.map((name) => (name === '' ? '' : unique(name)))]
      const declared = new Map(
        inner.outputs.flatMap((name, i) => {
          const type = types.get(name)
          return type === undefined ? [] : [[made[i] as string, type] as const]
        }),
      )
      this.visit({ ...inner, name: '', inputs, outputs: made }, declared)
    }
    node.outputs.forEach((name, i) => {
      const from = rename(outputs[i] as string)
      this.visit(
        { op: 'Identity', domain: '', name: '', inputs: [from], outputs: [name], attributes: {} },
        this.given.types,
      )
    })
  }

  private initializer(name: string, tensor: Tensor | ExternalTensor): void {
    this.out.initializers.set(name, tensor)
    this.out.types.set(name, { dtype: tensor.dtype, shape: tensor.shape })
    const known = isExternal(tensor) ? undefined : knownTensor(tensor)
    if (known !== undefined) this.values.set(name, known)
  }

  private fresh(): string {
    let name: string
    do name = `unknown_${this.counter++}`
    while (this.symbols.has(name))
    this.symbols.add(name)
    this.unknown.add(name)
    return name
  }
}
