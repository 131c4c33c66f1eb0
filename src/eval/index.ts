export { percentileInterval, quantile, resampleSums } from './bootstrap.ts'
export { type BlindControl, blindScores, permuteQuestions } from './controls.ts'
export {
  type Accuracy,
  accuracyOf,
  countPairs,
  type JudgedDecision,
  judgeDecisions,
  type PairCount,
  type ScoredTree,
} from './decisions.ts'
export { type Estimate, type EstimateOptions, type Estimates, estimate, type MetricEstimates } from './estimates.ts'
export { type EvaluateOptions, type EvaluationResult, evaluate, type TextEmbedder } from './evaluate.ts'
export type { LookCount } from './looks.ts'
export { type InstanceSums, isDefined, METRICS, type Metric, measureInstance, questionSums } from './metrics.ts'
export {
  addTrainingQuestion,
  createOverlapCounter,
  emptyTrainingData,
  type Overlap,
  readTrainingData,
  TRAINING_DATA_FILE,
  type TrainingData,
  writeTrainingData,
} from './overlap.ts'
export {
  checkInstance,
  ENCODERS,
  type EncoderName,
  MODEL_ENCODERS,
  type ModelEncoder,
  type ScoredInstance,
  scoreOf,
} from './scored.ts'
export { addDenominators, addInstance, type ClusterSums, emptySums } from './sums.ts'
export {
  type BenchmarkCounts,
  csvTable,
  type Evaluation,
  looksText,
  metricsJson,
  overlapText,
  summaryMarkdown,
  terminalTable,
} from './tables.ts'
