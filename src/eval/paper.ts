/** What the CANOPY paper reports, to stand beside our numbers under its own name. Shares of one. */
export const PAPER = {
  source: 'CANOPY (arXiv 2610.00923)',
  encoder: 'Qwen3-VL-Embedding-2B, LoRA on the language backbone',
  data: 'gold items of the full test sets of NQ, HotpotQA, OTT-QA, MMQA and LVBench',
  decision_accuracy: {
    frozen: { pooled: 0.369, benchmarks: [0.283, 0.43] },
    'fine-tuned': { pooled: 0.585, benchmarks: [0.343, 0.719] },
  },
  pruned_item_rate: {
    frozen: { benchmarks: [0.304, 0.396] },
    'fine-tuned': { benchmarks: [0.852, 0.956] },
  },
} as const
