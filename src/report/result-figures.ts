import * as Plot from '@observablehq/plot'
import {
  ENCODERS,
  type EncoderName,
  MODEL_ENCODERS,
  marginSentences,
  SELECTION_ROWS,
  type SelectionRow,
} from '../eval/index.ts'
import { benchmarkTitle, drawnBenchmarks, type ReportEvaluation } from './evaluation.ts'
import { type Html, html } from './html.ts'
import { chart, legend, percentTicks, seriesDots, seriesOf } from './plot.ts'

const percent = (value: number): string => `${(100 * value).toFixed(1)} %`
const grid = { stroke: 'var(--grid)', strokeOpacity: 1 }

/** The figures of an evaluation, each a small chart for every benchmark on common scales; of one benchmark they stand side by side. */
export function resultFigures(evaluation: ReportEvaluation): Html {
  const figures = html`${accuracyFigure(evaluation)}${accuracyByLevelFigure(evaluation)}${scoreByLevelFigure(evaluation)}${recallFigure(evaluation)}${marginFigure(evaluation)}`
  return drawnBenchmarks(evaluation).length === 1 ? html`<div class="side-by-side">${figures}</div>` : figures
}

function figure(title: string, explanation: string, key: Html | undefined, charts: readonly Html[]): Html {
  if (charts.length === 0) return html``
  return html`<section class="figure">
    <h3>${title}</h3>
    <p>${explanation}</p>
    ${key ?? ''}
    <div class="charts">${charts.map((one) => html`<div class="panel">${one}</div>`)}</div>
  </section>`
}

/** Decision accuracy of every encoder and control with its interval. */
function accuracyFigure(evaluation: ReportEvaluation): Html {
  const charts = drawnBenchmarks(evaluation).flatMap((benchmark) => {
    const rows = ENCODERS.flatMap((encoder) => {
      const estimate = evaluation.estimates.benchmarks[benchmark]?.[encoder]?.decision_accuracy
      if (estimate === undefined || estimate.value === null) return []
      const { value, lo, hi, n } = estimate
      return [{ encoder, value, lo: lo ?? value, hi: hi ?? value, n }]
    })
    if (rows.length === 0) return []
    const n = rows[0]!.n
    return [
      chart({
        title: `${benchmarkTitle(benchmark)} · ${n} decisions`,
        description: `Decision accuracy: ${rows.map((r) => `${r.encoder} ${percent(r.value)} (${percent(r.lo)} to ${percent(r.hi)})`).join(', ')}.`,
        options: {
          height: 46 + 25 * rows.length,
          marginLeft: 82,
          marginRight: 42,
          marginTop: 8,
          x: { domain: [0, 1], label: '%', tickFormat: percentTicks, ticks: 5 },
          y: { domain: rows.map((r) => r.encoder), label: null, tickSize: 0 },
          marks: [
            Plot.gridX({ ...grid, ticks: 5 }),
            ...rows.map((row) =>
              Plot.ruleY([row], {
                y: 'encoder',
                x1: 'lo',
                x2: 'hi',
                stroke: seriesOf(row.encoder).color,
                strokeWidth: 2,
              }),
            ),
            ...seriesDots(rows, {
              name: (r) => r.encoder,
              x: (r) => r.value,
              y: (r) => r.encoder,
              title: (r) => `${r.encoder}: ${percent(r.value)} (${percent(r.lo)} to ${percent(r.hi)})`,
            }),
            Plot.text(rows, {
              x: (r) => Math.max(r.hi, r.value),
              y: 'encoder',
              text: (r) => (100 * r.value).toFixed(1),
              dx: 9,
              textAnchor: 'start',
              fill: 'currentColor',
            }),
          ],
        },
      }),
    ]
  })
  return figure(
    'Decision accuracy',
    'Share of decision nodes at which refinement keeps or enters exactly what gold asks, with 95 % intervals. An encoder is only good where it lies above always-left and above permuted.',
    undefined,
    charts,
  )
}

/** Decision accuracy against the decision node's level. */
function accuracyByLevelFigure(evaluation: ReportEvaluation): Html {
  const shown = ['frozen', 'fine-tuned', 'permuted', 'always-left'] as const
  const present = new Set<EncoderName>()
  const charts = drawnBenchmarks(evaluation).flatMap((benchmark) => {
    const rows = shown.flatMap((encoder) =>
      (evaluation.evaluation.accuracyByLevel[benchmark]?.[encoder] ?? []).flatMap(({ level, accuracy, decisions }) =>
        accuracy === null ? [] : [{ encoder, level, accuracy, decisions }],
      ),
    )
    if (rows.length === 0) return []
    for (const { encoder } of rows) present.add(encoder)
    const depth = Math.max(...rows.map((r) => r.level))
    return [
      chart({
        title: benchmarkTitle(benchmark),
        description: `Decision accuracy by level: ${rows.map((r) => `${r.encoder}, level ${r.level}: ${percent(r.accuracy)} of ${r.decisions}`).join('; ')}.`,
        options: {
          x: { domain: [0, Math.max(depth, 1)], ticks: depth, tickFormat: levelName, label: null },
          y: { domain: [0, 1], label: '%', tickFormat: percentTicks, ticks: 5 },
          marks: [
            Plot.gridY({ ...grid, ticks: 5 }),
            ...shown.map((encoder) =>
              Plot.lineY(
                rows.filter((r) => r.encoder === encoder),
                { x: 'level', y: 'accuracy', stroke: seriesOf(encoder).color, strokeWidth: 1.75 },
              ),
            ),
            ...seriesDots(rows, {
              name: (r) => r.encoder,
              x: (r) => r.level,
              y: (r) => r.accuracy,
              r: 4,
              title: (r) => `${r.encoder}, ${levelName(r.level)}: ${percent(r.accuracy)} of ${r.decisions} decisions`,
            }),
          ],
        },
      }),
    ]
  })
  return figure(
    'Decision accuracy by level of the tree',
    'The same by the level of the decision node, from the root down. Deep levels have few decision nodes.',
    legend(shown.filter((encoder) => present.has(encoder))),
    charts,
  )
}

const levelName = (level: number): string => (level === 0 ? 'root' : String(level))

/** Medians of score(node) - score(root), nodes with gold and others, frozen against fine-tuned. */
function scoreByLevelFigure(evaluation: ReportEvaluation): Html {
  const encoders = MODEL_ENCODERS.filter((encoder) => encoder !== 'permuted')
  const byBenchmark = drawnBenchmarks(evaluation).flatMap((benchmark) => {
    const rows = encoders.flatMap((encoder) =>
      (evaluation.evaluation.scoreByLevel[benchmark]?.[encoder] ?? []).flatMap(
        ({ level, gold, goldNodes, other, otherNodes }) => [
          { encoder, level, kind: 'gold' as const, value: gold, nodes: goldNodes },
          { encoder, level, kind: 'other' as const, value: other, nodes: otherNodes },
        ],
      ),
    )
    const known = rows.flatMap((row) => (row.value === null ? [] : [{ ...row, value: row.value }]))
    return known.length === 0 ? [] : [{ benchmark, rows: known }]
  })
  const values = byBenchmark.flatMap(({ rows }) => rows.map((r) => r.value))
  const domain = [Math.min(0, ...values), Math.max(0, ...values)]
  const charts = byBenchmark.map(({ benchmark, rows }) =>
    chart({
      title: benchmarkTitle(benchmark),
      description: `Median score relative to the root: ${rows.map((r) => `${r.encoder}, ${r.kind} nodes of level ${r.level}: ${signed(r.value)}`).join('; ')}.`,
      options: {
        x: {
          domain: [0, Math.max(1, ...rows.map((r) => r.level))],
          ticks: Math.max(...rows.map((r) => r.level)),
          tickFormat: levelName,
          label: null,
        },
        y: { domain, nice: true, label: 'score − root', tickFormat: signed, ticks: 5 },
        marks: [
          Plot.gridY({ ...grid, ticks: 5 }),
          Plot.ruleY([0], { stroke: 'currentColor', strokeOpacity: 0.5 }),
          ...encoders.flatMap((encoder) =>
            (['gold', 'other'] as const).flatMap((kind) => {
              const own = rows.filter((r) => r.encoder === encoder && r.kind === kind)
              const { color, symbol } = seriesOf(encoder)
              const start = { level: 0, value: 0 }
              return [
                Plot.lineY([start, ...own], {
                  x: 'level',
                  y: 'value',
                  stroke: color,
                  strokeWidth: 1.75,
                  ...(kind === 'other' && { strokeDasharray: '4 3' }),
                }),
                Plot.dot(own, {
                  x: 'level',
                  y: 'value',
                  symbol,
                  r: 4,
                  stroke: color,
                  strokeWidth: 1.75,
                  fill: kind === 'gold' ? color : 'var(--page)',
                  title: (r: (typeof own)[number]) =>
                    `${encoder}, ${kind} nodes, level ${r.level}: ${signed(r.value)} (${r.nodes} nodes)`,
                }),
              ]
            }),
          ),
        ],
      },
    }),
  )
  const key = html`<div class="legends">${legend(encoders.filter((encoder) => byBenchmark.some(({ rows }) => rows.some((r) => r.encoder === encoder))))}<p class="key-note">solid: nodes with gold · dashed: nodes without</p></div>`
  return figure(
    'Scores by level, relative to the root',
    'Median of score(node) − score(root). Refinement goes where a node scores at least as high as its parent: lines of gold nodes should rise, the others should fall.',
    key,
    charts,
  )
}

const signed = (value: number): string => `${value > 0 ? '+' : value < 0 ? '−' : ''}${Math.abs(value).toFixed(2)}`

/** Recall against tokens kept, of everything that selects evidence. */
function recallFigure(evaluation: ReportEvaluation): Html {
  const { estimates } = evaluation
  const present = new Set<string>()
  const charts = drawnBenchmarks(evaluation).flatMap((benchmark) => {
    const ownNames = new Map(
      (Object.entries(SELECTION_ROWS) as [SelectionRow, string][]).map(([row, name]) => [
        row,
        row.startsWith('canopy') ? name : row,
      ]),
    )
    const selected = (Object.keys(SELECTION_ROWS) as SelectionRow[]).map((row) => ({
      name: ownNames.get(row)!,
      metrics: estimates.selection[benchmark]?.[row],
    }))
    const encoders = ENCODERS.map((name) => ({
      name: name as string,
      metrics: estimates.benchmarks[benchmark]?.[name],
    }))
    const rows = [...selected, ...encoders].flatMap(({ name, metrics }) => {
      const tokens = metrics?.retained_tokens?.value
      const recall = metrics?.gold_recall?.value
      return typeof tokens === 'number' && typeof recall === 'number' ? [{ name, tokens, recall }] : []
    })
    // What never descends and what keeps the whole item are one point.
    const hasItem = rows.some((r) => r.name === 'gold-item')
    const shown = rows.filter(
      (r, i) => rows.findIndex((other) => other.name === r.name) === i && !(hasItem && r.name === 'keep-root'),
    )
    if (shown.length === 0) return []
    for (const { name } of shown) present.add(name)
    return [
      chart({
        title: benchmarkTitle(benchmark),
        description: `Recall of gold leaves at tokens kept: ${shown.map((r) => `${r.name} ${percent(r.recall)} at ${percent(r.tokens)}`).join('; ')}.`,
        options: {
          height: 280,
          marginBottom: 36,
          x: {
            domain: [0, 1],
            label: 'tokens kept, %',
            labelAnchor: 'center',
            labelArrow: 'none',
            tickFormat: percentTicks,
            ticks: 5,
          },
          y: { domain: [0, 1], label: 'recall, %', tickFormat: percentTicks, ticks: 5 },
          marks: [
            Plot.gridY({ ...grid, ticks: 5 }),
            Plot.gridX({ ...grid, ticks: 5 }),
            ...seriesDots(
              [...shown].sort((a, b) => Number(seriesOf(a.name).solid) - Number(seriesOf(b.name).solid)),
              {
                name: (r) => r.name,
                x: (r) => r.tokens,
                y: (r) => r.recall,
                r: 5.5,
                title: (r) => `${r.name}: recall ${percent(r.recall)}, tokens kept ${percent(r.tokens)}`,
              },
            ),
          ],
        },
      }),
    ]
  })
  const order = [
    'fine-tuned',
    'frozen',
    'permuted',
    'always-left',
    'constant',
    'keep-root',
    'gold-item',
    'gold-span',
    'flat-leaf',
    'flat-node',
  ]
  return figure(
    'Tokens kept against recall',
    'Means over gold items with two or more leaves. Up and to the left is better: the gold span keeps exactly the evidence, the gold item keeps everything.',
    legend(
      order.filter((name) => present.has(name)),
      {
        'fine-tuned': 'CANOPY fine-tuned',
        frozen: 'CANOPY frozen',
        'gold-item': 'gold item (keep-root)',
        'gold-span': 'gold span',
        'flat-leaf': 'flat leaf',
        'flat-node': 'flat node',
      },
    ),
    charts,
  )
}

/** Recall against tokens kept over margins, of every encoder with scores; the rule and the measured margin marked. */
function marginFigure({ margins, ...evaluation }: ReportEvaluation): Html {
  const { margin: measured, split } = evaluation.evaluation
  const present = new Set<EncoderName>()
  const drawn = drawnBenchmarks({ margins, ...evaluation })
  // The beginning of the scales of all charts, a tick that no point lies below.
  const values = margins.flatMap(({ benchmark, metrics: { gold_recall, retained_tokens } }) =>
    drawn.includes(benchmark) ? [gold_recall?.value ?? 1, retained_tokens?.value ?? 1] : [],
  )
  const least = Math.floor(Math.min(0.8, ...values) * 10) / 10
  const charts = drawn.flatMap((benchmark) => {
    const points = margins.flatMap(({ benchmark: name, encoder, margin, metrics }) => {
      const { gold_recall: recall, retained_tokens: tokens } = metrics
      if (name !== benchmark || typeof recall?.value !== 'number' || typeof tokens?.value !== 'number') return []
      const { value, lo, hi } = recall
      return [{ encoder, margin, tokens: tokens.value, recall: value, lo: lo ?? value, hi: hi ?? value }]
    })
    if (points.length === 0) return []
    const encoders = MODEL_ENCODERS.filter((encoder) => points.some((p) => p.encoder === encoder))
    for (const encoder of encoders) present.add(encoder)
    const rules = points.filter((p) => p.margin === 0)
    const main = encoders.includes('fine-tuned') ? 'fine-tuned' : 'frozen'
    const chosen = points.filter((p) => p.encoder === measured?.encoder && p.margin === measured.margin && p.margin > 0)
    const told = (p: (typeof points)[number]): string =>
      `${p.encoder}, margin ${p.margin}: recall ${percent(p.recall)} (${percent(p.lo)} to ${percent(p.hi)}), tokens kept ${percent(p.tokens)}`
    return [
      chart({
        title: benchmarkTitle(benchmark),
        description: `Recall of gold leaves and tokens kept over margins. ${[...rules, ...chosen].map(told).join('; ')}.`,
        options: {
          height: 300,
          marginBottom: 36,
          x: {
            domain: [least, 1],
            label: 'tokens kept, %',
            labelAnchor: 'center',
            labelArrow: 'none',
            tickFormat: percentTicks,
            ticks: 5,
          },
          y: { domain: [least, 1], label: 'recall, %', tickFormat: percentTicks, ticks: 5 },
          marks: [
            Plot.gridY({ ...grid, ticks: 5 }),
            Plot.gridX({ ...grid, ticks: 5 }),
            Plot.link([0], {
              x1: least,
              y1: least,
              x2: 1,
              y2: 1,
              stroke: 'currentColor',
              strokeOpacity: 0.35,
              strokeDasharray: '2 4',
            }),
            Plot.areaY(
              points.filter((p) => p.encoder === main),
              { x: 'tokens', y1: 'lo', y2: 'hi', fill: seriesOf(main).color, fillOpacity: 0.14, sort: 'tokens' },
            ),
            ...encoders.map((encoder) =>
              Plot.line(
                points.filter((p) => p.encoder === encoder),
                {
                  x: 'tokens',
                  y: 'recall',
                  stroke: seriesOf(encoder).color,
                  strokeWidth: 1.75,
                  ...(encoder === 'permuted' && { strokeDasharray: '4 3' }),
                },
              ),
            ),
            ...encoders.map((encoder) =>
              Plot.dot(
                points.filter((p) => p.encoder === encoder && p.margin > 0),
                { x: 'tokens', y: 'recall', r: 1.6, fill: seriesOf(encoder).color, title: told },
              ),
            ),
            ...seriesDots([{ tokens: 1, recall: 1 }], {
              name: () => 'keep-root',
              x: (p) => p.tokens,
              y: (p) => p.recall,
              r: 5.5,
              title: () => 'keep-root: the whole item, recall 100 %, tokens kept 100 %',
            }),
            ...seriesDots(rules, {
              name: (p) => p.encoder,
              x: (p) => p.tokens,
              y: (p) => p.recall,
              r: 5.5,
              title: told,
            }),
            Plot.dot(chosen, {
              x: 'tokens',
              y: 'recall',
              r: 7,
              stroke: 'currentColor',
              strokeWidth: 1.75,
              fill: seriesOf(main).color,
              fillOpacity: 0.35,
              title: told,
            }),
            Plot.text(chosen, {
              x: 'tokens',
              y: 'recall',
              text: (p: (typeof points)[number]) => `margin ${p.margin}`,
              dx: 9,
              dy: 12,
              textAnchor: 'start',
              fill: 'currentColor',
              stroke: 'var(--page)',
              strokeWidth: 4,
            }),
          ],
        },
      }),
    ]
  })
  const key = html`<div class="legends">${legend(
    [...MODEL_ENCODERS.filter((encoder) => present.has(encoder)), 'keep-root'],
    {
      frozen: 'frozen, margin 0',
      'fine-tuned': 'fine-tuned, margin 0',
      permuted: 'permuted, margin 0',
      'keep-root': 'keep-root: everything',
    },
  )}<p class="key-note">${measured !== undefined && measured.margin > 0 && 'ring: the margin that was picked or stated · '}band: 95 % interval of the recall · dotted line: as much dropped at random</p></div>`
  return figure(
    'Recall and tokens over margins',
    `Each line starts at the rule, margin 0, and ends where nothing is dropped: with a larger margin, refinement also goes into children that score a little below their parent. Means over gold items with two or more leaves. All other figures, and the replay below, are of margin 0.`,
    html`${measured && marginSentences(measured, split).map((sentence) => html`<p>${sentence}</p>`)}${key}`,
    charts,
  )
}
