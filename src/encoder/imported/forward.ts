import { type Dim, type Graph, GraphBuilder, intAttribute, type Node, sameShape, simplify } from '../../onnx/index.ts'
import { InputError } from '../../support/errors.ts'
import type { EncoderProfile } from '../folder/profile.ts'
import { type LoraOptions, type LoraTarget, loraA, loraB } from '../lora/lora.ts'
import { maskBias } from '../mask.ts'
import { pooledEmbeddings } from '../rows/pooling.ts'
import type { ImportedModule, WeightUse } from './modules.ts'
import { type ImportedModel, LENGTH, ROWS } from './read.ts'
import type { RowRewrite } from './rows.ts'

/** Linear maps with the same product, each with its low-rank update. */
type Updates = { use: WeightUse; maps: { module: ImportedModule; target: LoraTarget }[] }

/**
 * An imported encoder as a graph over rows: inputs and output as {@link EncoderGraph} describes them, with
 * y + scale · (alpha / rank) x Aᵀ Bᵀ in place of every product y of a linear map that LoRA adapts, or the same with
 * W + (alpha / rank) Aᵀ Bᵀ in place of the weight where that is `merged` and a weight of plain numbers has one map and one product.
 *
 * @param rewrite what packing the rows takes; without it every text has a row of its own
 */
export function importedForward(
  model: ImportedModel,
  profile: EncoderProfile,
  lora: LoraTarget[],
  rewrite: RowRewrite | undefined,
  update: LoraOptions['update'] = 'merged',
): Graph {
  const { graph: from, output } = model
  const g = GraphBuilder.rewriting({ ...from, inputs: [], outputs: [] })
  const ids = g.input('input_ids', 'int32', [ROWS, LENGTH])
  const positions = g.input('position_ids', 'int32', [ROWS, LENGTH])
  const segments = g.input('segments', 'int32', [ROWS, LENGTH])
  const pool = g.input('pool', 'float32', ['nodes', 'tokens'])

  /** Values of the file's graph that stand for others here. */
  const renamed = new Map<string, string>()
  for (const name of from.inputs) {
    const dtype = from.types.get(name)?.dtype ?? 'int64'
    if (name === 'input_ids') renamed.set(name, g.cast(ids, dtype))
    else if (name === 'position_ids') renamed.set(name, g.cast(positions, dtype))
    else if (name === 'token_type_ids') renamed.set(name, g.expand(g.scalar(0, dtype), [ROWS, LENGTH]))
    else if (rewrite !== undefined) renamed.set(name, g.expand(g.scalar(1, dtype), [ROWS, LENGTH]))
    else renamed.set(name, g.cast(g.one('Greater', [segments, g.scalar(0, 'int32')]), dtype))
  }

  // may[row, 0, i, j]: whether i and j belong to the same text
  const may = (() => {
    let made: string | undefined
    return () => {
      made ??= g.unsqueeze(g.equal(g.unsqueeze(segments, [2]), g.unsqueeze(segments, [1])), [1])
      return made
    }
  })()
  const masked = (mask: string, kind: 'added' | 'visible' | 'hidden'): string => {
    if (kind === 'visible') return g.one('And', [mask, may()])
    if (kind === 'hidden') return g.one('Or', [mask, g.one('Not', [may()])])
    return maskBias(g, may(), mask)
  }

  const updates = updatesByProduct(model.modules, lora)
  const matrices = new Map(
    lora.map((target) => [
      target.module,
      {
        a: g.input(loraA(target.module), 'float32', [target.rank, target.inputs]),
        b: g.input(loraB(target.module), 'float32', [target.outputs, target.rank]),
      },
    ]),
  )
  const flat = new Map<string, string>()
  /** The vectors of x as a matrix [vectors, width]; [tokens, width] where they are those of tokens. */
  const matrixOf = (x: string): string => {
    const shape = g.shape(x)
    if (shape.length === 2) return x
    const ofTokens = shape.length === 3 && shape[0] === ROWS && shape[1] === LENGTH
    const count = ofTokens ? 'tokens' : (sizeOf(shape.slice(0, -1)) ?? g.freshSymbol())
    const known = flat.get(x) ?? g.reshape(x, [count, shape.at(-1) as number])
    flat.set(x, known)
    return known
  }
  const adapted = (y: string, { use, maps }: Updates): string => {
    const x = matrixOf(renamed.get(use.x) ?? use.x)
    const add = (part: string, { target }: Updates['maps'][number]): string => {
      const { a, b } = matrices.get(target.module) as { a: string; b: string }
      const down = g.gemm(x, a, null, { transB: true, name: `${target.module}.lora_A` })
      const alpha = (use.scale * target.alpha) / target.rank
      return g.gemm(down, b, part, { transB: true, alpha, name: `${target.module}.lora_B` })
    }
    const sum = columnwise(g, matrixOf(y), maps, add)
    return sameShape(g.shape(sum), g.shape(y)) ? sum : g.reshape(sum, g.shape(y))
  }

  /** A product with the update added to its weight. */
  const withUpdate = (product: Node, { maps }: Updates): Node => {
    const { target } = maps[0] as Updates['maps'][number]
    const { a, b } = matrices.get(target.module) as { a: string; b: string }
    const [x, weight, ...rest] = product.inputs as [string, string]
    const options = { alpha: target.alpha / target.rank, name: `${target.module}.lora` }
    const merged =
      intAttribute(product.attributes, 'transB', 0) === 1
        ? g.gemm(b, a, weight, options)
        : g.gemm(a, b, weight, { ...options, transA: true, transB: true })
    return { ...product, inputs: [x, merged, ...rest] }
  }

  for (const node of from.nodes) {
    const own = updates.get(node.outputs[0] as string)
    const merge = update === 'merged' && own !== undefined && isMergeable(own)
    const outputs = copy(g, from, merge ? withUpdate(node, own) : node, renamed, profile)
    for (const name of outputs) {
      const beside = merge ? undefined : updates.get(name)
      if (beside !== undefined) renamed.set(name, adapted(name, beside))
      if (rewrite === undefined) continue
      const table = rewrite.positions.get(name)
      if (table !== undefined) renamed.set(name, byPosition(g, name, table, positions))
      const kind = rewrite.masks.get(name)
      if (kind !== undefined) renamed.set(name, masked(name, kind))
      const exclusive = rewrite.counts.get(name)
      if (exclusive !== undefined) {
        const counted = exclusive ? positions : g.add(positions, g.scalar(1, 'int32'))
        renamed.set(name, g.cast(counted, g.type(name).dtype))
      }
    }
  }
  const last = renamed.get(output.name) ?? output.name
  g.output(
    pooledEmbeddings(g, profile, output.pooled ? last : g.gemm(pool, matrixOf(last), null, { name: 'pooling' })),
    'embeddings',
  )
  return simplify(g.build())
}

/** How many elements a shape of numbers has. */
const sizeOf = (shape: Dim[]): number | undefined =>
  shape.every((d) => typeof d === 'number') ? shape.reduce((a, b) => a * b, 1) : undefined

/** The updates of LoRA targets by the product that they are added to. */
function updatesByProduct(modules: readonly ImportedModule[], lora: readonly LoraTarget[]): Map<string, Updates> {
  const targets = new Map(lora.map((target) => [target.module, target]))
  const updates = new Map<string, Updates>()
  for (const module of modules) {
    const target = targets.get(module.module)
    if (target === undefined) continue
    for (const use of module.uses) {
      const before = updates.get(use.y)
      if (before === undefined) updates.set(use.y, { use, maps: [{ module, target }] })
      else before.maps.push({ module, target })
    }
  }
  return updates
}

/** Whether the weight of a product is a matrix of plain float32 numbers that no other map or product has a part in. */
function isMergeable({ maps }: Updates): boolean {
  const [{ module }] = maps as [Updates['maps'][number]]
  return (
    maps.length === 1 &&
    module.plain &&
    module.storage === 'fp32' &&
    module.uses.length === 1 &&
    module.outputs === module.width
  )
}

/** `change` applied to the columns of each map, the others left as they are. */
function columnwise<T extends { module: ImportedModule }>(
  g: GraphBuilder,
  y: string,
  maps: T[],
  change: (part: string, map: T) => string,
): string {
  const first = maps[0] as T
  const { width } = first.module
  if (maps.length === 1 && first.module.outputs === width) return change(y, first)
  const byStart = new Map(maps.map((map) => [map.module.columns[0], map]))
  const bounds = [...new Set([0, ...maps.flatMap(({ module }) => module.columns), width])].sort((a, b) => a - b)
  const sizes = bounds.slice(1).map((to, i) => to - (bounds[i] as number))
  const parts = g.node('Split', [y, g.constant(sizes, 'int64')], {
    attributes: { axis: { i: 1 } },
    outputs: sizes.length,
  })
  return g.concat(
    parts.map((part, i) => {
      const map = byStart.get(bounds[i] as number)
      return map === undefined ? part : change(part, map)
    }),
    1,
  )
}

/** Puts a node of the file's graph into the one that is built, and returns the outputs that something reads. */
function copy(
  g: GraphBuilder,
  from: Graph,
  node: Node,
  renamed: ReadonlyMap<string, string>,
  profile: EncoderProfile,
): string[] {
  const types = node.outputs.map((name) => {
    const type = from.types.get(name)
    if (type === undefined && name !== '')
      throw new InputError(
        `The shape of "${name}", which the node "${node.name}" (${node.op}) makes, does not follow from the graph, so that it cannot be differentiated.`,
        { file: profile.weights },
      )
    return type
  })
  g.take({ ...node, inputs: node.inputs.map((name) => renamed.get(name) ?? name) }, types)
  return node.outputs.filter((name) => name !== '')
}

/** The entries of a table by position for the tokens of packed rows: [rows, .., length, ..] of the rank asked for. */
function byPosition(
  g: GraphBuilder,
  table: string,
  { axis, rank }: { axis: number; rank: number },
  positions: string,
): string {
  // all rows are the same: [.., length, ..]
  const single = axis > 0 ? g.gather(table, g.scalar(0, 'int64'), 0) : table
  const at = Math.max(0, axis - 1)
  const axes = g.shape(single).map((_, i) => i)
  const byLength = at === 0 ? single : g.transpose(single, [at, ...axes.filter((i) => i !== at)])
  // [rows, length, others]
  const picked = g.gather(byLength, positions)
  const others = axes.slice(1).map((i) => i + 1)
  const ordered = at === 0 ? picked : g.transpose(picked, [0, ...others.slice(0, at), 1, ...others.slice(at)])
  // what a shorter shape leaves out in front stands between rows and the rest
  const missing = rank - g.shape(ordered).length
  return missing <= 0
    ? ordered
    : g.unsqueeze(
        ordered,
        Array.from({ length: missing }, (_, i) => i + 1),
      )
}
