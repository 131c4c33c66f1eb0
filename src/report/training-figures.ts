import * as Plot from '@observablehq/plot'
import { type Html, html } from './html.ts'
import { chart } from './plot.ts'
import type { ReportRun } from './training.ts'

/** Points of a line: more than this cannot be told apart at its size. */
const MOST_POINTS = 400
const COLORS = ['tuned', 'frozen', 'gold-line', 'permuted', 'selector', 'control'].map((name) => `var(--${name})`)
const DASHES = ['', '6 3', '2 3', '8 3 2 3']

interface Point {
  step: number
  value: number
  /** What its line is called. */
  line: string
}

/** The curves of training runs: loss, validation accuracy and learning rate against the step. */
export function trainingFigures(runs: readonly ReportRun[]): Html {
  const single = runs.length === 1
  const named = (run: ReportRun, what: string): string =>
    single ? what : `${run.name}${what === '' ? '' : `, ${what}`}`
  const losses = runs.flatMap((run) => [
    ...smoothed(points(run, named(run, 'training'), ({ loss }) => loss)),
    ...points(run, named(run, 'validation'), ({ validation }) => validation?.loss),
  ])
  const accuracies = runs.flatMap((run) => {
    const benchmarks = single ? [...new Set(run.lines.flatMap((l) => Object.keys(l.validation?.benchmarks ?? {})))] : []
    return [
      ...points(run, named(run, single ? 'all' : ''), ({ validation }) => validation?.accuracy),
      ...(benchmarks.length < 2 ? [] : benchmarks).flatMap((benchmark) =>
        points(run, benchmark, ({ validation }) => validation?.benchmarks[benchmark]),
      ),
    ]
  })
  const rates = runs.flatMap((run) => thinned(points(run, named(run, 'learning rate'), (l) => l.learningRate)))
  return html`<div class="charts">
    ${curves('Loss', losses, { y: { label: 'loss', zero: true } })}
    ${curves(
      'Validation: decision accuracy, %',
      accuracies,
      {
        y: { label: null, tickFormat: (value: number) => `${Math.round(100 * value)}` },
      },
      (value) => `${(100 * value).toFixed(1)} %`,
    )}
    ${curves('Learning rate', rates, { y: { label: null, zero: true, tickFormat: (value: number) => (value === 0 ? '0' : value.toExponential()) } }, (value) => value.toExponential(2))}
  </div>`
}

function points(
  run: ReportRun,
  line: string,
  value: (line: ReportRun['lines'][number]) => number | undefined,
): Point[] {
  return run.lines.flatMap((l) => {
    const found = value(l)
    return found === undefined ? [] : [{ step: l.step, value: found, line }]
  })
}

function thinned(all: Point[]): Point[] {
  const every = Math.ceil(all.length / MOST_POINTS)
  return all.filter((_, i) => i % every === 0 || i === all.length - 1)
}

/** Mean over a window that grows with the run: single steps say little. */
function smoothed(all: Point[]): Point[] {
  const half = Math.max(1, Math.floor(all.length / 40))
  const means = all.map((point, i) => {
    const around = all.slice(Math.max(0, i - half), i + half + 1)
    return { ...point, value: around.reduce((sum, { value }) => sum + value, 0) / around.length }
  })
  return thinned(means)
}

function curves(
  title: string,
  data: readonly Point[],
  options: Plot.PlotOptions,
  format: (value: number) => string = (value) => value.toFixed(3),
): Html {
  const lines = [...new Set(data.map(({ line }) => line))]
  if (data.length === 0) return html``
  const ends = lines.map((line) => data.filter((d) => d.line === line).at(-1)!)
  const style = (line: string) => {
    const i = lines.indexOf(line)
    return { color: COLORS[i % COLORS.length]!, dash: DASHES[Math.floor(i / COLORS.length) % DASHES.length]! }
  }
  const drawn = chart({
    title,
    description: `Against the training step. At the end: ${ends.map((end) => `${end.line} ${format(end.value)}`).join(', ')}.`,
    options: {
      ...options,
      x: { label: 'step', nice: true },
      marks: [
        Plot.gridY({ stroke: 'var(--grid)', strokeOpacity: 1 }),
        ...lines.flatMap((line) => {
          const { color, dash } = style(line)
          const own = data.filter((d) => d.line === line)
          const sparse = own.length <= 30
          return [
            Plot.lineY(own, {
              x: 'step',
              y: 'value',
              stroke: color,
              strokeWidth: 1.75,
              ...(dash && { strokeDasharray: dash }),
            }),
            ...(sparse
              ? [
                  Plot.dot(own, {
                    x: 'step',
                    y: 'value',
                    fill: color,
                    r: 2.5,
                    title: (d: Point) => `${d.line}, step ${d.step}: ${format(d.value)}`,
                  }),
                ]
              : []),
          ]
        }),
      ],
    },
  })
  if (lines.length < 2) return html`<div class="panel">${drawn}</div>`
  const key = lines.map(
    (line) => html`<li><i class="swatch swatch-${lines.indexOf(line) % COLORS.length}"></i>${line}</li>`,
  )
  return html`<div class="panel">${drawn}<ul class="legend">${key}</ul></div>`
}
