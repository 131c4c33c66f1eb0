// The adapters of bench/peft-adapters.mjs.

const BERT = ['query', 'key', 'value', 'attention.output.dense', 'intermediate.dense', 'output.dense']
const QWEN = ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj']
const LANGUAGE = '.*layers\\.\\d+\\.(self_attn|mlp)\\.\\w+_proj'
const plain = { r: 4, lora_alpha: 8 }

// PEFT takes the first pattern that matches, and sorts patterns by name when it saves them. Those that overlap stand in that order here:
// of others PEFT itself loads another adapter than it trained.

/** Adapters of PEFT that are to be read here: what makes them, for which architectures, and where they are kept for the tests. */
export const CASES = [
  ...both('endings of names', { ...plain }),
  ...both(
    'an expression',
    { ...plain },
    { bert: '.*layer\\.\\d+\\.attention\\.self\\.(query|value)', qwen3: LANGUAGE },
  ),
  {
    name: 'all-linear',
    for: ['bert', 'qwen3'],
    class: 'AutoModel',
    config: { ...plain, target_modules: 'all-linear' },
  },
  one('rank and alpha patterns', 'bert', {
    ...plain,
    rank_pattern: {
      query: 8,
      '^encoder.layer.0.attention.self.key': 2,
      'layer\\.\\d+\\.(intermediate|output)\\.dense': 3,
    },
    alpha_pattern: { '.*dense': 2, '0.attention.self.query': 9, 'attention\\.self\\.(query|key)': 5 },
  }),
  one('rank and alpha patterns', 'qwen3', {
    ...plain,
    rank_pattern: { q_proj: 8, '^layers.0.self_attn.k_proj': 2, 'layers\\.\\d+\\.mlp\\.(gate|up)_proj': 3 },
    alpha_pattern: { '.*down_proj': 2, '0.self_attn.q_proj': 9, 'self_attn\\.[qk]_proj': 5 },
  }),
  one('several patterns match, the first counts', 'bert', {
    ...plain,
    rank_pattern: { '0.attention.self.query': 6, 'encoder.layer.0.attention.self.query': 3, query: 2 },
    alpha_pattern: { dense: 3, 'output.dense': 7 },
  }),
  one('several patterns match, the first counts', 'qwen3', {
    ...plain,
    rank_pattern: { '0.self_attn.q_proj': 6, 'layers.0.self_attn.q_proj': 3, q_proj: 2 },
    alpha_pattern: { '(gate|up)_proj': 3, up_proj: 7 },
  }),
  ...both('rank-stabilised', { ...plain, r: 3, use_rslora: true }),
  one('rank-stabilised with patterns', 'bert', {
    ...{ ...plain, use_rslora: true },
    ...{ rank_pattern: { 'layer.1.attention.self.query': 7 }, alpha_pattern: { '.*output.dense': 3 } },
  }),
  one('rank-stabilised with patterns', 'qwen3', {
    ...{ ...plain, use_rslora: true },
    ...{ rank_pattern: { 'layers.1.self_attn.q_proj': 7 }, alpha_pattern: { down_proj: 3 } },
  }),
  // of Qwen3 PEFT finds layers by their pattern only
  one('one layer (layers_to_transform)', 'bert', { ...plain, layers_to_transform: [1] }),
  one('one layer, by its pattern', 'bert', { ...plain, layers_to_transform: 1, layers_pattern: 'layer' }),
  one('one layer, by its pattern', 'qwen3', { ...plain, layers_to_transform: 1, layers_pattern: 'layers' }),
  one('without some (exclude_modules)', 'bert', { ...plain, exclude_modules: ['key', 'layer.0.output.dense'] }),
  one('without some (exclude_modules)', 'qwen3', { ...plain, exclude_modules: '.*layers\\.0\\..*' }),
  ...both('drawn otherwise (init_lora_weights)', { ...plain, init_lora_weights: 'gaussian' }),
  ...both('orthogonal start', { ...plain, init_lora_weights: 'orthogonal' }),
  ...both('MiCA', { ...plain, init_lora_weights: 'mica' }),
  ...both('stored as float16', { ...plain }, {}, { stored: 'float16' }),
  ...both('stored as bfloat16', { ...plain }, {}, { stored: 'bfloat16' }),
  ...both('an adapter with a name', { ...plain }, {}, { 'name of': 'nodes' }),
  one('over AutoModelForMaskedLM (bert.)', 'bert', { ...plain }, { class: 'AutoModelForMaskedLM' }),
  one(
    'over AutoModelForMaskedLM, patterns from the start',
    'bert',
    {
      ...plain,
      rank_pattern: { '^bert.encoder.layer.0.attention.self.query': 6, '^encoder.layer.1.attention.self.query': 2 },
      alpha_pattern: { 'bert\\.encoder\\.layer\\.1\\..*': 5 },
    },
    { class: 'AutoModelForMaskedLM' },
  ),
  {
    ...{ name: 'over AutoModelForMaskedLM, all-linear (its head, too)', for: ['bert'], class: 'AutoModelForMaskedLM' },
    config: { ...plain, target_modules: 'all-linear' },
  },
  one(
    'over AutoModelForSequenceClassification (head saved)',
    'bert',
    { ...plain, task_type: 'SEQ_CLS' },
    { class: 'AutoModelForSequenceClassification' },
  ),
  one('over AutoModelForCausalLM (model.)', 'qwen3', { ...plain }, { class: 'AutoModelForCausalLM' }),
  one(
    'over AutoModelForCausalLM, patterns from the start',
    'qwen3',
    {
      ...plain,
      rank_pattern: { '^model.layers.0.self_attn.q_proj': 6, '^layers.1.self_attn.q_proj': 2 },
      alpha_pattern: { 'model\\.layers\\.1\\..*': 5 },
    },
    { class: 'AutoModelForCausalLM' },
  ),
  {
    ...{ name: 'over AutoModelForCausalLM, all-linear', for: ['qwen3'], class: 'AutoModelForCausalLM' },
    config: { ...plain, target_modules: 'all-linear', task_type: 'CAUSAL_LM' },
  },
  one(
    'over AutoModelForSequenceClassification (head saved)',
    'qwen3',
    { ...plain, task_type: 'SEQ_CLS' },
    { class: 'AutoModelForSequenceClassification' },
  ),
  ...both('added to SentenceTransformer', { ...plain }, {}, { class: 'SentenceTransformer' }),
  ...both(
    'PeftModel over SentenceTransformer (0.model.)',
    { ...plain },
    {},
    { class: 'PeftModel over SentenceTransformer' },
  ),
  {
    ...{ name: 'language model alone', for: ['qwen3_vl'], class: 'AutoModel' },
    config: { ...plain, target_modules: '.*language_model\\.layers\\.\\d+\\.(self_attn|mlp)\\.\\w+_proj' },
  },
  {
    ...{ name: 'rank-stabilised with patterns', for: ['qwen3_vl'], class: 'AutoModel' },
    config: {
      ...{ ...plain, use_rslora: true, target_modules: QWEN },
      ...{
        rank_pattern: { 'layers.1.self_attn.q_proj': 7 },
        alpha_pattern: { '^language_model.layers.0.mlp.up_proj': 3 },
      },
    },
  },
]

/** Adapters of PEFT that cannot be read here, and what has to be said. */
export const REFUSED = [
  { ...refusal('DoRA', { use_dora: true }), says: /"use_dora": true is not supported.*merge_and_unload/ },
  { ...refusal('biases', { bias: 'lora_only' }), says: /"bias": "lora_only" is not supported.*merge_and_unload/ },
  { ...refusal('biases of B', { lora_bias: true }), says: /"lora_bias": true is not supported/ },
  {
    ...refusal('whole modules', { modules_to_save: ['LayerNorm'] }),
    says: /"modules_to_save": \["LayerNorm"\] is not supported/,
  },
  {
    ...refusal('the embedding table', { target_modules: ['query', 'word_embeddings'] }),
    says: /lora_embedding_A.*An embedding table is adapted, too/s,
  },
  {
    ...refusal('tokens', { trainable_token_indices: { word_embeddings: [1, 2] } }),
    says: /"trainable_token_indices".*not supported/,
  },
  { ...refusal('PiSSA', { init_lora_weights: 'pissa' }), says: /"init_lora_weights": "pissa".*path_initial_model/ },
  { ...refusal('OLoRA', { init_lora_weights: 'olora' }), says: /"init_lora_weights": "olora".*not supported/ },
  { ...refusal('a pickle', {}), pickle: true, says: /adapter_model\.bin: The matrices are a pickle.*save_pretrained/ },
]

/** Adapters that are made here: by module, in the order of the encoder, its rank and alpha. */
export const OWN = [
  { name: 'default modules', rank: () => 4, alpha: () => 8 },
  { name: 'ranks and alphas of their own', rank: (i) => 2 + (i % 3), alpha: (i) => 3 + (i % 4) },
  {
    ...{ name: 'rank-stabilised', rank: () => 3, alpha: () => 8 * Math.sqrt(3), rankStabilised: true },
  },
  {
    ...{ name: 'one layer', rank: () => 4, alpha: () => 8 },
    targets: { bert: ['.*layer\\.1\\..*'], qwen3: ['.*layers\\.1\\..*'], qwen3_vl: ['.*layers\\.1\\..*'] },
  },
  {
    ...{ name: 'modules whose endings name others, too', rank: () => 4, alpha: () => 8 },
    targets: {
      bert: ['.*\\d\\.output\\.dense', '.*layer\\.0\\..*query'],
      qwen3: ['o_proj', '.*layers\\.0\\..*q_proj'],
    },
  },
]

/** A case for BERT or for Qwen3, over its usual modules. */
function one(name, kind, config, more = {}) {
  return {
    ...{ name, for: [kind], class: 'AutoModel' },
    config: { target_modules: kind === 'bert' ? BERT : QWEN, ...config },
    ...more,
  }
}

function both(name, config, targets = {}, more = {}) {
  return ['bert', 'qwen3'].map((kind) =>
    one(name, kind, { ...config, ...(targets[kind] !== undefined && { target_modules: targets[kind] }) }, more),
  )
}

function refusal(name, config) {
  return one(name, 'bert', { r: 4, lora_alpha: 8, ...config })
}

/** Names of the cases that the tests read, by architecture: a folder of test/fixtures/peft. */
const FIXTURES = {
  bert: {
    'several patterns match, the first counts': 'several-patterns',
    'rank-stabilised with patterns': 'rank-stabilised',
    'one layer (layers_to_transform)': 'one-layer',
    'stored as float16': 'float16',
    'over AutoModelForMaskedLM, patterns from the start': 'masked-lm',
    'over AutoModelForMaskedLM, all-linear (its head, too)': 'masked-lm-head',
    'over AutoModelForSequenceClassification (head saved)': 'classifier',
    'PeftModel over SentenceTransformer (0.model.)': 'sentence-transformer',
  },
  qwen3: {
    'over AutoModelForCausalLM, patterns from the start': 'causal-lm',
    'rank-stabilised': 'rank-stabilised',
  },
}
for (const one of CASES)
  for (const kind of one.for) if (FIXTURES[kind]?.[one.name] !== undefined) one.fixture = FIXTURES[kind][one.name]
