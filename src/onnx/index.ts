export { GraphBuilder, type NodeOptions, sameShape } from './builder.ts'
export { checkGraph } from './check.ts'
export type {
  Attribute,
  Dim,
  DType,
  ExternalTensor,
  Graph,
  Node,
  Tensor,
  TensorData,
  ValueType,
} from './graph.ts'
export { prune } from './prune.ts'
export { openSafetensors, type Safetensors, type StoredTensor, writeSafetensors } from './safetensors.ts'
export { decodeModel, encodeModel, type ModelInfo } from './serialise.ts'
export { openSession, type Session, type SessionOptions } from './session.ts'
export {
  broadcast,
  dtypeFromNumber,
  dtypeNumber,
  floatAttribute,
  inferNodeTypes,
  intAttribute,
  intsAttribute,
  normalAxis,
  shapeRules,
} from './shapes.ts'
export {
  bfloat16ToFloat32,
  bytesOfData,
  checkTensor,
  elementCount,
  elementSize,
  float16ToFloat32,
  float32ToBfloat16,
  float32ToFloat16,
  isExternal,
} from './tensor.ts'
