import { floatAttribute, intAttribute } from '../attributes.ts'
import type { Dim } from '../graph.ts'
import { attend, causalBias, joinHeads, refusePast, splitHeads } from './attention.ts'
import { fixedSize, type Lowering, range, refuse, refuseAttributes, refuseInputs, split, UNFUSED } from './lowering.ts'
import { anglesAt, rotate } from './rotary.ts'

/**
 * com.microsoft GroupQueryAttention over whole sequences: causal attention, rotary embeddings on demand. `seqlens_k` and
 * `total_sequence_length` say where right padding begins: no token before it sees it, so they are not read; what the
 * operator leaves undefined for padding is some finite number here.
 */
export const groupQueryAttention: Lowering = (ctx) => {
  const { g, node, x } = ctx
  const { attributes } = node
  refusePast(ctx, 3, 2)
  refusePast(ctx, 4, 2)
  refuseAttributes(node, ['smooth_softmax', 'qk_output', 'sliding_window_cache', 'kv_cache_bit_width'])
  refuseInputs(ctx, {
    11: 'head_sink',
    12: 'k_scale',
    13: 'v_scale',
    14: 'q_norm_weight',
    15: 'k_norm_weight',
    16: 'query_seqlens',
  })
  const [queryHeads, keyHeads] = [intAttribute(attributes, 'num_heads', 0), intAttribute(attributes, 'kv_num_heads', 0)]
  let parts = [x(0), x(1), x(2)]
  if (x(1) === '') {
    const width = fixedSize(node, 'the hidden size', g.shape(x(0))[2]) / (queryHeads + 2 * keyHeads)
    parts = split(g, x(0), 2, [queryHeads * width, keyHeads * width, keyHeads * width])
  }
  let [query, key, value] = parts.map((part, i) => splitHeads(ctx, part, i === 0 ? queryHeads : keyHeads)) as [
    string,
    string,
    string,
  ]
  if (intAttribute(attributes, 'do_rotary', 0) === 1) {
    const positions = x(9) === '' ? range(ctx, g.shape(query)[2] as Dim) : x(9)
    const angles = anglesAt(ctx, x(7), x(8), positions)
    const interleaved = intAttribute(attributes, 'rotary_interleaved', 0) === 1
    query = rotate(ctx, query, angles, interleaved)
    key = rotate(ctx, key, angles, interleaved)
  }
  const heads = { query, key, value }
  const window = intAttribute(attributes, 'local_window_size', -1)
  if (intAttribute(attributes, 'causal', 1) !== 1)
    refuse(node, 'attention that is not causal is not supported', UNFUSED)
  const biases = [causalBias(ctx, heads, window > 0 ? window : undefined)]
  if (x(10) !== '') biases.push(x(10))
  const y = attend(ctx, heads, {
    scale: floatAttribute(attributes, 'scale', 0),
    softcap: floatAttribute(attributes, 'softcap', 0),
    biases,
  })
  return [joinHeads(ctx, y), key, value]
}
