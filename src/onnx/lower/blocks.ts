import { intAttribute, normalAxis } from '../attributes.ts'
import { sameShape } from '../builder.ts'
import type { Dim, ExternalTensor, Graph, Node, Tensor } from '../graph.ts'
import { elementCount } from '../tensor.ts'
import {
  fixedSize,
  type Lowering,
  type LoweringContext,
  refuse,
  refuseAttributes,
  refuseInputs,
  UNFUSED,
} from './lowering.ts'

/**
 * The `bits`-wide numbers in bytes [..., n], lowest bits first unless told otherwise, as uint8 [..., n·8/bits]: a byte
 * shifted up and down again keeps one of them.
 */
function unpack(ctx: LoweringContext, packed: string, bits: number, highestFirst = false): string {
  if (bits === 8) return packed
  const { g } = ctx
  const shape = g.shape(packed)
  const type = [g.type(packed)]
  const by = (x: string, amount: number, direction: string) =>
    amount === 0
      ? x
      : g.one('BitShift', [x, uint8(ctx, amount)], { attributes: { direction: { s: direction } }, types: type })
  const parts = Array.from({ length: 8 / bits }, (_, i) =>
    g.unsqueeze(by(by(packed, 8 - bits * (i + 1), 'LEFT'), 8 - bits, 'RIGHT'), [shape.length]),
  )
  if (highestFirst) parts.reverse()
  const bytes = fixedSize(ctx.node, 'the number of packed bytes', shape.at(-1))
  return g.reshape(g.concat(parts, shape.length), [...shape.slice(0, -1), bytes * parts.length])
}

const uint8 = (ctx: LoweringContext, value: number): string =>
  ctx.shared(`uint8:${value}`, () => ctx.g.cast(ctx.g.scalar(value, 'int32'), 'uint8'))

/** K, N, bits and block size of a MatMulNBits node, and its blocks in a row of the weight. */
function blocksOf({ attributes }: Node) {
  const [K, N, size] = ['K', 'N', 'block_size'].map((name) => intAttribute(attributes, name, 0)) as [
    number,
    number,
    number,
  ]
  return { K, N, size, bits: intAttribute(attributes, 'bits', 4), count: Math.ceil(K / size) }
}

/** DequantizeLinear knows blocks from operator set 21 on. Before, blocks are made rows, each of which has its scale. */
const BLOCKS_SINCE = 21

/**
 * Declares the 4-bit weights of MatMulNBits nodes, and their zero points, as uint4 in place of bytes: the same bytes, which
 * DequantizeLinear can read as they are. Weights that other nodes read too stay bytes, as do zero points whose rows end
 * within a byte. Zero points that are left out, 8 then, are put in.
 */
export function fourBitWeights(graph: Graph): Graph {
  const readers = new Map<string, number>()
  for (const node of graph.nodes) for (const input of node.inputs) readers.set(input, (readers.get(input) ?? 0) + 1)
  const initializers = new Map(graph.initializers)
  const types = new Map(graph.types)
  const declare = (name: string, tensor: Tensor | ExternalTensor, shape: number[]) => {
    initializers.set(name, { ...tensor, dtype: 'uint4', shape })
    types.set(name, { dtype: 'uint4', shape })
  }
  const nodes = graph.nodes.map((node) => {
    if (node.op !== 'MatMulNBits') return node
    const [, name = '', , zeroName = ''] = node.inputs
    const { N, size, bits, count } = blocksOf(node)
    const [weight, zeroPoints] = [initializers.get(name), initializers.get(zeroName)]
    if (bits !== 4 || weight?.dtype !== 'uint8' || elementCount(weight.shape) * 2 !== N * count * size) return node
    if (readers.get(name) !== 1) return node
    const inRows = graph.opset < BLOCKS_SINCE
    declare(name, weight, inRows ? [N * count, size] : [N, count * size])
    const perBlock = inRows ? [N * count] : [N, count]
    if (zeroName !== '') {
      if (zeroPoints?.dtype === 'uint8' && count % 2 === 0 && readers.get(zeroName) === 1)
        declare(zeroName, zeroPoints, perBlock)
      return node
    }
    let added = `${name}_zero_points`
    while (types.has(added) || readers.has(added)) added += '_'
    declare(added, { dtype: 'uint4', shape: [], data: new Uint8Array(Math.ceil((N * count) / 2)).fill(0x88) }, perBlock)
    return { ...node, inputs: [...node.inputs.slice(0, 3), added, ...node.inputs.slice(4)] }
  })
  return { ...graph, nodes, initializers, types }
}

/**
 * com.microsoft MatMulNBits: x·Wᵀ + b with W [N, K] in blocks of `block_size` numbers of 2, 4 or 8 bits along K, each with
 * its scale and zero point: w = (q − zero point)·scale.
 */
export const matMulNBits: Lowering = (ctx) => {
  const { g, node, x } = ctx
  refuseAttributes(node, ['weight_prepacked'])
  refuseInputs(ctx, { 4: 'g_idx' })
  const { bits } = blocksOf(node)
  if (![2, 4, 8].includes(bits)) refuse(node, `weights of ${bits} bits are not supported`, 'Quantise to 4 or 8 bits.')
  const weight = ctx.shared(`blocks:${node.inputs.slice(1, 4).join()}`, () => blockWeight(ctx))
  const y = g.fusedMatmul(x(0), weight, { transB: true })
  return [x(5) === '' ? y : g.add(y, x(5))]
}

/** The weight of a MatMulNBits node as float32 [N, K]. */
function blockWeight(ctx: LoweringContext): string {
  const { g, node, x } = ctx
  const { K, N, size, bits, count } = blocksOf(node)
  const inRows = g.build().opset < BLOCKS_SINCE
  const perBlock = inRows ? [N * count] : [N, count]
  const isUint4 = (value: string) => g.type(value).dtype === 'uint4'
  const codes = isUint4(x(1))
    ? x(1)
    : g.reshape(unpack(ctx, x(1), bits), inRows ? [N * count, size] : [N, count * size])
  const scale = g.reshape(x(2), perBlock)
  const bytes = () => {
    const perRow = Math.ceil((count * bits) / 8)
    const unpacked = unpack(ctx, g.reshape(x(3), [N, perRow]), bits)
    return (perRow * 8) / bits === count ? unpacked : g.slice(unpacked, 1, 0, count)
  }
  /** The zero points in the codes' own type, or else as floats to be subtracted afterwards. */
  let own = ''
  let offset: string | undefined
  if (x(3) === '') own = g.expand(uint8(ctx, 2 ** (bits - 1)), perBlock)
  else if (isUint4(x(3))) own = x(3)
  else if (g.type(x(3)).dtype === 'uint8' && !isUint4(codes)) own = g.reshape(bytes(), perBlock)
  else offset = g.type(x(3)).dtype === 'uint8' ? g.cast(bytes(), 'float32') : x(3)
  const scaled = g.one('DequantizeLinear', own === '' ? [codes, scale] : [codes, scale, own], {
    attributes: inRows ? { axis: { i: 0 } } : { axis: { i: 1 }, block_size: { i: size } },
    // The standard operator reads uint4 from operator set 21 on, ONNX Runtime's own always.
    ...(inRows && isUint4(codes) ? { domain: 'com.microsoft' } : {}),
    name: `${x(1)}_dequantized`,
  })
  if (offset === undefined) return columns(ctx, scaled, [N, count * size], K)
  // (q − z)·s = q·s − z·s, block by block
  const shift = g.mul(g.reshape(offset, [N, count, 1]), g.reshape(x(2), [N, count, 1]))
  return columns(ctx, g.sub(g.reshape(scaled, [N, count, size]), shift), [N, count * size], K)
}

/** The first K columns of a value of as many numbers as `shape`, in that shape. */
function columns({ g }: LoweringContext, value: string, shape: [number, number], K: number): string {
  const matrix = sameShape(g.shape(value), shape) ? value : g.reshape(value, shape)
  return shape[1] === K ? matrix : g.slice(matrix, 1, 0, K)
}

/** What the 4-bit codes of bitsandbytes stand for, up to the block's scale: FP4, and NF4 of Dettmers et al. 2023, app. E. */
const FP4_HALF = [0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4]
const FP4 = [...FP4_HALF, ...FP4_HALF.map((v) => -v)]
const NF4 = [
  -1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
  -0.09105003625154495, 0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
  0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1,
]

/**
 * com.microsoft MatMulBnb4: x·Wᵀ with W [N, K], its numbers in a row, as 4-bit codes of a table, the upper half of a byte
 * first, times a scale for each block of `block_size`.
 */
export const matMulBnb4: Lowering = (ctx) => {
  const { g, node, x } = ctx
  const { K, N, size } = blocksOf(node)
  if (intAttribute(node.attributes, 'transB', 1) !== 1)
    refuse(node, 'the attribute transB = 0 is not supported', UNFUSED)
  if ((N * K) % size !== 0) refuse(node, `${N} x ${K} numbers are no blocks of ${size}`, UNFUSED)
  const weight = ctx.shared(`bnb4:${x(1)}`, () => {
    const codebook = g.constant(intAttribute(node.attributes, 'quant_type', 0) === 1 ? NF4 : FP4, 'float32')
    const codes = g.cast(unpack(ctx, x(1), 4, true), 'int32')
    const blocks = g.reshape(g.gather(codebook, codes), [(N * K) / size, size])
    return g.reshape(g.mul(blocks, g.unsqueeze(x(2), [1])), [N, K], `${x(1)}_dequantized`)
  })
  return [g.fusedMatmul(x(0), weight, { transB: true })]
}

/**
 * com.microsoft GatherBlockQuantized: rows of a table in blocks of `block_size` small integers along its last axis, made
 * float after they are picked: (q − zero point)·scale. The table takes no gradient.
 */
export const gatherBlockQuantized: Lowering = (ctx) => {
  const { g, node, x } = ctx
  const [table, indices, scales, zeroPoints] = [x(0), x(1), x(2), x(3)]
  const { dtype, shape } = g.type(table)
  const axis = (name: string, otherwise: number) =>
    normalAxis(intAttribute(node.attributes, name, otherwise), shape.length)
  if (shape.length !== 2 || axis('gather_axis', 0) !== 0 || axis('quantize_axis', 1) !== 1)
    refuse(node, 'only the rows of a matrix can be gathered, in blocks along its columns', UNFUSED)
  const packed = dtype === 'uint8'
  const bits = packed ? intAttribute(node.attributes, 'bits', 4) : 8
  const size = intAttribute(node.attributes, 'block_size', 128)
  const blocks = fixedSize(node, 'the number of blocks', g.shape(scales)[1])
  const width = (fixedSize(node, 'the number of columns', shape[1]) * 8) / bits
  if (blocks * size !== width)
    refuse(node, `${width} columns are no ${blocks} blocks of ${size}`, 'Quantise with a block size that divides them.')
  const bytes = (value: string) => (packed ? value : ctx.shared(`bytes:${value}`, () => g.cast(value, byteOf(dtype))))
  const at = g.shape(indices)
  const pick = (value: string, dims: Dim[]) => g.reshape(value, [...at, ...dims])
  const codes = g.cast(pick(unpack(ctx, g.gather(bytes(table), indices), bits), [blocks, size]), 'float32')
  const zeroPoint = () => {
    if (zeroPoints === '') return g.scalar(packed ? 2 ** (bits - 1) : 0)
    const picked = unpack(ctx, g.gather(bytes(zeroPoints), indices), bits)
    const known = g.shape(picked).at(-1) === blocks ? picked : g.slice(picked, -1, 0, blocks)
    return g.cast(pick(known, [blocks, 1]), 'float32')
  }
  const rows = g.mul(g.sub(codes, zeroPoint()), pick(g.gather(scales, indices), [blocks, 1]))
  return [pick(rows, [width])]
}

const byteOf = (dtype: string) => (dtype === 'int4' ? 'int8' : 'uint8')
