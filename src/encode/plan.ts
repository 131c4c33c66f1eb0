import { createHash } from 'node:crypto'
import { InputError, UsageError } from '../support/errors.ts'
import type { Source, Unit } from './units.ts'

/**
 * Rows that are computed together, whole items where they are not larger. Numbers of an embedding differ in their last bits with
 * what is computed beside it; blocks hang on nothing but the data, so that every division into shards and every interruption gives
 * the same bytes.
 */
export const BLOCK_ROWS = 1024

/** Consecutive units that are computed and committed together. */
export interface Block {
  /** Number of its first unit. */
  first: number
  units: number
  rows: number
  cost: number
  /** `contentHash` of its units. */
  hash: string
}

/** The whole work, before any of it is divided. */
export interface Plan {
  units: number
  rows: number
  blocks: Block[]
  /** SHA-256 over the units' contents, in order. */
  hash: string
  /** SHA-256 over the units' names, in order. */
  names: string
  /** How many units the encoder cannot read, as their kind tells. */
  refused: number
}

/**
 * Reads a source once, to divide it into blocks.
 *
 * @param onRefused told of every unit that the encoder cannot read
 * @throws InputError as reading the source does, and for a source without any units
 */
export async function planBlocks(
  source: Source,
  options: {
    blockRows: number
    onRefused: (label: string, reason: string) => void
    onProgress?: (units: number) => void
    signal?: AbortSignal | undefined
  },
): Promise<Plan> {
  const content = contentHash()
  const names = createHash('sha256')
  const blocks: Block[] = []
  let open: Block | undefined
  let ofBlock = contentHash()
  const close = (): void => {
    if (open !== undefined) open.hash = ofBlock.digest()
  }
  let units = 0
  let refused = 0
  for await (const unit of source.units(options.signal)) {
    content.add(unit)
    names.update(unit.name).update('\n')
    if (unit.refused !== undefined) {
      refused++
      options.onRefused(unit.label, unit.refused)
    }
    const full = open !== undefined && (open.rows + unit.rows > options.blockRows || open.units === options.blockRows)
    if (open === undefined || full) {
      close()
      ofBlock = contentHash()
      open = { first: units, units: 0, rows: 0, cost: 0, hash: '' }
      blocks.push(open)
    }
    ofBlock.add(unit)
    open.units++
    open.rows += unit.rows
    open.cost += unit.cost
    units++
    if (units % 256 === 0) options.onProgress?.(units)
  }
  close()
  if (units === 0) throw new InputError(`There is nothing to encode: ${source.names.join(', ')} has no items for it.`)
  const rows = blocks.reduce((sum, block) => sum + block.rows, 0)
  return { units, rows, blocks, hash: content.digest(), names: names.digest('hex'), refused }
}

/** SHA-256 over units' contents, one after the other. */
export function contentHash(): { add(unit: Pick<Unit, 'content'>): void; digest(): string } {
  const hash = createHash('sha256')
  return {
    add: ({ content }) => void hash.update(content).update('\n'),
    digest: () => hash.digest('hex'),
  }
}

/** Which part of the work: `index` counts from 1. */
export interface Shard {
  index: number
  of: number
}

/**
 * Reads `2/8`.
 *
 * @throws UsageError for anything that is no part of a whole
 */
export function parseShard(text: string): Shard {
  const [, index, of] = /^(\d{1,6})\/(\d{1,6})$/.exec(text) ?? []
  const shard = { index: Number(index), of: Number(of) }
  if (!(shard.of >= 1 && shard.index >= 1 && shard.index <= shard.of))
    throw new UsageError(
      `--shard ${JSON.stringify(text)} is no part of a whole: give i/n with 1 <= i <= n, as 1/4, 2/4, 3/4 and 4/4 on four machines.`,
    )
  return shard
}

/**
 * The blocks `[from, to)` of a shard. A block belongs to the shard in whose n-th part of all costs its middle lies: shards are
 * consecutive, without gap or overlap, and differ in cost by one block at most. Where there are fewer blocks than shards, some
 * shards have none.
 */
export function shardBlocks(blocks: readonly Pick<Block, 'cost'>[], { index, of }: Shard): [number, number] {
  // every block costs something, so that those whose items are all refused are spread, too
  const costs = blocks.map(({ cost }) => cost + 1)
  const total = costs.reduce((sum, cost) => sum + cost, 0)
  let before = 0
  let from = 0
  let to = 0
  for (const cost of costs) {
    // whole numbers, so that no rounding decides
    const part = Math.min(of, Math.floor(((2 * before + cost) * of) / (2 * total)) + 1)
    if (part < index) from++
    if (part <= index) to++
    before += cost
  }
  return [from, to]
}
