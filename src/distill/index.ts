/**
 * Distillation: a small encoder, trained from random weights towards the embeddings of a larger one.
 *
 * - `lines.ts`, `sources.ts`, `texts.ts` what it reads; `tokens.ts` and `teacher.ts` keep tokens and the teacher's embeddings in files
 * - `axes.ts` the part of the teacher's space that the student learns; `student.ts` an encoder with every weight trainable
 * - `graph.ts`, `loop.ts`, `state.ts` the training; `measure.ts`, `card.ts` what came of it
 * - `stages.ts` what comes before the training; `folder.ts` the names and logs that all of it leaves; `run.ts` all of it in order
 *
 * @packageDocumentation
 */
export { distillPaths } from './folder.ts'
export type { DistillLine } from './loop.ts'
export type { Measured } from './measure.ts'
export { type DistillOptions, type DistillResult, distill } from './run.ts'
export { type DistillSettings, resolveDistillSettings } from './settings.ts'
export { type DatasetPart, datasetPart } from './sources.ts'
