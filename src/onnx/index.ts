export { floatAttribute, intAttribute, intsAttribute, normalAxis, stringAttribute } from './attributes.ts'
export { GraphBuilder, type NodeOptions, sameShape } from './builder.ts'
export { castWhereUsed, leavesWeightsStored } from './cast-where-used.ts'
export { checkGraph } from './check.ts'
export { type ModelContents, modelContents } from './contents.ts'
export { decodeModel } from './decode.ts'
export { addDims, divideDims, multiplyDims, productOfDims, sizeOfDim, subtractDims } from './dims.ts'
export { dtypeFromNumber, dtypeNumber } from './dtypes.ts'
export { loadTensor } from './external.ts'
export type {
  Attribute,
  Dim,
  DType,
  ExternalTensor,
  Graph,
  Node,
  Subgraph,
  Tensor,
  TensorData,
  ValueType,
} from './graph.ts'
export { inferTypes } from './infer.ts'
export { type Lowered, lower } from './lower/index.ts'
export { type Placement, placementText } from './placement.ts'
export { checkPrecision, inHalfPrecision, PRECISIONS, type Precision } from './precision.ts'
export {
  DEVICES,
  type Device,
  DeviceError,
  loadRuntime,
  platformName,
  wrongResults,
} from './providers.ts'
export { prune } from './prune.ts'
export { readersOf } from './readers.ts'
export { openSafetensors, type Safetensors, type StoredTensor, writeSafetensors } from './safetensors.ts'
export { encodeModel, type ModelInfo } from './serialise.ts'
export { openSession, type Session, type SessionOptions } from './session.ts'
export { einsumTerms } from './shape-rules/products.ts'
export { broadcast, sliceLength } from './shape-rules/rule.ts'
export { type Window, windowOf } from './shape-rules/windows.ts'
export { inferNodeTypes, operatorRule, shapeRules } from './shapes.ts'
export { simplify } from './simplify.ts'
export {
  bfloat16ToFloat32,
  byteLength,
  bytesOfData,
  checkTensor,
  dataFromBytes,
  elementCount,
  elementSize,
  float16ToFloat32,
  float32ToBfloat16,
  float32ToFloat16,
  isExternal,
} from './tensor.ts'
export { upgradeOpset } from './upgrade.ts'
