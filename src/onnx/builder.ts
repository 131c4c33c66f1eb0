import { normalAxis } from './attributes.ts'
import { symbolsOf } from './dims.ts'
import { dtypeNumber } from './dtypes.ts'
import type { Attribute, Dim, DType, ExternalTensor, Graph, Node, Tensor, ValueType } from './graph.ts'
import { int64 } from './known.ts'
import { broadcast, sliceLength } from './shape-rules/rule.ts'
import { inferNodeTypes } from './shapes.ts'

export interface NodeOptions {
  attributes?: Record<string, Attribute>
  /** Operator set: '' (standard, default) or 'com.microsoft'. */
  domain?: string
  /** How many outputs, or their names; '' leaves an optional output out. */
  outputs?: number | string[]
  /** A readable name; made unique. Nodes and their outputs take it. */
  name?: string
  /** The outputs' types, where they do not follow from the inputs' (Reshape, Expand, Slice). */
  types?: ValueType[]
}

/**
 * Builds an ONNX graph node by node and knows the type of every value, symbolic dimensions included: two shapes that
 * name the same symbol are the same size at run time, and the builder remembers a value and an axis to read it from.
 */
export class GraphBuilder {
  private readonly graph: Graph
  private readonly names = new Set<string>()
  /** Symbol -> where its size can be read. */
  private readonly sizes = new Map<string, { value: string; axis: number }>()
  private readonly constants = new Map<string, string>()
  private readonly sizeValues = new Map<string, string>()
  /** Symbols in use, those among them that no value here has yet. */
  private readonly reserved = new Set<string>()
  private counter = 0
  private isAgain = false

  constructor(opset = 17) {
    this.graph = { opset, inputs: [], outputs: [], nodes: [], initializers: new Map(), types: new Map() }
  }

  /** A builder that appends to a copy of `graph`; its outputs stay. */
  static from(graph: Graph): GraphBuilder {
    const g = new GraphBuilder(graph.opset)
    if (graph.domains !== undefined) g.graph.domains = { ...graph.domains }
    g.graph.inputs = [...graph.inputs]
    g.graph.outputs = [...graph.outputs]
    g.graph.nodes = [...graph.nodes]
    for (const [name, tensor] of graph.initializers) g.graph.initializers.set(name, tensor)
    for (const node of graph.nodes) g.names.add(node.name)
    for (const [name, type] of graph.types) {
      g.names.add(name)
      g.setType(name, type)
    }
    return g
  }

  /**
   * A builder for a graph in the place of `graph`: it has that graph's inputs, initializers and outputs, and its nodes
   * are yet to come, by {@link take} as they are or as others. No new value takes a name, and no new size a symbol, of
   * `graph`.
   */
  static rewriting(graph: Graph): GraphBuilder {
    const given = [...graph.inputs, ...graph.initializers.keys()]
    const types = new Map(given.flatMap((name) => typed(graph, name)))
    const g = GraphBuilder.from({ ...graph, nodes: [], types })
    for (const node of graph.nodes) for (const name of [node.name, ...node.outputs]) g.names.add(name)
    for (const { shape } of graph.types.values()) g.reserve(shape)
    return g
  }

  /** The type of a value; an error for a name that is none. */
  type(value: string): ValueType {
    const type = this.graph.types.get(value)
    if (type === undefined) throw new Error(`The graph has no value "${value}"`)
    return type
  }

  shape(value: string): Dim[] {
    return this.type(value).shape
  }

  /** The constant tensor behind a value, where it is one held in memory. */
  constantOf(value: string): Tensor | undefined {
    const tensor = this.graph.initializers.get(value)
    return tensor !== undefined && 'data' in tensor ? tensor : undefined
  }

  input(name: string, dtype: DType, shape: Dim[]): string {
    this.claim(name)
    this.graph.inputs.push(name)
    this.setType(name, { dtype, shape })
    return name
  }

  initializer(name: string, tensor: Tensor | ExternalTensor): string {
    this.claim(name)
    this.graph.initializers.set(name, tensor)
    this.setType(name, { dtype: tensor.dtype, shape: [...tensor.shape] })
    return name
  }

  /**
   * A float initializer as float32. One stored as float16 or bfloat16, for which the CPU has few kernels, is cast; ONNX
   * Runtime does that once, when a session is made.
   */
  floatInitializer(name: string, tensor: Tensor | ExternalTensor): string {
    return this.cast(this.initializer(name, tensor), 'float32')
  }

  /** Marks a value as an output of the graph, under another name if one is given. */
  output(value: string, name?: string): string {
    const out =
      name === undefined || name === value ? value : (this.node('Identity', [value], { outputs: [name] })[0] as string)
    this.graph.outputs.push(out)
    return out
  }

  build(): Graph {
    return this.graph
  }

  /** A small constant, stored once however often it is asked for. */
  constant(values: number[], dtype: DType, shape: number[] = [values.length]): string {
    const key = `${dtype}[${shape.join()}]:${values.map((v) => (Object.is(v, -0) ? '-0' : v)).join()}`
    const known = this.constants.get(key)
    if (known !== undefined) return known
    const data =
      dtype === 'int64'
        ? BigInt64Array.from(values, int64)
        : dtype === 'int32'
          ? Int32Array.from(values)
          : dtype === 'bool'
            ? Uint8Array.from(values)
            : dtype === 'float64'
              ? Float64Array.from(values)
              : Float32Array.from(values)
    if (dtype !== 'int64' && dtype !== 'int32' && dtype !== 'bool' && dtype !== 'float64' && dtype !== 'float32')
      throw new TypeError(`constants of ${dtype} are made by casting`)
    const name = this.initializer(this.unique(`constant_${dtype}`), { dtype, shape, data })
    this.constants.set(key, name)
    return name
  }

  scalar(value: number, dtype: DType = 'float32'): string {
    return this.constant([value], dtype, [])
  }

  /** Adds a node and returns the names of its outputs. */
  node(op: string, inputs: string[], options: NodeOptions = {}): string[] {
    const name = this.unique(options.name ?? op)
    this.names.add(name)
    const asked = options.outputs ?? 1
    const outputs =
      typeof asked === 'number'
        ? Array.from({ length: asked }, (_, i) => this.unique(asked === 1 ? `${name}_out` : `${name}_out${i}`))
        : asked
    const attributes = options.attributes ?? {}
    const node: Node = { op, domain: options.domain ?? '', name, inputs, outputs, attributes }
    if (this.isAgain) node.again = true
    for (const input of inputs) if (input !== '') this.type(input)
    const types = options.types ?? inferred(node, this.graph, () => this.freshSymbol())
    this.graph.nodes.push(node)
    outputs.forEach((output, i) => {
      if (output === '') return
      this.claim(output)
      this.setType(output, types[i] as ValueType)
    })
    return outputs
  }

  /**
   * What `make` makes, its nodes marked as cheaper to compute again in a backward pass than to keep. They give the same whenever they
   * run, and have no outputs but those that another node reads.
   */
  again<T>(make: () => T): T {
    const before = this.isAgain
    this.isAgain = true
    try {
      return make()
    } finally {
      this.isAgain = before
    }
  }

  /** Adds a node as it is. Outputs of unknown type are values that only other nodes taken so can read. */
  take(node: Node, types: (ValueType | undefined)[]): void {
    this.graph.nodes.push(node)
    node.outputs.forEach((output, i) => {
      const type = types[i]
      if (output !== '' && type !== undefined) this.setType(output, type)
    })
  }

  /** Adds a node of one output and returns that output's name. */
  one(op: string, inputs: string[], options: NodeOptions = {}): string {
    return this.node(op, inputs, options)[0] as string
  }

  /**
   * The first `count` outputs of a node that is already there, which is asked for those of them that it leaves out
   * (LayerNormalization's statistics, say). Graphs that share the node keep it as it was.
   */
  withOutputs(node: Node, count: number): string[] {
    const [own] = node.outputs.filter((output) => output !== '')
    const at = this.graph.nodes.findIndex((n) => own !== undefined && n.outputs.includes(own))
    const current = this.graph.nodes[at]
    if (current === undefined) throw new Error(`The graph has no node "${node.name}"`)
    const outputs = Array.from({ length: Math.max(count, current.outputs.length) }, (_, i) =>
      current.outputs[i] ? current.outputs[i] : this.unique(`${own}_${i}`),
    )
    const asked = { ...current, outputs }
    const types = inferred(asked, this.graph, () => this.freshSymbol())
    outputs.forEach((output, i) => {
      if (!this.graph.types.has(output)) this.setType(output, types[i] as ValueType)
    })
    this.graph.nodes[at] = asked
    return outputs.slice(0, count)
  }

  add = (a: string, b: string, name?: string) => this.one('Add', [a, b], named(name))
  sub = (a: string, b: string, name?: string) => this.one('Sub', [a, b], named(name))
  mul = (a: string, b: string, name?: string) => this.one('Mul', [a, b], named(name))
  div = (a: string, b: string, name?: string) => this.one('Div', [a, b], named(name))
  pow = (a: string, b: string, name?: string) => this.one('Pow', [a, b], named(name))
  neg = (x: string) => this.one('Neg', [x])
  sqrt = (x: string) => this.one('Sqrt', [x])
  exp = (x: string) => this.one('Exp', [x])
  log = (x: string) => this.one('Log', [x])
  erf = (x: string) => this.one('Erf', [x])
  tanh = (x: string) => this.one('Tanh', [x])
  sigmoid = (x: string) => this.one('Sigmoid', [x])
  softplus = (x: string) => this.one('Softplus', [x])
  relu = (x: string) => this.one('Relu', [x])
  reciprocal = (x: string) => this.one('Reciprocal', [x])
  max = (a: string, b: string) => this.one('Max', [a, b])
  equal = (a: string, b: string) => this.one('Equal', [a, b])
  where = (condition: string, a: string, b: string) => this.one('Where', [condition, a, b])

  matmul = (a: string, b: string, name?: string) => this.one('MatMul', [a, b], named(name))

  /** com.microsoft FusedMatMul: alpha · op(a) · op(b), the last two axes transposed on demand, batch axes broadcast. */
  fusedMatmul(
    a: string,
    b: string,
    options: { transA?: boolean; transB?: boolean; alpha?: number; name?: string } = {},
  ): string {
    return this.one('FusedMatMul', [a, b], {
      ...named(options.name),
      domain: 'com.microsoft',
      attributes: {
        transA: { i: options.transA ? 1 : 0 },
        transB: { i: options.transB ? 1 : 0 },
        alpha: { f: options.alpha ?? 1 },
      },
    })
  }

  /** alpha · op(a) · op(b) + beta · c for matrices; `c` broadcasts. */
  gemm(
    a: string,
    b: string,
    c?: string | null,
    options: { transA?: boolean; transB?: boolean; alpha?: number; beta?: number; name?: string } = {},
  ): string {
    return this.one('Gemm', c === undefined || c === null ? [a, b] : [a, b, c], {
      ...named(options.name),
      attributes: {
        transA: { i: options.transA ? 1 : 0 },
        transB: { i: options.transB ? 1 : 0 },
        alpha: { f: options.alpha ?? 1 },
        beta: { f: options.beta ?? 1 },
      },
    })
  }

  transpose(x: string, perm: number[], name?: string): string {
    return this.one('Transpose', [x], { ...named(name), attributes: { perm: { ints: perm } } })
  }

  softmax = (x: string, axis = -1, name?: string) =>
    this.one('Softmax', [x], { ...named(name), attributes: { axis: { i: axis } } })

  cast = (x: string, to: DType) =>
    this.type(x).dtype === to ? x : this.one('Cast', [x], { attributes: { to: { i: dtypeNumber(to) } } })

  gather = (x: string, indices: string, axis = 0, name?: string) =>
    this.one('Gather', [x, indices], { ...named(name), attributes: { axis: { i: axis } } })

  concat = (xs: string[], axis: number) => this.one('Concat', xs, { attributes: { axis: { i: axis } } })

  unsqueeze = (x: string, axes: number[]) => this.one('Unsqueeze', [x, this.constant(axes, 'int64')])
  squeeze = (x: string, axes: number[]) => this.one('Squeeze', [x, this.constant(axes, 'int64')])

  reduceSum = (x: string, axes: number[], keep = false) =>
    this.one('ReduceSum', [x, this.constant(axes, 'int64')], { attributes: { keepdims: { i: keep ? 1 : 0 } } })

  /** ReduceMean takes its axes as an attribute before opset 18 and as an input from there on. */
  reduceMean = (x: string, axes: number[], keep = false) => this.reduceWithAxes('ReduceMean', x, axes, keep)
  reduceMax = (x: string, axes: number[], keep = false) => this.reduceWithAxes('ReduceMax', x, axes, keep)

  /** A reduction by its axes, an attribute before opset 18 and an input from there on (ReduceSum: always an input). */
  reduceWithAxes(op: string, x: string, axes: number[], keep: boolean): string {
    const keepdims: Attribute = { i: keep ? 1 : 0 }
    return this.graph.opset < 18
      ? this.one(op, [x], { attributes: { keepdims, axes: { ints: axes } } })
      : this.one(op, [x, this.constant(axes, 'int64')], { attributes: { keepdims } })
  }

  /**
   * Reshape to `dims`. A symbol's size is read at run time from a value that has it; at most one symbol may be new, and
   * names the size that is left.
   */
  reshape(x: string, dims: Dim[], name?: string): string {
    const unknown = dims.filter((d) => typeof d === 'string' && !this.sizes.has(d))
    if (unknown.length > 1) throw new Error(`reshape to [${dims.join(', ')}]: more than one unknown size`)
    const symbols = dims.filter((d) => typeof d === 'string')
    // a 0 means the input's size otherwise, and no -1 may stand beside one that does not
    const isEmpty = dims.includes(0)
    if (isEmpty && unknown.length > 0) throw new Error(`reshape to [${dims.join(', ')}]: an unknown size beside a 0`)
    const shape =
      symbols.length <= 1 && !isEmpty
        ? this.constant(
            dims.map((d) => (typeof d === 'string' ? -1 : d)),
            'int64',
          )
        : this.shapeValue(dims.map((d) => (d === unknown[0] ? -1 : d)))
    return this.one('Reshape', [x, shape], {
      ...named(name),
      ...(isEmpty ? { attributes: { allowzero: { i: 1 } } } : {}),
      types: [{ dtype: this.type(x).dtype, shape: dims }],
    })
  }

  /** Broadcasts `x` to `dims`, whose symbols are known. */
  expand(x: string, dims: Dim[]): string {
    if (sameShape(this.shape(x), dims)) return x
    return this.one('Expand', [x, this.shapeValue(dims)], {
      types: [{ dtype: this.type(x).dtype, shape: broadcast(this.shape(x), dims) }],
    })
  }

  /** An int64 vector of the sizes `dims`, symbols read at run time. */
  shapeValue(dims: Dim[]): string {
    if (dims.every((d) => typeof d === 'number')) return this.constant(dims, 'int64')
    const key = dims.join()
    const known = this.sizeValues.get(key)
    if (known !== undefined) return known
    const parts = dims.map((d) => (typeof d === 'number' ? this.constant([d], 'int64') : this.sizeOf(d)))
    const value = parts.length === 1 ? (parts[0] as string) : this.concat(parts, 0)
    this.sizeValues.set(key, value)
    return value
  }

  /** The size of a symbolic dimension as an int64 vector of one element. */
  sizeOf(symbol: string): string {
    const known = this.sizeValues.get(`size:${symbol}`)
    if (known !== undefined) return known
    const place = this.sizes.get(symbol)
    if (place === undefined) throw new Error(`The size "${symbol}" cannot be read from any value of the graph`)
    const { value, axis } = place
    const size = this.one('Shape', [value], {
      attributes: { start: { i: axis }, end: { i: axis + 1 } },
      types: [{ dtype: 'int64', shape: [1] }],
    })
    this.sizeValues.set(`size:${symbol}`, size)
    return size
  }

  /** Slice `[start, end)` along `axis`; negative bounds count from the end, and `end` may lie past it. */
  slice(x: string, axis: number, start: number, end: number): string {
    const { dtype, shape } = this.type(x)
    const at = normalAxis(axis, shape.length)
    const size = shape[at] as Dim
    const length = typeof size === 'number' ? sliceLength(size, start, end) : this.freshSymbol()
    const vector = (v: number) => this.constant([v], 'int64')
    return this.one('Slice', [x, vector(start), vector(end), vector(at)], {
      types: [{ dtype, shape: shape.map((d, i) => (i === at ? length : d)) }],
    })
  }

  /** LayerNormalization over the last axis (opset 17); {@link withOutputs} adds its statistics for a backward pass. */
  layerNorm(x: string, weight: string, bias: string, epsilon: number, name?: string): string {
    return this.one('LayerNormalization', [x, weight, bias], {
      ...named(name),
      attributes: { axis: { i: -1 }, epsilon: { f: epsilon } },
    })
  }

  /** ½ · x · (1 + erf(x/√2)) from standard operators, in the order that ONNX Runtime fuses into one Gelu kernel. */
  gelu(x: string): string {
    const e = this.erf(this.div(x, this.scalar(Math.SQRT2)))
    return this.mul(this.mul(x, this.add(e, this.scalar(1))), this.scalar(0.5))
  }

  /** Sums `x` over the axes along which `shape` was broadcast to the shape of `x`. */
  sumTo(x: string, shape: Dim[]): string {
    const from = this.shape(x)
    if (sameShape(from, shape)) return x
    const lead = from.length - shape.length
    const extra = Array.from({ length: lead }, (_, i) => i)
    const stretched = shape.flatMap((d, i) => (d === 1 && from[i + lead] !== 1 ? [i + lead] : []))
    shape.forEach((d, i) => {
      const other = from[i + lead]
      if (d !== other && d !== 1)
        throw new Error(`cannot tell whether "${d}" was broadcast to "${other}" in [${from.join(', ')}]`)
    })
    const summed = stretched.length > 0 ? this.reduceSum(x, stretched, true) : x
    return extra.length > 0 ? this.reduceSum(summed, extra, false) : summed
  }

  /** A symbol for a size that nothing known equals. */
  freshSymbol(): string {
    let symbol: string
    do symbol = `size_${this.counter++}`
    while (this.reserved.has(symbol))
    return symbol
  }

  private setType(name: string, type: ValueType): void {
    this.graph.types.set(name, type)
    this.reserve(type.shape)
    type.shape.forEach((d, axis) => {
      if (typeof d === 'string' && !this.sizes.has(d)) this.sizes.set(d, { value: name, axis })
    })
  }

  private reserve(shape: Dim[]): void {
    for (const symbol of shape.flatMap(symbolsOf)) this.reserved.add(symbol)
  }

  private claim(name: string): void {
    if (this.graph.types.has(name)) throw new Error(`The graph already has a value "${name}"`)
    this.names.add(name)
  }

  private unique(base: string): string {
    if (!this.names.has(base)) {
      this.names.add(base)
      return base
    }
    let name: string
    do name = `${base}_${this.counter++}`
    while (this.names.has(name))
    this.names.add(name)
    return name
  }
}

export function sameShape(a: Dim[], b: Dim[]): boolean {
  return a.length === b.length && a.every((d, i) => d === b[i])
}

function typed(graph: Graph, name: string): [string, ValueType][] {
  const type = graph.types.get(name)
  return type === undefined ? [] : [[name, type]]
}

function named(name: string | undefined): NodeOptions {
  return name === undefined ? {} : { name }
}

function inferred(node: Node, graph: Graph, fresh: () => string): ValueType[] {
  try {
    return inferNodeTypes(node, graph, fresh)
  } catch (e) {
    throw new Error(`node "${node.name}" (${node.op}): ${(e as Error).message}`, { cause: e })
  }
}
