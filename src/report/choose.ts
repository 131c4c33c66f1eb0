import { type ScoredInstance, tableRow } from '../eval/index.ts'
import { createRandom } from '../support/random.ts'

/** All items of one question, as they were scored. */
export interface ScoredGroup<T extends ScoredInstance> {
  /** The row of the tables that counts it. */
  row: string
  instances: T[]
}

/**
 * Draws questions from a stream of scored instances in which those of one question stand together: all where there are no more
 * than `count`, else as many of each row of the tables as of the others, as far as each has them. Memory holds `count` questions
 * of each row.
 *
 * @param seed the same seed draws the same questions
 * @returns those drawn, in the order of the stream, and how many there are of each row
 */
export async function chooseQuestions<T extends ScoredInstance>(
  instances: AsyncIterable<T>,
  count: number,
  seed: string,
): Promise<{ chosen: ScoredGroup<T>[]; of: Map<string, number> }> {
  const random = createRandom(seed)
  const rows = new Map<string, { seen: number; drawn: Drawn<T>[] }>()
  let order = 0
  const add = (group: ScoredGroup<T>): void => {
    const row = rows.get(group.row) ?? { seen: 0, drawn: [] }
    rows.set(group.row, row)
    row.seen++
    row.drawn.push({ ...group, order: order++, lot: random.next() })
    if (row.drawn.length > 2 * count + 100) row.drawn = lowest(row.drawn, count)
  }
  let group: ScoredGroup<T> | undefined
  for await (const instance of instances) {
    const row = tableRow(instance)
    const last = group?.instances[0]
    if (group !== undefined && group.row === row && last!.question === instance.question) {
      group.instances.push(instance)
      continue
    }
    if (group !== undefined) add(group)
    group = { row, instances: [instance] }
  }
  if (group !== undefined) add(group)
  const shares = fairShares(new Map([...rows].map(([row, { seen }]) => [row, seen])), count)
  return {
    chosen: [...rows]
      .flatMap(([row, { drawn }]) => lowest(drawn, shares.get(row)!))
      .sort((a, b) => a.order - b.order)
      .map(({ row, instances }) => ({ row, instances })),
    of: new Map([...rows].map(([row, { seen }]) => [row, seen])),
  }
}

interface Drawn<T extends ScoredInstance> extends ScoredGroup<T> {
  order: number
  lot: number
}

const lowest = <T extends { lot: number }>(drawn: readonly T[], count: number): T[] =>
  [...drawn].sort((a, b) => a.lot - b.lot).slice(0, count)

/**
 * Shares `count` among groups so that none gets more than it has, none that has more gets less than another, and as much as
 * possible is given out.
 */
export function fairShares(sizes: ReadonlyMap<string, number>, count: number): Map<string, number> {
  const shares = new Map<string, number>()
  let left = count
  const bySize = [...sizes].sort((a, b) => a[1] - b[1])
  for (const [i, [name, size]] of bySize.entries()) {
    const share = Math.min(size, Math.floor(left / (bySize.length - i)))
    shares.set(name, share)
    left -= share
  }
  return shares
}
