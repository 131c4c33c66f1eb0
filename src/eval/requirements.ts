import { InputError, UsageError } from '../support/errors.ts'
import type { Comparison } from './compare.ts'
import { METRICS, type Metric } from './metrics.ts'

/** What a comparison has to show. */
export interface Requirement {
  /** As it was written. */
  text: string
  metric: Metric
  /** Undefined: all benchmarks pooled. `*`: each benchmark (variants not among them). */
  benchmark: string | undefined
  /** What is held against the threshold: the interval's bound on the unfavourable side, or the difference itself. */
  of: 'bound' | 'value'
  operator: '>=' | '>' | '<=' | '<'
  /** Points for a share, tokens for a number of tokens. */
  threshold: number
}

/** A requirement, held against one benchmark. */
export interface CheckedRequirement {
  text: string
  benchmark: string
  /** Points or tokens; null where there is no interval. */
  measured: number | null
  met: boolean
}

const SYNTAX = /^\s*([a-z0-9_]+)(\.value)?(?:@(.+?))?\s*(>=|<=|>|<)\s*([-+]?\d+(?:\.\d+)?)\s*$/

/**
 * Reads `metric[.value][@benchmark] >= number`, on the difference B - A in points (or tokens). With `>=` and `>` the lower bound of
 * its 95 % interval is held against the number, with `<=` and `<` the upper one, so that what is met is shown, not only
 * observed; `.value` takes the difference itself. Without `@benchmark` it is the pooled difference, `@*` means each benchmark.
 *
 * @throws UsageError for anything else, and for a metric that is none
 */
export function parseRequirement(text: string): Requirement {
  const [, name, value, benchmark, operator, threshold] = SYNTAX.exec(text) ?? []
  if (name === undefined) {
    throw new UsageError(
      `"${text}" is no requirement; write it as 'decision_accuracy >= 8', 'gold_recall@HotpotQA >= 0', 'retained_tokens@* <= -5' or 'gold_f1.value > 0'.`,
    )
  }
  const metric = METRICS.find((one) => one.name === name)
  if (metric === undefined) {
    throw new UsageError(`No metric is called "${name}"; there are ${METRICS.map((one) => one.name).join(', ')}.`)
  }
  return {
    text: text.trim(),
    metric,
    benchmark,
    of: value === undefined ? 'bound' : 'value',
    operator: operator as Requirement['operator'],
    threshold: Number(threshold),
  }
}

/**
 * Holds requirements against a comparison, one result for each benchmark that a requirement speaks of.
 *
 * @throws InputError for a benchmark that was not compared, or has nothing of the metric
 */
export function checkRequirements(
  requirements: readonly Requirement[],
  { benchmarks, apart }: Comparison,
): CheckedRequirement[] {
  return requirements.flatMap((requirement) => {
    const { text, metric, benchmark = 'pooled' } = requirement
    const each = Object.keys(benchmarks).filter((name) => !['pooled', 'mean', ...apart].includes(name))
    const names = benchmark === '*' ? each : [benchmark]
    if (names.length === 0) {
      throw new InputError(
        `The requirement "${text}" speaks of each benchmark, but all that was compared are variants.`,
      )
    }
    return names.map((name): CheckedRequirement => {
      if (!Object.hasOwn(benchmarks, name)) {
        throw new InputError(
          `The requirement "${text}" speaks of "${name}", which was not compared; there are ${Object.keys(benchmarks).join(', ')}.`,
        )
      }
      const found = benchmarks[name]![metric.name]
      if (found === undefined) {
        throw new InputError(`The requirement "${text}" cannot be checked: ${name} has nothing of ${metric.name}.`)
      }
      const { of, operator } = requirement
      const raw = of === 'value' ? found.difference : operator.startsWith('>') ? found.lo : found.hi
      const measured = raw === null ? null : metric.unit === 'share' ? 100 * raw : raw
      return { text, benchmark: name, measured, met: measured !== null && holds(measured, requirement) }
    })
  })
}

function holds(measured: number, { operator, threshold }: Requirement): boolean {
  // 100 · 0.29 is a little less than 29.
  const over = Math.abs(measured - threshold) < 1e-9 ? 0 : measured - threshold
  return { '>=': over >= 0, '>': over > 0, '<=': over <= 0, '<': over < 0 }[operator]
}
