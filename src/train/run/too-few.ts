import type { TrainSettings } from '../settings.ts'
import type { ValidationMetrics } from './metrics.ts'

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
