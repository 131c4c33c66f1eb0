export { type ExportOptions, exportEncoder, measuredTable } from './export.ts'
export type { CheckInstance, SelfCheck } from './self-check.ts'
