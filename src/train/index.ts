export { type HeldOutInstance, heldOut, heldOutInstances } from './data/held-out.ts'
export { Interrupted } from './loop.ts'
export { hashLossModule } from './loss/files.ts'
export {
  isLossModule,
  type Loss,
  type LossInput,
  type LossInstance,
  type LossNode,
  type LossOutput,
  type LossPair,
} from './loss/module.ts'
export { type RunConfig, runPaths } from './run/folder.ts'
export { lockRun } from './run/lock.ts'
export type { MetricsLine, ValidationMetrics } from './run/metrics.ts'
export { type TrainOptions, type TrainResult, train } from './run/run.ts'
export { machine, versions } from './run/versions.ts'
export { resolveSettings, type TrainSettings, type TrainSettingsInput } from './settings.ts'
