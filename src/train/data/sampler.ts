import { createRandom } from '../../support/random.ts'

/** What the sampler must know of each instance: small integers that name its source and its benchmark. */
export interface SamplerIndex {
  count: number
  source: Int32Array
  benchmark: Int32Array
}

/**
 * Splits instances into a training and a validation part that share no source. Benchmark by benchmark, sources are drawn in
 * a seeded order, and one is taken if it brings the validation part's number of instances closer to `share`; a source too
 * large for that stays in training. Both parts are in index order.
 *
 * A pure function of the index's order, the share and the seed.
 *
 * @param leftOut instances that are in neither part
 */
export function splitValidation(
  index: SamplerIndex,
  share: number,
  seed: number,
  leftOut: ReadonlySet<number> = new Set(),
): { train: Int32Array; validation: Int32Array } {
  const sizes = new Map<number, number>()
  const benchmarkOf = new Map<number, number>()
  const instances = new Map<number, number>()
  for (let i = 0; i < index.count; i++) {
    if (leftOut.has(i)) continue
    const source = index.source[i]!
    sizes.set(source, (sizes.get(source) ?? 0) + 1)
    // A source that several benchmarks share belongs to the first one's draw.
    if (!benchmarkOf.has(source)) benchmarkOf.set(source, index.benchmark[i]!)
    const benchmark = benchmarkOf.get(source)!
    instances.set(benchmark, (instances.get(benchmark) ?? 0) + 1)
  }
  const held = new Set<number>()
  for (const [benchmark, total] of instances) {
    const sources = [...sizes.keys()].filter((source) => benchmarkOf.get(source) === benchmark)
    createRandom(`${seed}/validation/${benchmark}`).shuffle(sources)
    const target = share * total
    let taken = 0
    for (const source of sources) {
      const size = sizes.get(source)!
      if (Math.abs(taken + size - target) >= Math.abs(taken - target)) continue
      held.add(source)
      taken += size
    }
  }
  const train: number[] = []
  const validation: number[] = []
  for (let i = 0; i < index.count; i++) if (!leftOut.has(i)) (held.has(index.source[i]!) ? validation : train).push(i)
  return { train: Int32Array.from(train), validation: Int32Array.from(validation) }
}

/** How training goes through its instances: whole epochs of batches, each epoch in an order of its own. */
export interface Sampler {
  stepsPerEpoch: number
  /** The instances of optimizer step `step` (from 1). A pure function of the seed and the step. */
  batch(step: number): Int32Array
}

export function createSampler(train: Int32Array, batchSize: number, seed: number): Sampler {
  const stepsPerEpoch = Math.ceil(train.length / batchSize)
  let current: { epoch: number; order: number[] } | undefined
  return {
    stepsPerEpoch,
    batch(step) {
      const epoch = Math.floor((step - 1) / stepsPerEpoch)
      const place = (step - 1) % stepsPerEpoch
      if (current?.epoch !== epoch) current = { epoch, order: epochOrder(train, seed, epoch) }
      return Int32Array.from(current.order.slice(place * batchSize, (place + 1) * batchSize))
    },
  }
}

function epochOrder(train: Int32Array, seed: number, epoch: number): number[] {
  const order = Array.from(train)
  createRandom(`${seed}/epoch/${epoch}`).shuffle(order)
  return order
}

/**
 * Puts units, each of which stays whole, into few groups whose cost is within `wanted`, first-fit decreasing. A unit that alone is
 * over it gets a group of its own, marked `oversize` if it is over `budget` too. Deterministic: equal sizes keep their order.
 *
 * Costs take long to find, so that few are asked for: groups are filled by size alone; what is over `wanted` gives up its smallest
 * units, which then go where there is room for them.
 *
 * @param sizes size of each unit
 * @param cost cost of a group of units, by their indices: what they take together, about the sum of their sizes
 * @param wanted cost that groups should have, at most `budget`
 */
export function packUnits(
  sizes: number[],
  cost: (units: number[]) => number,
  budget: number,
  wanted = budget,
): { units: number[]; oversize: boolean }[] {
  const order = sizes.map((_, i) => i).sort((a, b) => sizes[b]! - sizes[a]! || a - b)
  const oversize = new Set(order.filter((unit) => cost([unit]) > budget))
  const groups: number[][] = []
  const place = (unit: number, fits: (group: number[]) => boolean): void => {
    const group = groups.find(
      (members) => members.reduce((sum, member) => sum + sizes[member]!, sizes[unit]!) <= wanted && fits(members),
    )
    if (group === undefined) groups.push([unit])
    else group.push(unit)
  }
  for (const unit of order) if (!oversize.has(unit)) place(unit, () => true)
  const left: number[] = []
  for (const group of groups)
    for (let over = cost(group); over > wanted && group.length > 1; over = cost(group))
      left.push(...group.splice(-Math.max(1, Math.floor((group.length * (over - wanted)) / over))))
  left.sort((a, b) => sizes[b]! - sizes[a]! || a - b)
  for (const unit of left) place(unit, (group) => cost([...group, unit]) <= wanted)
  return [
    ...[...oversize].map((unit) => ({ units: [unit], oversize: true })),
    ...groups.map((units) => ({ units, oversize: false })),
  ]
}
