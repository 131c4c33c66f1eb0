import type { Refinement, SelfCheck } from './self-check.ts'

/** Points of decision accuracy (per cent of the decisions) that an export may lose against the trained encoder. */
export const MOST_LOST = 2

/** How seldom chance may look like a loss that counts as one. */
const SIGNIFICANCE = 0.05
/** The fewest decisions that can be lost and not be chance: 2⁻⁵ < 0.05. */
const LEAST_TOLD = 5
/** Where the embeddings are as close as this, decisions need not tell that the export is what was trained. */
const SAME = 0.9999

/**
 * What became of decision accuracy in an export. `lost`: it fell by more than is allowed, and by more than chance explains, so that
 * the export is not to be used. `doubtful`: nothing tells that it did not; `why` says in a sentence what is missing.
 */
export interface AccuracyLoss {
  verdict: 'kept' | 'lost' | 'doubtful'
  /** Points that it fell by, negative where it rose; absent without decisions. */
  points?: number
  /** Points that it may fall by. */
  allowed: number
  /** Chance of as many lost decisions, were each that differs as likely to become right as wrong; absent without decisions. */
  chance?: number
  why?: string
}

/**
 * Compares the decisions of an export with those of the trained encoder. Both decide on the same held-out items, so that only the
 * decisions count on which they differ: a loss over the bound is one when a fair coin would seldom give as uneven a split (one-sided
 * sign test, 5 %). With few decisions nothing but a great loss can be told; that is said where the embeddings differ, and is no
 * failure.
 *
 * @param allowed points of decision accuracy, see {@link MOST_LOST}
 */
export function accuracyLoss(
  { refinement, minCosine }: Pick<SelfCheck, 'refinement' | 'minCosine'>,
  allowed: number,
): AccuracyLoss {
  const close = minCosine >= SAME
  if (refinement === undefined || refinement.decisions === 0)
    return close
      ? { verdict: 'kept', allowed }
      : { verdict: 'doubtful', allowed, why: 'no held-out decisions tell what it costs' }
  const { decisions, lost, gained } = refinement
  const points = (100 * (lost - gained)) / decisions
  const chance = signTest(lost, gained)
  const found = { points, allowed, chance }
  if (points > allowed)
    return chance < SIGNIFICANCE
      ? { verdict: 'lost', ...found, why: `${fallText(refinement, points)}; at most ${allowed} are allowed` }
      : {
          verdict: 'doubtful',
          ...found,
          why: `${fallText(refinement, points)}, more than the ${allowed} that are allowed, but on so few that chance explains it (sign test, p = ${chance.toFixed(2)})`,
        }
  const told = (100 * LEAST_TOLD) / decisions
  // 100 points are all that there is to lose
  if (close || told <= allowed || allowed >= 100) return { verdict: 'kept', ...found }
  const loss = told > 100 ? 'no loss can be' : `a loss of less than ${told.toFixed(1)} points cannot be`
  const takes =
    allowed === 0 ? '' : `; for the ${allowed} that are allowed it takes ${Math.ceil((100 * LEAST_TOLD) / allowed)}`
  return {
    verdict: 'doubtful',
    ...found,
    why: `on ${decisions} held-out ${decisions === 1 ? 'decision' : 'decisions'} ${loss} told from chance${takes}`,
  }
}

function fallText({ trained, exported, decisions, lost, gained }: Refinement, points: number): string {
  const percent = (x: number): string => (100 * x).toFixed(1)
  return `decision accuracy falls by ${points.toFixed(1)} points, from ${percent(trained.decisionAccuracy)} to ${percent(exported.decisionAccuracy)} % of ${decisions} held-out decisions (${lost} become wrong, ${gained} right)`
}

/** P(at least `lost` heads) of lost + gained tosses of a fair coin. */
export function signTest(lost: number, gained: number): number {
  const n = lost + gained
  // in logarithms: 2⁻ⁿ is zero from 1 075 tosses on
  let logTerm = -n * Math.LN2
  let sum = 0
  for (let heads = 0; heads <= n; heads++) {
    if (heads >= lost) sum += Math.exp(logTerm)
    logTerm += Math.log((n - heads) / (heads + 1))
  }
  return Math.min(1, sum)
}
