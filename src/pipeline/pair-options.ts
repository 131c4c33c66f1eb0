import type { PairOptions } from '../encoder/index.ts'

/** Names of the options by which encoders are found and read, among those of what is done with them. */
export const ENCODER_OPTIONS = [
  'hubUrl',
  'cacheDir',
  'accessToken',
  'offline',
  'onnxFile',
  'onProgress',
  'queryEncoder',
  'pooling',
  'normalize',
] as const satisfies readonly (keyof PairOptions)[]

/** The same of a node encoder that is trained already, or is to be as it was stated. */
export const PAIR_OPTIONS = [
  ...ENCODER_OPTIONS,
  'adapter',
  'dimensions',
  'instructions',
] as const satisfies readonly (keyof PairOptions)[]
