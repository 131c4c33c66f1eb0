import { z } from 'zod'
import { InputError } from '../support/errors.ts'
import type { TrainSettings } from '../train/index.ts'
import { checkedSettings } from './check-settings.ts'
import type { ReproduceConfig } from './config.ts'
import { sha256Text } from './hashes.ts'

const values = z.array(z.unknown()).min(1)

export const sweepSchema = z.strictObject({
  /** Every combination of the values, or one value changed at a time. */
  mode: z.enum(['grid', 'one-at-a-time']).default('grid'),
  branching: z.array(z.number().int().min(2)).min(1).exactOptional(),
  /** Lists of values of training settings; a dot leads into one, as in `kindWeights.sibling-separation`. */
  train: z.record(z.string(), values).default({}),
  /** Measure every configuration on dev, too. Selection is on validation all the same. */
  evaluate: z.boolean().default(false),
  /** Seeds of each configuration; the first of `seeds` unless told. */
  seeds: z.array(z.number().int().min(0)).min(1).exactOptional(),
})

/** A point of a sweep. */
export interface Configuration {
  /** Names its folder: how it differs from the configuration itself. */
  name: string
  /** Its value on every axis. */
  values: Record<string, unknown>
  branching: number
  train: TrainSettings | undefined
}

type Point = Record<string, unknown>

/**
 * All combinations of the axes' values (`grid`), the last axis changing first; or `base` and then each other value alone
 * (`one-at-a-time`).
 */
export function points(mode: 'grid' | 'one-at-a-time', axes: Record<string, unknown[]>, base: Point): Point[] {
  const names = Object.keys(axes)
  const all =
    mode === 'grid'
      ? names.reduce<Point[]>(
          (made, axis) => made.flatMap((point) => axes[axis]!.map((value) => ({ ...point, [axis]: value }))),
          [{}],
        )
      : [base, ...names.flatMap((axis) => axes[axis]!.map((value) => ({ ...base, [axis]: value })))]
  const seen = new Set<string>()
  return all.filter((point) => seen.size < seen.add(JSON.stringify(point)).size)
}

/**
 * The configurations that a `sweep` section asks for.
 *
 * @throws InputError naming a setting that there is not, or a value that it cannot have
 */
export async function configurations(
  sweep: z.output<typeof sweepSchema>,
  config: Pick<ReproduceConfig, 'file' | 'branching' | 'train'>,
): Promise<{ configurations: Configuration[]; axes: string[]; mode: string }> {
  const { file } = config
  const trainAxes = Object.entries(sweep.train).map(([key, list]) => [`train.${key}`, list] as const)
  const axes: Record<string, unknown[]> = {
    ...(sweep.branching !== undefined && { branching: sweep.branching }),
    ...Object.fromEntries(trainAxes),
  }
  if (Object.keys(axes).length === 0)
    throw new InputError('"sweep" varies nothing; give it "branching: [2, 3]" or "train: { rank: [8, 16] }".', { file })
  if (trainAxes.length > 0 && config.train === undefined)
    throw new InputError('"sweep.train" varies settings of training, but "train" is false.', { file })
  if (Object.hasOwn(sweep.train, 'seed'))
    throw new InputError(
      '"sweep.train.seed": a seed is no setting to choose; give "sweep.seeds" to see how much it matters.',
      {
        file,
      },
    )
  const base: Point = { branching: config.branching }
  for (const axis of Object.keys(axes)) if (axis !== 'branching') base[axis] = at(config.train ?? {}, axis, file)

  const made: Configuration[] = []
  for (const point of points(sweep.mode, axes, pick(base, Object.keys(axes)))) {
    const { branching = config.branching } = point as { branching?: number }
    let train = config.train
    if (train !== undefined) {
      const settings = structuredClone(train) as Record<string, unknown>
      for (const [axis, value] of Object.entries(point)) if (axis !== 'branching') put(settings, axis, value)
      train = await checkedSettings(settings, file)
    }
    made.push({ name: nameOf(point, base), values: point, branching, train })
  }
  return { configurations: made, axes: Object.keys(axes), mode: sweep.mode }
}

const pick = (point: Point, names: string[]): Point => Object.fromEntries(names.map((name) => [name, point[name]]))

/** `base`, or what differs from it: a value more on an axis, or an axis more, leaves other names as they are. */
function nameOf(point: Point, base: Point): string {
  const parts = Object.entries(point).flatMap(([axis, value]) => {
    if (JSON.stringify(value) === JSON.stringify(base[axis])) return []
    const text = typeof value === 'object' ? sha256Text(JSON.stringify(value)).slice(0, 8) : String(value)
    return [`${axis.replace(/^train\./, '')}=${text.replaceAll(/[^\w.+-]/g, '_')}`]
  })
  return parts.length === 0 ? 'base' : parts.join(',')
}

function pathOf(axis: string): string[] {
  return axis.replace(/^train\./, '').split('.')
}

function at(settings: object, axis: string, file: string): unknown {
  const path = pathOf(axis)
  let value: unknown = settings
  for (const [depth, key] of path.entries()) {
    // weights of a benchmark that are not given are 1
    if (depth === 1 && path[0] === 'benchmarkWeights')
      return (value as Record<string, unknown>)[path.slice(1).join('.')] ?? 1
    if (typeof value !== 'object' || value === null || !Object.hasOwn(value, key))
      throw new InputError(`"sweep.${axis}": no setting of training is called "${path.join('.')}".`, { file })
    value = (value as Record<string, unknown>)[key]
  }
  return value
}

function put(settings: Record<string, unknown>, axis: string, value: unknown): void {
  const [first, ...rest] = pathOf(axis)
  // steps win over epochs where both are given
  if (first === 'epochs') settings.steps = null
  if (rest.length === 0) settings[first!] = value
  else settings[first!] = { ...(settings[first!] as object), [rest.join('.')]: value }
}
