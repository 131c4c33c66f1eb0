import type { GraphBuilder } from '../onnx/index.ts'

/** What masked attention scores are lowered by: exp(-10000) is 0 in float32, and the number exists in float16. */
const MASKED = -10000

/**
 * What is added to the scores of attention, float32 of the broadcast shape.
 *
 * @param visible bool, whether a token sees another
 * @param added what is added where it does; 0 where absent
 */
export function maskBias(g: GraphBuilder, visible: string, added: string = g.scalar(0)): string {
  return g.where(visible, added, g.scalar(MASKED))
}
