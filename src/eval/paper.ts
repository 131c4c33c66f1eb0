/**
 * What the CANOPY paper reports, to stand beside our numbers under its own name. Shares of one; a pair is the range over the
 * benchmarks. Where a value of a benchmark of its own is reported, it stands under the benchmark's name.
 */
export const PAPER = {
  source: 'CANOPY (arXiv 2610.00923)',
  encoder: 'Qwen3-VL-Embedding-2B, LoRA on the language backbone',
  data: 'gold items of the full test sets of NQ, HotpotQA, OTT-QA, MMQA and LVBench',
  benchmarks: ['nq', 'hotpotqa', 'ottqa', 'mmqa', 'lvbench'],
  /** Branching of the trees; items retrieved in a round; most rounds. */
  defaults: { branching: 2, items: 10, rounds: 3 },
  decision_accuracy: {
    frozen: { pooled: 0.369, benchmarks: [0.283, 0.43] },
    'fine-tuned': { pooled: 0.585, benchmarks: [0.343, 0.719] },
  },
  /** Items from which refinement goes below the root. */
  pruned_item_rate: {
    frozen: { benchmarks: [0.304, 0.396] },
    'fine-tuned': { benchmarks: [0.852, 0.956] },
  },
  /** Fine-tuned against frozen, in the whole system: fewer tokens for the reader, and points of its F1 or accuracy. */
  fine_tuning: { reader_tokens_saved: [0.068, 0.191], reader_score_gained: [0.003, 0.009] },
  /** Compression against none, in the whole system. */
  compression: { reader_tokens_saved: [0.142, 0.277] },
  /**
   * Evidence selected from gold items, CANOPY against the whole gold item: tokens saved, and F1 or accuracy of a reader on the gold
   * item, on what CANOPY keeps, on the gold spans. `about`: given roughly.
   */
  selection: {
    lvbench: { tokens_saved: 0.4, score: 'accuracy', gold_item: 0.562, canopy: 0.564, gold_span: 0.53 },
    ottqa: { tokens_saved: 0.275, score: 'F1', gold_item: 0.705, canopy: 0.678 },
    nq: { tokens_saved: 0.05, about: true },
    hotpotqa: { tokens_saved: 0.05, about: true },
  },
  /** The main table: a reader's exact match and F1 (LVBench: accuracy) with CANOPY, and of its routed row. */
  reader: {
    nq: { em: 0.397, f1: 0.544, routed: { em: 0.381, f1: 0.527 } },
    hotpotqa: { em: 0.496, f1: 0.621, routed: { em: 0.476, f1: 0.601 } },
    ottqa: { em: 0.277, f1: 0.334, routed: { em: 0.201, f1: 0.249 } },
    mmqa: { em: 0.451, f1: 0.511, routed: { em: 0.421, f1: 0.474 } },
    // biome-ignore lint/suspicious/noApproximativeNumericConstant: the paper's accuracy, not the logarithm of e
    lvbench: { accuracy: 0.35, routed: { accuracy: 0.434 } },
  },
} as const
