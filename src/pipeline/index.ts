/**
 * What the commands do, as functions over the names of folders: train, evaluate, export.
 *
 * @packageDocumentation
 */
export {
  type EncoderEvaluation,
  type EvaluateEncoderOptions,
  evaluateEncoder,
  type ValidationSplit,
  validationSplit,
} from './evaluate-encoder.ts'
export { type ExportAdapterOptions, exportAdapter } from './export-adapter.ts'
export { type TrainAdapterOptions, trainAdapter } from './train-adapter.ts'
