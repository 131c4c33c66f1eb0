/**
 * What the loss is multiplied by before it goes back through a graph in float16, whose smallest numbers are 6e-8: small
 * gradients would become 0 (Micikevicius et al. 2018, arXiv 1710.03740, 3.2). It follows the gradients: down at every overflow, up
 * after many steps without one. A power of two changes no bit of a gradient that neither overflows nor underflows.
 */
export interface LossScale {
  scale: number
  /** Steps without an overflow since the scale last changed. */
  goodSteps: number
}

export const LARGEST_SCALE = 2 ** 24
/** Steps without an overflow after which the scale is doubled, as torch.amp.GradScaler does. */
const GROWTH_INTERVAL = 2000

export function initialLossScale(): LossScale {
  return { scale: 2 ** 16, goodSteps: 0 }
}

/** The scale after a step whose gradient was finite. */
export function grown({ scale, goodSteps }: LossScale): LossScale {
  if (goodSteps + 1 < GROWTH_INTERVAL || scale >= LARGEST_SCALE) return { scale, goodSteps: goodSteps + 1 }
  return { scale: scale * 2, goodSteps: 0 }
}

/** The scale after a step whose gradient overflowed; undefined where it cannot be lowered any more. */
export function lowered({ scale }: LossScale): LossScale | undefined {
  return scale <= 1 ? undefined : { scale: scale / 2, goodSteps: 0 }
}
