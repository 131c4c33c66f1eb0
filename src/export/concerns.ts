import type { SelfCheck } from './self-check.ts'
import type { ExportType } from './variants.ts'

/** What rounding should leave of refinement: the share of items of which the same is kept, and what of decision accuracy it may cost. */
const LEAST_SAME = 0.9
const MOST_LOST = 0.05
/** Without held-out items: rounding to 8 bits leaves more than this of the cosine as a rule. */
const LEAST_COSINE = 0.98

const percent = (x: number): string => `${(100 * x).toFixed(1)} %`

/**
 * What gives reason to measure an export before it is used, in sentences, though it computes what its type should ({@link failures}):
 * weights in few bits are another encoder where little is left of its decisions. The bounds of the other types leave no room for that.
 */
export function concerns(type: ExportType, { refinement, minCosine }: SelfCheck): string[] {
  if (type === 'fp32' || type === 'fp16') return []
  if (refinement === undefined)
    return minCosine < LEAST_COSINE
      ? [
          `its smallest cosine to the trained encoder is ${minCosine.toFixed(3)}, and no held-out items tell what it costs`,
        ]
      : []
  const { trained, exported, sameKept, instances } = refinement
  const found: string[] = []
  if (sameKept < LEAST_SAME)
    found.push(`it keeps the same ranges of only ${Math.round(sameKept * instances)} of ${instances} held-out items`)
  // NaN, where there are no decisions, is no loss
  if (trained.decisionAccuracy - exported.decisionAccuracy > MOST_LOST)
    found.push(
      `its decision accuracy on them is ${percent(exported.decisionAccuracy)} where the trained encoder has ${percent(trained.decisionAccuracy)}`,
    )
  return found
}
