export { TFJS_BACKENDS, type TfjsBackend } from './backend-names.ts'
export { type GradientRequest, installedTfjs, openTfjs, type TfjsOptions, type TfjsSession } from './session.ts'
