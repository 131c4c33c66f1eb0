export { type HeldOutInstance, type HeldOutPart, heldOut, heldOutInstances, heldOutParts } from './data/held-out.ts'
export { withUnitLength } from './engine/graph.ts'
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
export { largestThatFits } from './memory/fit.ts'
export { type MemoryPlan, memoryPlan, type PhaseMemory, type PlannedDevice, type RunSize } from './memory/plan.ts'
export { isRun, type RunConfig, runPaths } from './run/folder.ts'
export { lockRun } from './run/lock.ts'
export { cutMetrics, type MetricsLine, openMetrics, type ValidationMetrics } from './run/metrics.ts'
export { type TrainOptions, type TrainResult, train } from './run/run.ts'
export { machine, versions } from './run/versions.ts'
export { requireStart } from './run/warm-start.ts'
export { resolveSettings, statedSettings, type TrainSettings, type TrainSettingsInput } from './settings.ts'
export {
  type AdamWState,
  accumulate,
  adamWStep,
  clipFactor,
  globalNorm,
  initialAdamW,
  type Tensors,
  zerosLike,
} from './step/optimizer.ts'
export { learningRateAt, type ScheduleSettings } from './step/schedule.ts'
