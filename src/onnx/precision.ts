import { InputError } from '../support/errors.ts'
import { dtypeNumber } from './dtypes.ts'
import type { DType, Graph, Node, Tensor } from './graph.ts'
import type { Device } from './providers.ts'

/** What the matrix products of a graph are computed in. */
export const PRECISIONS = ['fp32', 'bf16', 'fp16'] as const
export type Precision = (typeof PRECISIONS)[number]

type HalfType = 'bfloat16' | 'float16'

const halfTypes: Record<Exclude<Precision, 'fp32'>, HalfType> = { bf16: 'bfloat16', fp16: 'float16' }

const products = new Set(['MatMul', 'FusedMatMul', 'Gemm'])

/** Operators that move numbers and leave them as they are. */
const movers = new Set([
  'Transpose',
  'Reshape',
  'Squeeze',
  'Unsqueeze',
  'Identity',
  'Flatten',
  'Concat',
  'Slice',
  'Split',
  'Gather',
])

/** Activations of one kernel, which ONNX Runtime's CUDA provider has in the type. */
const activations: Record<HalfType, Set<string>> = {
  float16: new Set(['Gelu', 'FastGelu', 'QuickGelu', 'Relu']),
  bfloat16: new Set(['QuickGelu']),
}

/** Operators through which a product still counts as one of the graph's input. */
const views = new Set(['Transpose', 'Reshape', 'Squeeze', 'Unsqueeze', 'Identity', 'Cast'])

const LARGEST_FLOAT16 = 65504

/**
 * @throws InputError for a precision that the device cannot compute in, naming those that it can
 */
export function checkPrecision(precision: Precision, device: Device): void {
  if (precision === 'fp32') return
  if (device === 'cpu')
    throw new InputError(
      `The CPU computes in float32 only: ONNX Runtime has no bfloat16 matrix products there and turns float16 ones into float32. ` +
        `Leave --precision ${precision} out, or choose --device cuda${precision === 'fp16' ? ' or webgpu' : ''}.`,
    )
  if (device === 'webgpu' && precision === 'bf16')
    throw new InputError('WebGPU has no bfloat16; use --precision fp16 or fp32, or --device cuda.')
}

export interface HalfOptions {
  /** The graph's inputs that are learned. Products of other inputs (pooling, pairs, queries) stay in float32. */
  trainable: Iterable<string>
  /**
   * Compute in float32 and round to the type where a half-precision kernel would: shows what the precision does to results on
   * a device without such kernels.
   */
  emulate?: boolean
}

/**
 * The same graph with its matrix products in half precision, forward and backward alike. Between products, what only moves
 * numbers, adds a constant (a bias) or is an activation with a kernel of its own stays in half precision too. Everything else is
 * float32: normalisations, softmax, reductions, sums of activations (so that residuals neither overflow nor lose small updates),
 * pooling, scores and loss. Inputs, weights and outputs keep their types: the graph casts its learned inputs, and gradients come
 * out in float32. The split is that of mixed-precision training (Micikevicius et al. 2018, arXiv 1710.03740).
 *
 * In float16 a gradient can be too small or too large for the type: multiply the seed of the backward pass by a scale.
 *
 * @param graph a graph in float32 whose types are known
 */
export function inHalfPrecision(graph: Graph, precision: Exclude<Precision, 'fp32'>, options: HalfOptions): Graph {
  const rewrite = new HalfRewrite(graph, halfTypes[precision], options)
  for (const node of graph.nodes) rewrite.add(node)
  return rewrite.finish()
}

/** The graph while it is rewritten: each float32 value of the old one has a float32 form, a half form, or one cast from the other. */
class HalfRewrite {
  private readonly graph: Graph
  private readonly type: HalfType
  private readonly emulate: boolean
  private readonly nodes: Node[] = []
  private readonly types: Graph['types']
  private readonly initializers: Graph['initializers']
  /** Values that exist in float32 under their own names. */
  private readonly full: Set<string>
  /** Value -> its form in half precision. */
  private readonly half = new Map<string, string>()
  /** Values that a product or what follows it computes in half precision. */
  private readonly computedInHalf = new Set<string>()
  /** Values that do not depend on any input. */
  private readonly constant: Set<string>
  /** Inputs that are not learned, whole numbers (positions) among them, and views of them. */
  private readonly data: Set<string>

  constructor(graph: Graph, type: HalfType, { trainable, emulate = false }: HalfOptions) {
    this.graph = graph
    this.type = type
    this.emulate = emulate
    this.types = new Map(graph.types)
    this.initializers = new Map(graph.initializers)
    this.full = new Set([...graph.inputs, ...graph.initializers.keys()])
    this.constant = new Set(graph.initializers.keys())
    const learned = new Set(trainable)
    this.data = new Set(graph.inputs.filter((name) => !learned.has(name)))
  }

  add(node: Node): void {
    const [first = ''] = node.inputs
    if (views.has(node.op) && this.data.has(first)) for (const name of node.outputs) this.data.add(name)
    if (node.inputs.every((name) => name === '' || this.constant.has(name)))
      for (const name of node.outputs) this.constant.add(name)

    if (this.isHalfProduct(node)) this.addProduct(node)
    else if (this.follows(node)) this.addInHalf(node)
    else this.addInFull(node)
  }

  finish(): Graph {
    for (const name of this.graph.outputs) this.asFull(name)
    for (const name of this.computedInHalf) if (!this.full.has(name)) this.types.delete(name)
    return { ...this.graph, nodes: this.nodes, types: this.types, initializers: this.initializers }
  }

  private isFloat(name: string): boolean {
    return this.graph.types.get(name)?.dtype === 'float32'
  }

  private isHalfProduct({ op, inputs, outputs }: Node): boolean {
    return (
      products.has(op) &&
      [...inputs, ...outputs].every((name) => name === '' || this.isFloat(name)) &&
      inputs.slice(0, 2).every((name) => !this.data.has(name)) &&
      !outputs.every((name) => this.constant.has(name))
    )
  }

  /** Whether a node does no more to half-precision inputs than to keep, or shortly touch, their numbers. */
  private follows({ op, inputs, outputs }: Node): boolean {
    const floats = inputs.filter((name) => name !== '' && this.isFloat(name))
    const inHalf = floats.filter((name) => this.computedInHalf.has(name))
    if (inHalf.length === 0 || !outputs.every((name) => name === '' || this.isFloat(name))) return false
    if (movers.has(op) || activations[this.type].has(op)) return inHalf.length === floats.length
    return op === 'Add' && floats.every((name) => this.computedInHalf.has(name) !== this.isSmallConstant(name))
  }

  private isSmallConstant(name: string): boolean {
    if (!this.constant.has(name)) return false
    const tensor = this.graph.initializers.get(name)
    if (this.type === 'bfloat16' || tensor === undefined || !('data' in tensor)) return true
    return (tensor as Tensor & { data: Float32Array }).data.every((x) => Math.abs(x) <= LARGEST_FLOAT16)
  }

  private addProduct(node: Node): void {
    const c = node.op === 'Gemm' ? (node.inputs[2] ?? '') : ''
    if (c === '' || this.constant.has(c) || this.computedInHalf.has(c)) {
      this.addInHalf(node)
      return
    }
    // A sum into C that is no product's own, a residual say, stays in float32.
    const [a = '', b = ''] = node.inputs
    const [y = ''] = node.outputs
    const product = this.fresh(`${y}_product`)
    this.types.set(product, this.graph.types.get(y)!)
    const { beta = { f: 1 }, ...attributes } = node.attributes
    this.addInHalf({ ...node, inputs: [a, b], outputs: [product], attributes })
    let addend = this.asFull(c)
    if ('f' in beta && beta.f !== 1) addend = this.scaled(addend, beta.f)
    this.push('Add', [this.asFull(product), addend], [y])
    this.full.add(y)
  }

  private scaled(value: string, factor: number): string {
    const constant = this.fresh('beta')
    this.initializers.set(constant, { dtype: 'float32', shape: [], data: Float32Array.of(factor) })
    this.types.set(constant, { dtype: 'float32', shape: [] })
    const out = this.fresh(`${value}_scaled`)
    this.types.set(out, this.types.get(value)!)
    this.push('Mul', [value, constant], [out])
    return out
  }

  private addInHalf(node: Node): void {
    const inputs = node.inputs.map((name) => (this.isFloat(name) ? this.asHalf(name) : name))
    const exact = movers.has(node.op)
    const outputs = node.outputs.map((name) => {
      if (name === '') return ''
      const out = this.formOf(name)
      if (!this.emulate || exact) {
        this.half.set(name, out)
        return out
      }
      const raw = this.fresh(`${name}_raw`)
      this.types.set(raw, this.types.get(name)!)
      return raw
    })
    this.nodes.push({ ...node, inputs, outputs })
    node.outputs.forEach((name, i) => {
      if (name === '') return
      if (!this.half.has(name)) this.half.set(name, this.rounded(outputs[i] as string, this.formOf(name)))
      this.computedInHalf.add(name)
    })
  }

  private addInFull(node: Node): void {
    this.nodes.push({ ...node, inputs: node.inputs.map((name) => (this.half.has(name) ? this.asFull(name) : name)) })
    for (const name of node.outputs) this.full.add(name)
  }

  private asHalf(name: string): string {
    const known = this.half.get(name)
    if (known !== undefined) return known
    const form = this.formOf(name)
    this.half.set(name, this.emulate ? this.rounded(name, form) : this.cast(name, form, this.type))
    return form
  }

  private asFull(name: string): string {
    const form = this.half.get(name)
    if (this.full.has(name) || form === undefined) return name
    this.full.add(name)
    if (this.emulate) this.push('Identity', [form], [name])
    else this.cast(form, name, 'float32')
    return name
  }

  /** A new name for a value's half form. */
  private formOf(name: string): string {
    const form = this.fresh(`${name}_half`)
    const { shape } = this.types.get(name)!
    this.types.set(form, { dtype: this.emulate ? 'float32' : this.type, shape })
    return form
  }

  /** float32 -> half -> float32. */
  private rounded(from: string, to: string): string {
    const between = this.fresh(`${to}_bits`)
    this.types.set(between, { dtype: this.type, shape: this.types.get(from)!.shape })
    this.cast(from, between, this.type)
    return this.cast(between, to, 'float32')
  }

  private cast(from: string, to: string, dtype: DType): string {
    this.push('Cast', [from], [to], { to: { i: dtypeNumber(dtype) } })
    return to
  }

  private push(op: string, inputs: string[], outputs: string[], attributes: Node['attributes'] = {}): void {
    this.nodes.push({ op, domain: '', name: `${outputs[0]}_${op}`, inputs, outputs, attributes })
  }

  private fresh(base: string): string {
    let name = base
    for (let i = 1; this.types.has(name); i++) name = `${base}_${i}`
    return name
  }
}
