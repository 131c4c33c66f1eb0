import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { type EncoderProfile, readEncoder } from '../../src/encoder/index.ts'
import { openSafetensors, type Tensor } from '../../src/onnx/index.ts'

export type Kind = 'qwen3' | 'qwen3-vl'

/** Small random Qwen3 and Qwen3-VL checkpoints with what transformers and PEFT compute of them; see bench/peers/make_qwen3_fixtures.py. */
export const tinyQwen3 = (kind: Kind): string => join(import.meta.dirname, '..', 'fixtures', kind)

export const qwen3Profile = (kind: Kind): Promise<EncoderProfile> => readEncoder(tinyQwen3(kind))

/** An input of the fixtures as the language model gets it, with what the reference makes of it. */
export interface KnownInput {
  name: string
  ids: number[]
  /** Time, height and width. */
  positions: [number[], number[], number[]]
  /** Row after row of visual features, for each level; empty for text. */
  features: Float32Array[]
  /** Whether a token stands for visual features. */
  isVisual: boolean[]
  hidden: Float32Array
  embedding: Float32Array
  adapted: Float32Array
  direction: Float32Array
}

export async function knownInputs(kind: Kind): Promise<KnownInput[]> {
  const read = (file: string) => JSON.parse(readFileSync(join(tinyQwen3(kind), file), 'utf8'))
  const { image_token_id: image, video_token_id: video } = read('config.json')
  const numbers = await openSafetensors(join(tinyQwen3(kind), 'expected.safetensors'))
  const inputs: Record<string, { ids: number[]; positions?: KnownInput['positions'] }> = read('expected.json').inputs
  return Promise.all(
    Object.entries(inputs).map(async ([name, { ids, positions }]) => {
      const counted = ids.map((_, i) => i)
      const isVisual = ids.map((id) => id === image || id === video)
      const levels = isVisual.includes(true) ? [0, 1, 2, 3] : []
      const number = (what: string) => numbers.readTensor(what)
      return {
        name,
        ids,
        positions: positions ?? [counted, counted, counted],
        isVisual,
        features: await Promise.all(levels.map((level) => number(`${name}.features.${level}`))),
        hidden: await number(`${name}.hidden`),
        embedding: await number(`${name}.embedding`),
        adapted: await number(`${name}.adapted`),
        direction: await number(`direction.${name}`),
      }
    }),
  )
}

/** The gradients that PEFT's autograd finds, by the names of our matrices. */
export async function knownGradients(kind: Kind, names: readonly string[]): Promise<Map<string, Float32Array>> {
  const numbers = await openSafetensors(join(tinyQwen3(kind), 'expected.safetensors'))
  const read = async (name: string) =>
    [name, await numbers.readTensor(`gradient.base_model.model.${name}`)] as [string, Float32Array]
  return new Map(await Promise.all(names.map(read)))
}

/** A token of a row: of which input, and which token there. */
type Place = [input: KnownInput, token: number]

/** Rows of tokens, how far each token is seen in its row, and the places whose states come out. */
export interface Layout {
  rows: Place[][]
  ends: number[][]
  last: [row: number, column: number][]
}

/** Inputs one after another in the rows given. */
export function sideBySide(rows: KnownInput[][]): Layout {
  const last: Layout['last'] = []
  const ends = rows.map((inputs, row) => {
    let end = 0
    return inputs.flatMap(({ ids }) => {
      end += ids.length
      last.push([row, end - 1])
      return ids.map(() => end)
    })
  })
  return {
    rows: rows.map((inputs) => inputs.flatMap((input) => input.ids.map((_, i): Place => [input, i]))),
    ends,
    last,
  }
}

/** Inputs as a trie in one row, in pre-order: tokens that have everything before them in common are there once. */
export function asTrie(inputs: KnownInput[]): Layout {
  const row: Place[] = []
  const ends: number[] = []
  const last: Layout['last'] = inputs.map(() => [0, -1])
  const keyOf = (input: KnownInput, token: number) =>
    JSON.stringify([input.ids[token], input.positions.map((axis) => axis[token]), input.isVisual[token] && input.name])
  const visit = (members: number[], depth: number): void => {
    const branches = new Map<string, number[]>()
    for (const member of members) {
      const input = inputs[member] as KnownInput
      if (input.ids.length === depth) continue
      const key = keyOf(input, depth)
      branches.set(key, [...(branches.get(key) ?? []), member])
    }
    for (const branch of branches.values()) {
      const column = row.length
      row.push([inputs[branch[0] as number] as KnownInput, depth])
      for (const member of branch) if (inputs[member]?.ids.length === depth + 1) last[member] = [0, column]
      visit(branch, depth + 1)
      ends[column] = row.length
    }
  }
  visit(
    inputs.map((_, i) => i),
    0,
  )
  return { rows: [row], ends: [ends], last }
}

/**
 * What the packed graph is fed.
 *
 * @param kind whether there are three positions and visual features
 * @param hidden width of a feature
 */
export function packedInputs(layout: Layout, kind: Kind, hidden: number): Record<string, Tensor> {
  const length = Math.max(...layout.rows.map((row) => row.length))
  const rows = layout.rows.length
  const int32 = (shape: number[], at: (row: number, column: number) => number): Tensor => {
    const data = new Int32Array(rows * length).map((_, i) => at(Math.floor(i / length), i % length))
    return { dtype: 'int32', shape, data }
  }
  const axis = (k: number) =>
    int32([rows, length], (row, column) => {
      const place = layout.rows[row]?.[column]
      return place === undefined ? 0 : (place[0].positions[k]?.[place[1]] as number)
    })
  const feeds: Record<string, Tensor> = {
    input_ids: int32([rows, length], (row, column) => {
      const place = layout.rows[row]?.[column]
      return place === undefined ? 0 : (place[0].ids[place[1]] as number)
    }),
    ends: int32([rows, length], (row, column) => layout.ends[row]?.[column] ?? column + 1),
    last: {
      dtype: 'int32',
      shape: [layout.last.length],
      data: Int32Array.from(layout.last, ([row, column]) => row * length + column),
    },
  }
  if (kind === 'qwen3') return { ...feeds, position_ids: axis(0) }
  const positions = Int32Array.from([0, 1, 2].flatMap((k) => Array.from(axis(k).data as Int32Array)))
  const { visual, rowOf } = visualFeatures([...new Set(layout.rows.flat().map(([input]) => input))], hidden)
  return {
    ...feeds,
    position_ids: { dtype: 'int32', shape: [3, rows, length], data: positions },
    visual,
    visual_rows: int32([rows, length], (row, column) => {
      const place = layout.rows[row]?.[column]
      return place === undefined ? 0 : rowOf(...place)
    }),
  }
}

/** The features of inputs, level by level, after a row of zeros; and the row of a token, 0 for text. */
function visualFeatures(inputs: KnownInput[], hidden: number): { visual: Tensor; rowOf: (...place: Place) => number } {
  const starts = new Map<KnownInput, number>()
  let total = 1
  for (const input of inputs) {
    starts.set(input, total)
    total += (input.features[0]?.length ?? 0) / hidden
  }
  const data = new Float32Array(4 * total * hidden)
  for (const [input, start] of starts)
    input.features.forEach((level, k) => {
      data.set(level, (k * total + start) * hidden)
    })
  return {
    visual: { dtype: 'float32', shape: [4, total, hidden], data },
    rowOf: (input, token) =>
      input.isVisual[token] ? (starts.get(input) as number) + input.isVisual.slice(0, token).filter(Boolean).length : 0,
  }
}

/** max |a − b| / max |b| */
export function relativeError(a: ArrayLike<number>, b: ArrayLike<number>): number {
  let [difference, largest] = [a.length === b.length ? 0 : Number.POSITIVE_INFINITY, 0]
  for (let i = 0; i < b.length; i++) {
    difference = Math.max(difference, Math.abs((a[i] as number) - (b[i] as number)))
    largest = Math.max(largest, Math.abs(b[i] as number))
  }
  return difference / largest
}

export function cosine(a: ArrayLike<number>, b: ArrayLike<number>): number {
  let [product, squaresA, squaresB] = [0, 0, 0]
  for (let i = 0; i < b.length; i++) {
    const [x, y] = [a[i] as number, b[i] as number]
    product += x * y
    squaresA += x * x
    squaresB += y * y
  }
  return product / Math.sqrt(squaresA * squaresB)
}
