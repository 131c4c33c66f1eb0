/** Names under which a model of text stands inside a model with a head, or beside a vision tower. */
const OUTER = /^(?:(?:model|bert|language_model)\.)+/

/**
 * The path of a module or a tensor inside its model of text, whatever that stands in: `layers.0.mlp.up_proj` for
 * `model.language_model.layers.0.mlp.up_proj`, and for the `language_model.model.` of older versions of transformers.
 */
export function innerPath(path: string): string {
  return path.replace(OUTER, '')
}
