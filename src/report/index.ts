export { type ReportOptions, type ReportSummary, writeReport } from './write.ts'
