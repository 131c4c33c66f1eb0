import { type Dim, type Graph, type Node, openSession, prune, type Tensor } from '../../onnx/index.ts'
import { LENGTH, ROWS } from './read.ts'

/**
 * What has to change in a graph over rows of one text each, so that its rows can hold several. Along a packed row positions
 * begin again with every text, and a text's tokens look at each other only:
 *
 * - a float value that follows from the rows' length alone and has one axis of that length is a table by position (the
 *   embeddings of positions, the cosines and sines of a rotary encoding). Its entries are picked by `position_ids` instead.
 * - a value over pairs of tokens, [rows, 1 or heads, 1 or length, length], that follows from `attention_mask` (and positions)
 *   is the mask. It is computed for rows without padding, which leaves what else the graph hides (later tokens, distant
 *   ones), and tokens of other texts are hidden on top.
 * - a running sum along the rows counts tokens: it becomes `position_ids` + 1.
 */
export interface RowRewrite {
  /** Tables by position, with their axis of the rows' length, and the rank of the values that they are combined with. */
  positions: Map<string, { axis: number; rank: number }>
  /** Masks, and what they hold where a token may not look. */
  masks: Map<string, MaskKind>
  /** Outputs of running sums -> whether the sum leaves its own place out. */
  counts: Map<string, boolean>
}

/** A mask that is added to scores, or a boolean one, which is `true` where a token may be looked at or where it may not. */
export type MaskKind = 'added' | 'visible' | 'hidden'

type Source = 'ids' | 'mask' | 'types' | 'positions'

/** The inputs whose numbers, not only whose sizes, a value follows from. */
function sourcesOf(graph: Graph, counts: ReadonlySet<string>): Map<string, Set<Source>> {
  const names: Record<string, Source> = {
    input_ids: 'ids',
    attention_mask: 'mask',
    token_type_ids: 'types',
    position_ids: 'positions',
  }
  const sources = new Map<string, Set<Source>>()
  for (const name of graph.inputs) sources.set(name, new Set([names[name] ?? 'ids']))
  for (const node of graph.nodes) {
    const all = new Set<Source>()
    if (node.op !== 'Shape' && node.op !== 'Size')
      for (const name of node.inputs) for (const source of sources.get(name) ?? []) all.add(source)
    for (const name of node.outputs) sources.set(name, counts.has(name) ? new Set(['positions']) : all)
  }
  return sources
}

/**
 * Finds what packing rows takes, or says in a sentence why the graph's rows cannot be packed.
 *
 * @param graph a graph whose `input_ids` are [rows, length], with types
 */
export async function packedRows(
  graph: Graph,
  externalFolder: string,
): Promise<{ rewrite: RowRewrite } | { reason: string }> {
  const typeOf = (name: string) => graph.types.get(name)
  const isFloat = (name: string): boolean => typeOf(name)?.dtype === 'float32'
  const counts = runningSums(graph)
  const sources = sourcesOf(graph, new Set(counts.keys()))
  const isHidden = (name: string): boolean => isFloat(name) && (sources.get(name)?.has('ids') ?? false)

  const positions: RowRewrite['positions'] = new Map()
  const masks = new Set<string>()
  /** Values over pairs of tokens that follow from the rows' length: they may hide later tokens. */
  const pairs = new Set<string>()
  for (const node of graph.nodes) {
    if (!node.outputs.some(isHidden)) continue
    for (const name of node.inputs) {
      if (name === '' || graph.initializers.has(name) || isHidden(name)) continue
      const type = typeOf(name)
      const from = sources.get(name) as Set<Source>
      if (type === undefined) return { reason: `the shape of ${describe(node)}'s input "${name}" is not known` }
      const along = type.shape.flatMap((d, axis) => (mentionsLength(d) ? [axis] : []))
      const follows = from.has('mask') && !from.has('ids') && !from.has('types')
      if (follows && type.shape.length === 4 && typeof type.shape[3] === 'string') masks.add(name)
      else if (from.size === 0 && along.length === 2 && type.shape.at(-2) === type.shape.at(-1)) pairs.add(name)
      else if (from.size === 0 && along.length === 1 && isFloat(name)) {
        const axis = along[0] as number
        const rank = typeOf(node.outputs[0] as string)?.shape.length ?? 0
        if (!isTable(type.shape, axis) || (positions.get(name)?.rank ?? rank) !== rank)
          return { reason: `"${name}", of shape [${type.shape.join(', ')}], is no table by position` }
        positions.set(name, { axis, rank })
      }
    }
  }
  if (masks.size > 0) {
    const kinds = await maskKinds(graph, externalFolder, masks)
    const strange = [...masks].find((name) => !kinds.has(name))
    if (strange !== undefined)
      return { reason: `"${strange}" follows from attention_mask, but hides no token from another` }
    return { rewrite: { positions, masks: kinds, counts } }
  }
  // a causal graph whose padding comes last needs none
  const kinds = await maskKinds(graph, externalFolder, pairs)
  if (kinds.size === 0) return { reason: 'no mask over pairs of tokens was found' }
  return { rewrite: { positions, masks: kinds, counts } }
}

/** [length, ..] or [1 or rows, .., length, ..], other sizes being numbers. */
const isTable = (shape: Dim[], axis: number): boolean =>
  shape.every((d, i) => (i === axis ? d === LENGTH : i === 0 ? d === 1 || d === ROWS : typeof d === 'number'))

const describe = (node: Node): string => `the node "${node.name}" (${node.op})`
const mentionsLength = (d: Dim): boolean => typeof d === 'string' && new RegExp(`\\b${LENGTH}\\b`).test(d)

/** Running sums over the tokens of a row, which count those that are no padding. */
function runningSums(graph: Graph): Map<string, boolean> {
  const counts = new Map<string, boolean>()
  for (const node of graph.nodes) {
    const shape = graph.types.get(node.outputs[0] as string)?.shape
    if (node.op !== 'CumSum' || shape?.join() !== `${ROWS},${LENGTH}`) continue
    const { exclusive } = node.attributes
    counts.set(node.outputs[0] as string, exclusive !== undefined && 'i' in exclusive && exclusive.i === 1)
  }
  return counts
}

/** A finite score below this leaves a token no weight. */
const NO_WEIGHT = -1000

/**
 * What values over pairs of tokens hold where the third token of a text may look at itself and where it may not look at the
 * fourth, which is padding (and comes later, if the graph hides what comes later): the graph is run that far. Those that hide
 * nothing are left out.
 */
async function maskKinds(
  graph: Graph,
  externalFolder: string,
  names: ReadonlySet<string>,
): Promise<Map<string, MaskKind>> {
  const kinds = new Map<string, MaskKind>()
  if (names.size === 0) return kinds
  const part = prune({ ...graph, outputs: [...names] }, { unusedInputs: false })
  const session = await openSession(part, { externalFolder, threads: 1 })
  try {
    const row: Record<string, number[]> = {
      input_ids: [5, 6, 7, 8],
      attention_mask: [1, 1, 1, 0],
      token_type_ids: [0, 0, 0, 0],
      position_ids: [0, 1, 2, 3],
    }
    const feeds = part.inputs.map((name): [string, Tensor] => [name, tokens(graph, name, row[name] as number[])])
    const values = await session.run(Object.fromEntries(feeds))
    for (const name of names) {
      const kind = maskKind(values[name] as Tensor)
      if (kind !== undefined) kinds.set(name, kind)
    }
    return kinds
  } finally {
    await session.release()
  }
}

function tokens(graph: Graph, name: string, numbers: number[]): Tensor {
  const shape = [1, numbers.length]
  return graph.types.get(name)?.dtype === 'int32'
    ? { dtype: 'int32', shape, data: Int32Array.from(numbers) }
    : { dtype: 'int64', shape, data: BigInt64Array.from(numbers, BigInt) }
}

/** @param mask [.., 4 or 1, 4] */
function maskKind({ dtype, shape, data }: Tensor): MaskKind | undefined {
  const [height, width] = shape.slice(-2) as [number, number]
  if (width !== 4) return undefined
  const row = Math.min(2, height - 1) * width
  const [own, padding] = [Number(data[row + 2]), Number(data[row + 3])]
  if (dtype === 'bool') return own === padding ? undefined : own === 1 ? 'visible' : 'hidden'
  return dtype === 'float32' && own === 0 && padding < NO_WEIGHT ? 'added' : undefined
}
