import type { ExternalTensor, Graph } from '../onnx/index.ts'
import { halved } from './half.ts'
import { quantised } from './quantise.ts'
import { asFloats, type WeightRows } from './streams.ts'
import type { Writable } from './write-model.ts'

/** What the weights of an exported encoder are stored in. */
export const EXPORT_TYPES = ['fp32', 'fp16', 'int8', 'int4'] as const
export type ExportType = (typeof EXPORT_TYPES)[number]

/** What transformers.js puts behind a graph's name for a type, and what it calls the type. */
const inTransformersJs: Record<ExportType, { ending: string; dtype: string }> = {
  fp32: { ending: '', dtype: 'fp32' },
  fp16: { ending: '_fp16', dtype: 'fp16' },
  int8: { ending: '_int8', dtype: 'int8' },
  int4: { ending: '_q4', dtype: 'q4' },
}

/** The file of a graph's variant: `model.onnx`, `model_fp16.onnx`, `model_int8.onnx`, `model_q4.onnx`. */
export const variantFile = (graph: string, type: ExportType): string => `${graph}${inTransformersJs[type].ending}.onnx`

/** transformers.js' name of a type. */
export const transformersJsType = (type: ExportType): string => inTransformersJs[type].dtype

/**
 * A float32 graph with its weights in another type.
 *
 * @param weightOf the numbers of an initializer that is a reference
 */
export function variant(graph: Graph, weightOf: (tensor: ExternalTensor) => WeightRows, type: ExportType): Writable {
  switch (type) {
    case 'fp32':
      return { graph, stream: (_, tensor) => asFloats(weightOf(tensor)) }
    case 'fp16':
      return halved(graph, weightOf)
    case 'int8':
      return quantised(graph, weightOf, 8)
    case 'int4':
      return quantised(graph, weightOf, 4)
  }
}
