import type { Graph, Node } from '../../onnx/index.ts'

/** Where a linear map's name may be written down; all of it as the files have it. */
export interface NameClues {
  /** The weight's initializer. */
  weight: string
  /** The initializer that is added to the product, and to no other. */
  bias: string | undefined
  /** The product's node and value. */
  node: string
  output: string
  /** `pkg.torch.onnx.name_scopes` of the node. */
  scopes: string | undefined
}

/**
 * The module path of a linear map, as Hugging Face transformers has it, from what its exporter left of it: the name of the
 * weight (`encoder.layer.0.output.dense.weight`), the scopes that PyTorch's newer exporter notes, the name of the node or its
 * output (`/encoder/layer.0/output/dense/MatMul`), or of the bias. Undefined where none of them says it (`onnx::MatMul_324`,
 * `val_57`).
 */
export function moduleName(clues: NameClues, wrapper: string): string | undefined {
  const found =
    parameterOwner(clues.weight) ??
    lastScope(clues.scopes) ??
    pathOwner(clues.node) ??
    pathOwner(clues.output) ??
    (clues.bias === undefined ? undefined : parameterOwner(clues.bias))
  return found === undefined ? undefined : plainName(found, wrapper)
}

/** Endings that quantisers and converters put after a parameter's name. */
const ENDINGS = /(?:_quantized|_quant|_transposed|_merged|_fp16|_Q4G?\d*|_Q[48]|_q[48]?|_DequantizeLinear_Output)$/

/** `a.b.weight` -> `a.b` */
function parameterOwner(name: string): string | undefined {
  let bare = name
  while (ENDINGS.test(bare)) bare = bare.replace(ENDINGS, '')
  const owner = /^([\w.]+)\.(?:weight|bias|qweight)$/.exec(bare)?.[1]?.replace(/\.(?:MatMul|Gemm|Add|linear)$/, '')
  return owner?.includes('.') ? owner : undefined
}

/** `/a/b/MatMul_output_0` -> `a.b`; the last part names the operator. */
function pathOwner(name: string): string | undefined {
  if (!name.includes('/')) return undefined
  const parts = name.split('/').filter((part) => part !== '')
  parts.pop()
  return parts.length === 0 ? undefined : parts.join('.')
}

/** The innermost module of a list such as `['', 'layers.0', 'layers.0.mlp', 'layers.0.mlp.up_proj', 'linear_4']`. */
function lastScope(scopes: string | undefined): string | undefined {
  const all = [...(scopes ?? '').matchAll(/'([^']*)'/g)].map((match) => match[1] as string)
  return all.slice(0, -1).findLast((scope) => scope !== '')
}

/** Names under which a model stands inside a wrapper or a model with a head. */
const WRAPPERS =
  /^(?:\d+\.)?(?:auto_model|model|bert|roberta|xlm_roberta|distilbert|albert|mpnet|electra|deberta|new|inner|base_model|module|_orig_mod)\./

function plainName(name: string, wrapper: string): string {
  let bare = wrapper !== '' && name.startsWith(`${wrapper}.`) ? name.slice(wrapper.length + 1) : name
  while (WRAPPERS.test(bare)) bare = bare.replace(WRAPPERS, '')
  // ONNX Runtime GenAI's builder shortens transformers' self_attn
  return bare.replace(/^(layers\.\d+)\.attn\.(?=[qkvo]_proj$|qkv_proj$)/, '$1.self_attn.')
}

/** Module paths begin with one of these; a wrapper's name does not. */
const CONTAINERS = new Set([
  'encoder',
  'decoder',
  'embeddings',
  'transformer',
  'layers',
  'layer',
  'blocks',
  'block',
  'h',
])

/** The dotted path that all parameters of the graph have in front of their modules: `inner`, `0.auto_model`, or ''. */
export function wrapperOf(graph: Graph): string {
  const owners = [...graph.initializers.keys()].flatMap((name) => {
    const owner = parameterOwner(name)
    return owner === undefined ? [] : [owner.split('.')]
  })
  const first = owners[0] ?? []
  let shared = 0
  while (
    shared < first.length - 1 &&
    !CONTAINERS.has(first[shared] as string) &&
    owners.every((parts) => parts[shared] === first[shared])
  )
    shared++
  return first.slice(0, shared).join('.')
}

/** Path of an attention's output map -> its query, key and value maps, as architectures of transformers name them. */
const QKV_OF_OUTPUT: [RegExp, [string, string, string]][] = [
  [/^(.*\battention)\.output\.dense$/, ['self.query', 'self.key', 'self.value']],
  [/^(.*\battention)\.out_lin$/, ['q_lin', 'k_lin', 'v_lin']],
  [/^(.*\battention\.attn)\.o$/, ['q', 'k', 'v']],
  [/^(.*\.(?:self_)?attn)\.(?:o_proj|out_proj)$/, ['q_proj', 'k_proj', 'v_proj']],
]

/**
 * Names of the three maps inside a fused attention operator: by the linear map that comes after it, else after the operator.
 *
 * @param node the fused operator
 * @param next name of the next linear map
 */
export function attentionNames(node: Node, next: string | undefined): [string, string, string] {
  for (const [pattern, ends] of QKV_OF_OUTPUT) {
    const at = next === undefined ? undefined : pattern.exec(next)?.[1]
    if (at !== undefined) return ends.map((end) => `${at}.${end}`) as [string, string, string]
  }
  const own = node.name === '' ? (node.outputs[0] as string) : node.name
  return [`${own}.q`, `${own}.k`, `${own}.v`]
}

/** Whether a path lies in one of a model's layers, which are numbered, and not in a head or in an adapter of an earlier training. */
export function inLayers(module: string): boolean {
  return /\.\d+\./.test(module) && !/(?:^|\.)(?:pooler|lm_head|classifier|lora_[AB])(?:\.|$)/.test(module)
}
