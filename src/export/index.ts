export { type ExportOptions, exportEncoder, measuredTable } from './export.ts'
export type { Written } from './folder.ts'
export type { CheckInstance, Comparison, SelfCheck } from './self-check.ts'
