export { percentileInterval, quantile } from './bootstrap.ts'
export { type Compared, type ComparedSide, type CompareOptions, type Comparison, compare } from './compare.ts'
export { comparisonCsv, comparisonJson, comparisonMarkdown, comparisonText, verdictOn } from './compare-tables.ts'
export { type BlindControl, blindScores, permuteQuestions } from './controls.ts'
export {
  type Accuracy,
  accuracyOf,
  type JudgedDecision,
  judgeDecisions,
  type PairCount,
  type ScoredTree,
} from './decisions.ts'
export type { NodeEmbedder } from './embedded.ts'
export { type Estimate, type EstimateOptions, type Estimates, estimate, type MetricEstimates } from './estimates.ts'
export {
  type EvaluateOptions,
  type EvaluateScoresOptions,
  type EvaluationOptions,
  type EvaluationResult,
  evaluate,
  evaluateScores,
} from './evaluate.ts'
export { type BenchmarkCounts, type Evaluation, looksText, overlapText, tokensText } from './evaluation.ts'
export { markdownTable, percent, textTable, tokens, withInterval } from './format.ts'
export type { LevelAccuracy, LevelMedian } from './levels.ts'
export { type LookCount, splitKey, totalLooks } from './looks.ts'
export type { MarginChoice, ValidationMeans } from './margin-choice.ts'
export { MARGIN_METRICS, type MarginPoint } from './margin-curve.ts'
export { MARGINS_FILE, type MeasuredMargin, marginSentences, marginText, marginUse } from './margin-text.ts'
export {
  type InstanceSums,
  METRICS,
  type Metric,
  measureInstance,
  questionSums,
  SELECTION_METRICS,
} from './metrics.ts'
export {
  addTrainingQuestion,
  createOverlapCounter,
  emptyTrainingData,
  joinedTrainingData,
  type Overlap,
  readTrainingData,
  TRAINING_DATA_FILE,
  type TrainingData,
  writeTrainingData,
} from './overlap.ts'
export { PAPER } from './paper.ts'
export { type CheckedRequirement, checkRequirements, parseRequirement, type Requirement } from './requirements.ts'
export { EVALUATION_FILES, requireResultsFolder } from './results.ts'
export {
  checkInstance,
  ENCODERS,
  type EncoderName,
  MODEL_ENCODERS,
  type ModelEncoder,
  type RowName,
  type ScoredInstance,
  SELECTORS,
  type Selector,
  scoreOf,
  tableRow,
} from './scored.ts'
export { parseScoresLine, readScores, SCORES_FILE, type StoredInstance, scoresLine } from './scores-file.ts'
export { SELECTION_ROWS, type SelectionRow, select } from './selection.ts'
export { evaluationIdentity, readEvaluation, type StoredEvaluation } from './stored.ts'
export { addDenominators, addInstance, type ClusterSums, emptySums } from './sums.ts'
export { metricsJson, selectionCsv, terminalTable } from './tables.ts'
export type { ValidationData, ValidationPart } from './validation.ts'
