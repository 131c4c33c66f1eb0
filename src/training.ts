/**
 * The part of the library that makes encoders: data sets, preference pairs, training, evaluation, reports and exports, as the
 * commands do it. Programs that only refine do not load it.
 *
 * @packageDocumentation
 */
export {
  type CheckOptions,
  type CheckReport,
  type CountTokens,
  type CutSummary,
  checkDataset,
  type Dataset,
  type Dropped,
  type Fault,
  type ImportSummary,
  importJsonl,
  type JsonlOptions,
  type JsonlSummary,
  type MissingMedia,
  openDataset,
  type QuestionRecord,
  type SplitCount,
  type SplitOptions,
  type SplitSide,
  type SplitSummary,
  splitDataset,
} from './data/index.ts'
export {
  type BenchmarkCounts,
  type Compared,
  type ComparedSide,
  type CompareOptions,
  type Comparison,
  compare,
  type EncoderName,
  type Estimate,
  type Estimates,
  type Evaluation,
  type EvaluationResult,
  type LevelAccuracy,
  type LevelMedian,
  type LookCount,
  type MarginChoice,
  type MeasuredMargin,
  type MetricEstimates,
  type ModelEncoder,
  type Overlap,
  type RowName,
  type SelectionRow,
  type Selector,
  type TrainingData,
  type ValidationMeans,
} from './eval/index.ts'
export {
  type AccuracyLoss,
  type CheckedVariant,
  type Closeness,
  type Comparison as ClosenessComparison,
  EXPORT_TYPES,
  type ExportedEncoder,
  type ExportType,
  type Refinement as ExportRefinement,
  type RefinementFigures,
} from './export/index.ts'
export type { OffsetUnit, Question } from './hierarchy/index.ts'
export {
  type EncoderEvaluation,
  type EvaluateEncoderOptions,
  type ExportAdapterOptions,
  evaluateEncoder,
  exportAdapter,
  type TrainAdapterOptions,
  trainAdapter,
  type ValidationSplit,
} from './pipeline/index.ts'
export {
  type BuildOptions,
  buildPreferences,
  type DecisionCase,
  type DroppedAnnotations,
  type PreferenceSummary,
} from './preferences/index.ts'
export { type ReportOptions, type ReportSummary, writeReport } from './report/index.ts'
export { InputError } from './support/errors.ts'
export type {
  Loss,
  LossInput,
  LossInstance,
  LossNode,
  LossOutput,
  LossPair,
  MetricsLine,
  TrainResult,
  TrainSettings,
  TrainSettingsInput,
  ValidationMetrics,
} from './train/index.ts'
