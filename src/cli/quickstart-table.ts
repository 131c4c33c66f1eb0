import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { z } from 'zod'
import { parseWith } from '../data/index.ts'
import { ENCODERS, type EncoderName, percent, textTable, withInterval } from '../eval/index.ts'

const estimate = z.object({
  value: z.number().nullable(),
  lo: z.number().nullable(),
  hi: z.number().nullable(),
  n: z.int(),
})
const estimates = z.record(z.string(), estimate)
type Estimate = z.infer<typeof estimate>

const schema = z.looseObject({
  pooled: z.record(z.string(), estimates),
  differences: z.looseObject({ pooled: z.record(z.string(), estimates) }),
})

/** The figures of an evaluation with a fine-tuned encoder, in the shape of `metrics.json`. */
export type QuickstartMetrics = z.infer<typeof schema>

/** Reads `metrics.json` of an evaluation's folder. */
export async function readQuickstartMetrics(folder: string): Promise<QuickstartMetrics> {
  const file = join(folder, 'metrics.json')
  return parseWith(schema, JSON.parse(await readFile(file, 'utf8')), { file }, 'file of results')
}

/** The control with the highest decision accuracy: a policy that never reads the question, or reads another one. */
export function bestControl({ pooled }: QuickstartMetrics): EncoderName | undefined {
  const accuracy = (name: EncoderName): number => pooled[name]?.decision_accuracy?.value ?? Number.NEGATIVE_INFINITY
  return ENCODERS.filter((name) => name !== 'frozen' && name !== 'fine-tuned' && pooled[name] !== undefined).sort(
    (a, b) => accuracy(b) - accuracy(a),
  )[0]
}

/** What the interval of a paired difference allows to say. */
function verdict(difference: Estimate | undefined): string {
  const { lo = null, hi = null } = difference ?? {}
  if (lo === null || hi === null) return 'there are too few subjects for an interval'
  if (lo > 0) return 'the paired interval lies above 0'
  if (hi < 0) return 'the paired interval lies below 0, so that fine-tuning is worse'
  if (lo === 0 && hi === 0)
    return 'both decide alike on every subject, as where no step of training was better than none'
  return 'the paired interval reaches 0, so that nothing is shown'
}

/** What a paired difference comes to: a word each for above 0, below 0, reaching 0, equal everywhere, and too few subjects. */
function meaning(difference: Estimate | undefined, words: { above: string; below: string; alike: string }): string {
  const { lo = null, hi = null } = difference ?? {}
  if (lo === null || hi === null) return 'too few subjects for an interval'
  if (lo > 0) return words.above
  if (hi < 0) return words.below
  return lo === 0 && hi === 0 ? words.alike : 'the paired interval reaches 0, so that nothing is shown'
}

/** What fine-tuning costs in evidence and saves in tokens, or the other way round. */
function priceSentence({ differences }: QuickstartMetrics): string {
  const { gold_recall: recall, retained_tokens: kept } = differences.pooled['fine-tuned - frozen'] ?? {}
  const evidence = meaning(recall, {
    above: 'more of the evidence is kept',
    below: 'its cost: evidence is lost that the frozen encoder keeps',
    alike: 'both keep the same evidence',
  })
  const tokens = meaning(kept, {
    above: 'its cost: a reader gets more to read',
    below: 'what it saves a reader',
    alike: 'both keep as many',
  })
  return `Fine-tuned minus frozen: gold recall ${withInterval(recall, true)} points (${evidence}), tokens kept ${withInterval(kept, true)} points (${tokens}).`
}

/** Frozen, fine-tuned and every control, a row each, a sentence on the two differences that matter, and one on their price. */
export function quickstartTable(metrics: QuickstartMetrics): string {
  const { pooled } = metrics
  const difference = (name: string) => metrics.differences.pooled[`fine-tuned - ${name}`]?.decision_accuracy
  const table = textTable(
    ['in %', 'decision accuracy', 'fine-tuned is above by', 'tokens kept', 'gold recall'],
    ENCODERS.filter((name) => pooled[name] !== undefined).map((name) => [
      name,
      withInterval(pooled[name]?.decision_accuracy),
      withInterval(difference(name), true),
      percent(pooled[name]?.retained_tokens?.value),
      percent(pooled[name]?.gold_recall?.value),
    ]),
  )
  const best = bestControl(metrics)
  const against = [{ name: 'frozen', text: 'the frozen encoder' }].concat(
    best === undefined ? [] : [{ name: best, text: `${best}, the best control` }],
  )
  const sentences = against.map(({ name, text }) => {
    const found = difference(name)
    return `Fine-tuned against ${text}: ${withInterval(found, true)} points; ${verdict(found)}.`
  })
  const decisions = pooled['fine-tuned']?.decision_accuracy?.n ?? 0
  return [
    table,
    '',
    `${decisions} decisions. Controls never read the question (always-left, keep-root, constant) or read another one (permuted).`,
    ...sentences,
    priceSentence(metrics),
  ].join('\n')
}
