export { importedEncoder } from './encoder.ts'
export type { EncoderModule, ImportedModule, Storage } from './modules.ts'
export { type OriginalGraph, openOriginal } from './original.ts'
export { arithmeticOf, type ImportedModel, readImported } from './read.ts'
