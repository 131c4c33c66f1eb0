/**
 * Names under which a model of text stands: in a model with a head, beside a vision tower, among the modules of
 * sentence-transformers (`0.model`, in older versions `0.auto_model`), and in the wrappers of PEFT and PyTorch.
 */
const OUTER =
  /^(?:(?:\d+\.(?=(?:auto_)?model\.))?(?:base_model|module|_orig_mod|auto_model|model|language_model|bert|roberta|xlm_roberta|distilbert|mpnet|electra|deberta|albert|new)\.)+/

/**
 * The path of a module or a tensor inside its model of text, whatever that stands in: `layers.0.mlp.up_proj` for
 * `model.language_model.layers.0.mlp.up_proj`, and for the `language_model.model.` of older versions of transformers.
 */
export function innerPath(path: string): string {
  return path.replace(OUTER, '')
}

/**
 * What stands beside the layers of a model of text and has no say in its token vectors: poolers, and the heads of the classes that
 * transformers builds for other tasks.
 */
const HEADS =
  /^(?:pooler|classifier|pre_classifier|score|cls|lm_head|qa_outputs|vocab_transform|vocab_projector|vocab_layer_norm|generator_predictions|generator_lm_head|discriminator_predictions|lm_predictions|predictions|sop_classifier|sequence_summary)(?:\.|$)/

/** Whether a path names a head, or a part of one, which embeddings do not come from. */
export function isHead(path: string): boolean {
  return HEADS.test(innerPath(path))
}
