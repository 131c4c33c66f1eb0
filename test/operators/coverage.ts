import { type OperatorCase, readCases, SEVERAL } from './case.ts'
import type { GradientOutcome } from './differences.ts'
import { checkForward } from './forward.ts'
import { checkGradient } from './gradient.ts'
import type { Outcome } from './outcome.ts'

/** What the tests of one operator say of it. */
export interface Row {
  operator: string
  cases: number
  forward: Tally
  gradient: Tally & { compared: number; kinks: number; float64: number; float32: number; notes: string[] }
}

interface Tally {
  agrees: number
  /** In units of the tolerance for outputs; relative to max(1, |gradient|) for gradients. */
  error: number
  skipped: Record<string, number>
  failed: { case: string; why: string }[]
}

/** Operators without a gradient by their nature, and why. */
const notDifferentiable: Record<string, string> = {
  Bernoulli: 'random',
  OneHot: 'by integers',
  Unique: 'selection',
  NonMaxSuppression: 'selection',
  Compress: 'selection',
  DynamicQuantizeLinear: 'straight through: lowered, its scale counts as constant',
  DequantizeLinear: 'quantised weights and their scales are constants',
  MaxUnpool: 'selection',
}

/** Runs the tests in a folder (of one operator, where one is given) and gathers them by operator, in order. */
export async function operatorCoverage(folder: string, options: { operator?: string } = {}): Promise<Row[]> {
  const rows = new Map<string, Row>()
  for (const test of readCases(folder)) {
    if (options.operator !== undefined && options.operator !== test.operator) continue
    const row = rows.get(test.operator) ?? empty(test.operator)
    rows.set(test.operator, row)
    row.cases++
    const forward: Outcome = 'why' in test ? { kind: 'skipped', why: `refused: ${test.why}` } : await checkForward(test)
    count(row.forward, test.name, forward)
    if (forward.kind === 'agrees' && notDifferentiable[test.operator] === undefined)
      countGradient(row, test.name, await checkGradient(test as OperatorCase))
  }
  return [...rows.values()].sort((a, b) => (a.operator < b.operator ? -1 : 1))
}

function empty(operator: string): Row {
  const tally = (): Tally => ({ agrees: 0, error: 0, skipped: {}, failed: [] })
  return {
    operator,
    cases: 0,
    forward: tally(),
    gradient: { ...tally(), compared: 0, kinks: 0, float64: 0, float32: 0, notes: [] },
  }
}

/** Reasons by kind: which node or value it was is of no interest in a table. */
function general(why: string): string {
  const place = /(?:node|input|output|value|initializer) "[^"]*"(?: \([^)]*\))?[:,]? ?/g
  return why
    .replace(/ \(node "[^"]*"\)/, '')
    .replace(place, '')
    .slice(0, 100)
}

function count(tally: Tally, name: string, outcome: Outcome): void {
  if (outcome.kind === 'agrees') {
    tally.agrees++
    tally.error = Math.max(tally.error, outcome.error)
  } else if (outcome.kind === 'fails') tally.failed.push({ case: name, why: outcome.why })
  else {
    const why = general(outcome.why)
    tally.skipped[why] = (tally.skipped[why] ?? 0) + 1
  }
}

function countGradient(
  { gradient }: Row,
  name: string,
  { outcome, compared, kinks, precision }: GradientOutcome,
): void {
  count(gradient, name, outcome)
  gradient.compared += compared
  gradient.kinks += kinks
  if (outcome.kind !== 'agrees') return
  if (precision !== undefined) gradient[precision]++
  if (outcome.note !== undefined && !gradient.notes.includes(outcome.note)) gradient.notes.push(outcome.note)
}

const isRuleMissing = (why: string): boolean => why.startsWith('No gradient for:')

/** What a row comes to: its gradient is checked, or why there is none. */
export function verdict(row: Row): string {
  const { gradient, forward } = row
  if (gradient.failed.length > 0) return 'gradient wrong'
  if (gradient.agrees > 0) return 'checked'
  if (notDifferentiable[row.operator] !== undefined) return `not differentiable (${notDifferentiable[row.operator]})`
  const reasons = Object.keys(gradient.skipped)
  if (reasons.length > 0 && reasons.every((why) => why === 'integer/shape only')) return 'integer/shape only'
  if (reasons.some(isRuleMissing)) return 'no rule'
  if (forward.agrees === 0) return 'not run'
  return 'not checked'
}

const reasonsOf = (skipped: Record<string, number>): string[] =>
  Object.entries(skipped).map(([why, n]) => `${n} × ${why.replaceAll('|', '\\|')}`)

/** The rows as a Markdown table, with a line of totals. */
export function coverageTable(rows: Row[]): string {
  const lines = rows.map((row) => {
    const { forward, gradient } = row
    const precision = [gradient.float64 > 0 ? 'float64' : '', gradient.float32 > 0 ? 'float32' : ''].filter(Boolean)
    const skipped = [
      ...reasonsOf(forward.skipped),
      ...reasonsOf(gradient.skipped).filter((why) => !why.endsWith('integer/shape only')),
      ...(gradient.kinks > 0 ? [`${gradient.kinks} elements at a kink`] : []),
      ...[...forward.failed, ...gradient.failed].map((f) => `**${f.case}: ${f.why}**`),
    ]
    return [
      row.operator,
      row.cases,
      forward.agrees,
      gradient.agrees,
      gradient.compared,
      gradient.agrees === 0 ? '' : `${gradient.error.toExponential(0)} (${precision.join(', ')})`,
      [verdict(row), ...gradient.notes].join(', '),
      skipped.join('; '),
    ].join(' | ')
  })
  const total = (f: (row: Row) => number) => rows.reduce((sum, row) => sum + f(row), 0)
  const checked = rows.filter((row) => row.gradient.agrees > 0 && row.operator !== SEVERAL).length
  return [
    'operator | tests | forward agrees | gradient agrees | elements | largest error | gradient | skipped',
    '--- | ---: | ---: | ---: | ---: | ---: | --- | ---',
    ...lines,
    '',
    `${total((r) => r.cases)} tests: ${total((r) => r.forward.agrees)} forward results agree, ${total((r) => r.forward.failed.length)} do not; ` +
      `gradients of ${total((r) => r.gradient.agrees)} tests and ${checked} operators agree ` +
      `(${total((r) => r.gradient.compared)} elements), ${total((r) => r.gradient.failed.length)} do not.`,
  ].join('\n')
}
