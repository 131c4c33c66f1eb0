import { duration } from '../support/progress.ts'
import type { MetricsLine, TrainResult, TrainSettings } from '../train/index.ts'
import { sendEvent } from './events.ts'
import type { Output } from './output.ts'
import { sharedTokensText } from './shared-tokens.ts'

/**
 * Shows each step: averages over the last ones, and the time left as the whole of this process's steps suggests it.
 *
 * @param start what step 0 is
 */
export function reporter(
  out: Output,
  start = 'frozen encoder',
): (line: MetricsLine, run: { totalSteps: number }) => void {
  const recent: MetricsLine[] = []
  const started = performance.now()
  let steps = 0
  return (line, { totalSteps }) => {
    sendEvent({ event: 'step', totalSteps, metrics: line })
    if (line.step === 0) {
      if (line.validation !== undefined) out.line(`${start}: ${validationText(line.validation)}`)
      return
    }
    steps++
    recent.push(line)
    if (recent.length > 20) recent.shift()
    const sum = (pick: (l: MetricsLine) => number | undefined): number => recent.reduce((n, l) => n + (pick(l) ?? 0), 0)
    const seconds = sum((l) => l.seconds)
    const perStep = (performance.now() - started) / 1000 / steps
    const loss = (sum((l) => l.loss) / recent.length).toFixed(4)
    const left = `${duration((totalSteps - line.step) * perStep)} left`
    const note = [
      `loss ${loss}`,
      `pairs right ${percent(sum((l) => (l.pair_accuracy ?? 0) * (l.pairs ?? 0)) / sum((l) => l.pairs))}`,
      `${Math.round(sum((l) => l.tokens) / seconds)} tokens/s`,
      `${(sum((l) => l.pairs) / seconds).toFixed(1)} pairs/s`,
      left,
    ].join('  ')
    out.progress({ phase: 'training', done: line.step, total: totalSteps, note })
    if (line.skipped !== undefined) out.warn(`step ${line.step} was not applied: ${line.skipped}.`)
    if (line.validation !== undefined)
      out.line(
        `step ${line.step} of ${totalSteps}, epoch ${line.epoch}: training loss ${loss}; ${validationText(line.validation)}${line.step < totalSteps ? `; ${left}` : ''}`,
      )
  }
}

type ValidationMetrics = NonNullable<MetricsLine['validation']>

function validationText(v: ValidationMetrics): string {
  const perBenchmark = Object.entries(v.benchmarks)
  const parts =
    perBenchmark.length > 1 ? ` (${perBenchmark.map(([name, x]) => `${name} ${percent(x)}`).join(', ')})` : ''
  return `validation decisions ${percent(v.decision_accuracy)}${parts}, edges ${percent(v.edge_accuracy)}, pairs ${percent(v.pair_accuracy)}, loss ${v.loss.toFixed(4)}`
}

/** What selects an adapter, in words. */
const SELECTIONS: Record<TrainSettings['selection'], string> = {
  decision_accuracy: 'decision accuracy',
  mean_decision_accuracy: 'mean decision accuracy of the benchmarks',
  edge_accuracy: 'edge accuracy',
  pair_accuracy: 'pair accuracy',
  loss: 'loss',
}

/** Says what a run came to, going by the metric that selected its adapter. */
export function printResult(out: Output, result: TrainResult, selection: TrainSettings['selection']): void {
  const { selected, frozen, start } = result
  const [first, name] = start === undefined ? [frozen, 'frozen'] : [start, 'at the start']
  const shown = (metrics: ValidationMetrics): string =>
    selection === 'loss' ? metrics.loss.toFixed(4) : percent(metrics[selection])
  if (result.alreadyFinished) out.line('This run is already finished; nothing is left to do.')
  if (selected.validation !== undefined && first !== undefined)
    out.line(
      `Selected step ${selected.step} of ${result.steps}: validation ${SELECTIONS[selection]} ${shown(selected.validation)}, ${name} ${shown(first)}.`,
    )
  else out.line(`Kept the adapter of step ${selected.step}.`)
  if (result.skipped > 0) out.line(`${result.skipped} steps were not applied; metrics.jsonl says why.`)
  const { seconds, tokens, computedTokens, pairs, peakMemory } = result.work
  if (seconds > 0)
    out.line(
      `${Math.round(tokens / seconds)} tokens/s, ${(pairs / seconds).toFixed(1)} pairs/s, peak memory ${(peakMemory / 2 ** 30).toFixed(2)} GiB.`,
    )
  const shared = sharedTokensText({ computed: computedTokens, total: tokens })
  if (shared !== undefined) out.line(shared)
  out.line(`Adapter: ${result.adapter}`)
  out.json(result)
}

function percent(x: number): string {
  return `${(100 * x).toFixed(1)} %`
}
