import type { TrainSettings } from '../settings.ts'
import type { ValidationMetrics } from './metrics.ts'
import type { RunPlan } from './plan.ts'

/** Fewer optimizer steps than this hardly move LoRA matrices, half of which begin at zero. */
const FEW_STEPS = 20

/** Says when epochs come to too few steps; a number of steps that was asked for is its user's. */
export function warnOfFewSteps(totalSteps: number, { steps }: TrainSettings, warn: (message: string) => void): void {
  if (steps !== null || totalSteps >= FEW_STEPS) return
  warn(
    `${totalSteps} ${totalSteps === 1 ? 'step in all is' : 'steps in all are'} few, so that the adapter may hardly change a decision: raise --epochs, or lower --batch-size.`,
  )
}

/** With fewer decisions than this in the validation part, one more or less that comes out right is over 3 % of them. */
const FEW_DECISIONS = 30

/** Says when the validation part is too small to tell steps apart. */
export function warnOfFewDecisions(
  validation: ValidationMetrics | undefined,
  { validationShare }: TrainSettings,
  warn: (message: string) => void,
): void {
  if (validation === undefined || validation.decisions >= FEW_DECISIONS) return
  const { decisions } = validation
  warn(
    `The validation part has only ${decisions} ${decisions === 1 ? 'decision' : 'decisions'}, so that chance selects the adapter: take more data, or a larger share of them (validationShare is ${validationShare}).`,
  )
}

/** Says when the adapter that a run begins from has seen what is to select the run's own. */
export async function warnOfSeen({ start, set, split }: RunPlan, warn: (message: string) => void): Promise<void> {
  if (start?.trainingData === undefined || split.validation.length === 0) return
  const { questions, of } = await set.seen(start.trainingData, split.validation)
  if (questions > 0)
    warn(
      `The adapter that the run begins from was trained or selected on ${questions} of the ${of.questions} questions of the validation part, which may so speak for it and against what is learned from new data. Judge the result on a split that neither has seen ("canopy evaluate", "canopy compare").`,
    )
}
