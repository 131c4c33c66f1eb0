export interface ScheduleSettings {
  learningRate: number
  /** A share of all steps when below 1, a number of steps otherwise. */
  warmup: number
  schedule: 'cosine' | 'linear' | 'constant'
}

/** Number of warm-up steps. */
export function warmupSteps(warmup: number, totalSteps: number): number {
  return Math.min(totalSteps, warmup < 1 ? Math.round(warmup * totalSteps) : Math.round(warmup))
}

/**
 * The learning rate of optimizer step `step` (from 1): linear from 0 to the peak over the warm-up, which the last warm-up
 * step reaches; then down to 0 along half a cosine or a line, which would be reached one step after the last.
 */
export function learningRateAt(step: number, totalSteps: number, settings: ScheduleSettings): number {
  const { learningRate, schedule } = settings
  const warmup = warmupSteps(settings.warmup, totalSteps)
  if (step <= warmup) return (learningRate * step) / warmup
  if (schedule === 'constant') return learningRate
  const progress = Math.min(1, (step - warmup - 1) / Math.max(1, totalSteps - warmup))
  return learningRate * (schedule === 'linear' ? 1 - progress : 0.5 * (1 + Math.cos(Math.PI * progress)))
}
