import { attention, multiHeadAttention } from './attention.ts'
import { gatherBlockQuantized, matMulBnb4, matMulNBits } from './blocks.ts'
import { biasSoftmax, dropout, fusedGemm } from './elementwise.ts'
import { groupQueryAttention } from './group-query.ts'
import { type Lowering, refuse, UNFUSED } from './lowering.ts'
import { embedLayerNormalization, skipLayerNormalization, skipSimplifiedLayerNormalization } from './normalisation.ts'
import {
  dequantizeLinear,
  dynamicQuantizeLinear,
  dynamicQuantizeMatMul,
  integerArithmetic,
  matMulIntegerToFloat,
  qAttention,
  qEmbedLayerNormalization,
  qLinearBinary,
  qLinearMatMul,
  quantizeLinear,
} from './quantised.ts'
import { rotaryEmbedding, standardRotaryEmbedding } from './rotary.ts'
import { standardAttention } from './standard-attention.ts'

const named = (lowering: Lowering, keys: string[]): Record<string, Lowering> =>
  Object.fromEntries(keys.map((key) => [key, lowering]))

/** Fused operators that encoders' exports rarely have and that no expansion is given for. */
const fusedForOtherUses: Lowering = ({ node }) => refuse(node, `the operator ${node.op} is not supported`, UNFUSED)

/**
 * Operator -> what it is made of. Names without a domain are standard operators; the others are described in ONNX
 * Runtime's docs/ContribOperators.md under the same name.
 */
export const lowerings: Record<string, Lowering> = {
  'com.microsoft:SkipLayerNormalization': skipLayerNormalization,
  'com.microsoft:SkipSimplifiedLayerNormalization': skipSimplifiedLayerNormalization,
  'com.microsoft:EmbedLayerNormalization': embedLayerNormalization,
  'com.microsoft:FusedGemm': fusedGemm,
  'com.microsoft:BiasSoftmax': biasSoftmax,
  Dropout: dropout,

  'com.microsoft:Attention': attention,
  'com.microsoft:MultiHeadAttention': multiHeadAttention,
  'com.microsoft:GroupQueryAttention': groupQueryAttention,
  Attention: standardAttention,
  'com.microsoft:RotaryEmbedding': rotaryEmbedding,
  RotaryEmbedding: standardRotaryEmbedding,

  DynamicQuantizeLinear: dynamicQuantizeLinear,
  QuantizeLinear: quantizeLinear,
  DequantizeLinear: dequantizeLinear,
  'com.microsoft:QuantizeLinear': quantizeLinear,
  'com.microsoft:DequantizeLinear': dequantizeLinear,
  'com.microsoft:DynamicQuantizeMatMul': dynamicQuantizeMatMul,
  'com.microsoft:MatMulIntegerToFloat': matMulIntegerToFloat,
  'com.microsoft:QAttention': qAttention,
  'com.microsoft:QEmbedLayerNormalization': qEmbedLayerNormalization,
  'com.microsoft:MatMulNBits': matMulNBits,
  'com.microsoft:MatMulBnb4': matMulBnb4,
  'com.microsoft:GatherBlockQuantized': gatherBlockQuantized,
  QLinearMatMul: qLinearMatMul,
  'com.microsoft:QLinearAdd': qLinearBinary('Add'),
  'com.microsoft:QLinearMul': qLinearBinary('Mul'),
  ...named(integerArithmetic, ['MatMulInteger', 'ConvInteger', 'QLinearConv']),
  ...named(
    integerArithmetic,
    ['QGemm', 'QLinearSigmoid', 'QLinearSoftmax', 'QLinearLeakyRelu', 'QLinearConcat'].map(
      (op) => `com.microsoft:${op}`,
    ),
  ),
  ...named(
    fusedForOtherUses,
    [
      'PackedAttention',
      'PackedMultiHeadAttention',
      'RemovePadding',
      'RestorePadding',
      'DecoderMaskedSelfAttention',
      'DecoderMaskedMultiHeadAttention',
      'LongformerAttention',
      'SparseAttention',
      'PagedAttention',
      'MatMulFpQ4',
      'MoE',
      'QMoE',
    ].map((op) => `com.microsoft:${op}`),
  ),
}
