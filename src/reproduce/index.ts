export { planReproduction, type ReproduceOptions, type ReproduceResult, reproduce } from './reproduce.ts'
export type { Step, StepEvent, Verdict } from './step.ts'
export { trainingTexts } from './steps/encoder.ts'
