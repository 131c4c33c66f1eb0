/** The backends of TensorFlow.js in the order in which they are preferred. */
export const TFJS_BACKENDS = ['node-gpu', 'node', 'wasm', 'cpu'] as const
export type TfjsBackend = (typeof TFJS_BACKENDS)[number]
