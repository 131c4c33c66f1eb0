import { createHash } from 'node:crypto'
import type { Bundle } from './bundle.ts'
import type { ReportEvaluation } from './evaluation.ts'
import type { Evidence } from './evidence.ts'
import { type Html, html, inlineJson, trusted } from './html.ts'
import type { ReportInputs } from './inputs.ts'
import { resultFigures } from './result-figures.ts'
import { overview, resultTables } from './tables.ts'
import type { ReportRun } from './training.ts'
import { trainingFigures } from './training-figures.ts'

/** Stands in the first lines of every report. */
export const GENERATOR = 'canopy report'

/**
 * The page. It needs no network: its security policy lets nothing in but the one script and the one style sheet that it holds, by
 * their hashes, and pictures that it holds. The policy also refuses to make HTML of strings, so that no text of an item can
 * become markup.
 */
export function reportPage(inputs: ReportInputs, evidence: Evidence, { script, style }: Bundle): string {
  const policy = [
    "default-src 'none'",
    `script-src '${hashOf(script)}'`,
    `style-src '${hashOf(style)}'`,
    'img-src data:',
    "base-uri 'none'",
    "form-action 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
  ].join('; ')
  const title = [...new Set([...inputs.runs, ...inputs.evaluations].map(({ name }) => name))].join(', ')
  const hasQuestions = evidence.data.questions.length > 0
  const links = [
    ...(inputs.evaluations.length > 0 ? [['results', 'Results']] : []),
    ['evidence', 'Evidence'],
    ...(inputs.runs.length > 0 ? [['training', 'Training']] : []),
    ...(inputs.evaluations.length > 0 ? [['tables', 'Tables']] : []),
  ]
  const page = html`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="generator" content="${GENERATOR}">
<meta http-equiv="Content-Security-Policy" content="${policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>${title} · CANOPY report</title>
<style>${trusted(style)}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<header class="top">
<p class="kind">CANOPY report</p>
<h1>${title}</h1>
<nav aria-label="Sections"><ul>${links.map(([id, text]) => html`<li><a href="#${id}">${text}</a></li>`)}</ul></nav>
</header>
<main id="main">
${inputs.evaluations.length > 0 && resultsSection(inputs.evaluations)}
${evidenceSection(evidence)}
${inputs.runs.length > 0 && trainingSection(inputs.runs)}
${inputs.evaluations.length > 0 && tablesSection(inputs.evaluations)}
</main>
${
  hasQuestions &&
  html`<script type="application/json" id="canopy-data">${trusted(inlineJson(evidence.data))}</script>
<script>${trusted(script)}</script>`
}
</body>
</html>
`
  return page.text
}

/** Source expression of a security policy for an inline script or style. */
function hashOf(text: string): string {
  return `sha256-${createHash('sha256').update(text).digest('base64')}`
}

function resultsSection(evaluations: readonly ReportEvaluation[]): Html {
  return html`<section id="results" aria-labelledby="results-title">
<h2 id="results-title">Results</h2>
${evaluations.map(
  (evaluation) => html`${evaluations.length > 1 && html`<h3 class="evaluation">${evaluation.name}</h3>`}
${overview(evaluation)}
${provenance(evaluation)}
${resultFigures(evaluation)}`,
)}
</section>`
}

function provenance({ evaluation }: ReportEvaluation): Html {
  const { datasets, split, encoders, branching, title, tableFormat, tokenizer, resamples, seed, looks, notes } =
    evaluation
  const facts: [string, string | undefined][] = [
    ['Data', `${datasets.map(({ name, hash }) => `${name} (${hash.slice(0, 12)})`).join(', ')}; split ${split}`],
    ['Query encoder', nameOf(encoders.query)],
    ['Frozen', nameOf(encoders.frozen)],
    ['Fine-tuned', nameOf(encoders['fine-tuned'])],
    [
      'Nodes',
      [
        `branching ${branching}`,
        title === undefined ? undefined : title ? 'with title' : 'without title',
        tableFormat === undefined ? undefined : `tables as ${tableFormat}`,
      ]
        .filter((part) => part !== undefined)
        .join(', '),
    ],
    ['Tokens', tokenizer],
    ['Intervals', `95 % bootstrap over sources, ${resamples} resamples, seed ${seed}`],
    ['Looks', looks === undefined ? undefined : `configuration ${looks} of its run that was evaluated on this split`],
    ['Notes', notes.length === 0 ? undefined : notes.join(' ')],
  ]
  const known = facts.filter((fact): fact is [string, string] => fact[1] !== undefined)
  return html`<details class="provenance"><summary>What was measured, on what, and how</summary><dl>${known.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl></details>`
}

const nameOf = (encoder: { name: string; fingerprint: string } | undefined): string | undefined =>
  encoder && `${encoder.name} (${encoder.fingerprint.slice(0, 12)})`

function evidenceSection({ data, drawn, notes }: Evidence): Html {
  const total = [...drawn.values()].reduce((sum, { of }) => sum + of, 0)
  const shown = data.questions.length
  const by = [...drawn]
    .map(([row, { shown, of }]) => `${shown === of ? shown : `${shown} of ${of}`} of ${row}`)
    .join(', ')
  return html`<section id="evidence" aria-labelledby="evidence-title">
<h2 id="evidence-title">Evidence</h2>
${shown > 0 && html`<p class="lead">${shown === total ? `All ${shown} questions` : `${shown} of ${total} questions, drawn at random (seeded) and evenly over benchmarks`}: ${by}. Pick one to see what refinement does with its items.</p>`}
${notes.map((note) => html`<p class="note">${note}</p>`)}
${shown === 0 && notes.length === 0 && html`<p class="note">No evaluation was given, so there are no questions to show.</p>`}
${shown > 0 && html`<div id="viewer"><p class="note">This part needs a script, which this page holds; it seems to be switched off.</p></div>`}
</section>`
}

function trainingSection(runs: readonly ReportRun[]): Html {
  const withCurves = runs.filter(({ lines }) => lines.length > 0)
  const skipped = runs.flatMap(({ name, lines }) => {
    const count = lines.filter((line) => line.skipped).length
    return count === 0 ? [] : [`${name}: ${count} steps were not applied, their loss or gradient not being finite.`]
  })
  return html`<section id="training" aria-labelledby="training-title">
<h2 id="training-title">Training</h2>
${runs.map(
  ({ name, encoder, data, instances, steps, seed }) =>
    html`<p class="lead">${runs.length > 1 && `${name}: `}${encoder} on ${data.map(({ dataset }) => dataset).join(', ')}; ${instances.train} instances, ${instances.validation} for validation; ${steps} steps, seed ${seed}.</p>`,
)}
${skipped.map((note) => html`<p class="note">${note}</p>`)}
${withCurves.length > 0 ? trainingFigures(withCurves) : html`<p class="note">There is no metrics.jsonl yet.</p>`}
<p class="caption">Loss of training steps is a running mean; validation looks at a part of the training data that is held out. Step 0 is the frozen encoder.</p>
${runs.map(
  ({ name, settings }) =>
    html`<details class="provenance"><summary>Settings${runs.length > 1 && ` of ${name}`}</summary><dl>${Object.entries(settings).map(([key, value]) => html`<dt>${key}</dt><dd>${typeof value === 'string' ? value : JSON.stringify(value)}</dd>`)}</dl></details>`,
)}
</section>`
}

function tablesSection(evaluations: readonly ReportEvaluation[]): Html {
  return html`<section id="tables" aria-labelledby="tables-title">
<h2 id="tables-title">Tables</h2>
${evaluations.map((evaluation) => html`${evaluations.length > 1 && html`<h3 class="evaluation">${evaluation.name}</h3>`}${resultTables(evaluation)}`)}
</section>`
}
