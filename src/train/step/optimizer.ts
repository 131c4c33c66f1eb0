/** Trainable tensors, their gradients or moments, by name. The order of the names is the order of every sum over them. */
export type Tensors = Map<string, Float32Array>

export interface AdamWSettings {
  weightDecay: number
  betas: readonly [number, number]
  epsilon: number
}

/** What AdamW remembers between steps. */
export interface AdamWState {
  /** Steps applied so far. */
  step: number
  /** First and second moment of the gradient, by tensor. */
  first: Tensors
  second: Tensors
}

/** The state before the first step: all moments zero. */
export function initialAdamW(tensors: Tensors): AdamWState {
  return { step: 0, first: zerosLike(tensors), second: zerosLike(tensors) }
}

/**
 * One step of AdamW, in place on `tensors` and `state` (Loshchilov & Hutter, Decoupled Weight Decay Regularization,
 * algorithm 2; bias correction as in torch.optim.AdamW):
 *
 *   θ ← θ(1 - ηλ);  m ← β₁m + (1-β₁)g;  v ← β₂v + (1-β₂)g²;  θ ← θ - η/(1-β₁ᵗ) · m / (√v/√(1-β₂ᵗ) + ε)
 *
 * `scale` multiplies every gradient first: the factor of clipping.
 */
export function adamWStep(
  tensors: Tensors,
  gradients: Tensors,
  state: AdamWState,
  learningRate: number,
  settings: AdamWSettings,
  scale = 1,
): void {
  const [beta1, beta2] = settings.betas
  state.step++
  const stepSize = learningRate / (1 - beta1 ** state.step)
  const secondScale = Math.sqrt(1 - beta2 ** state.step)
  const decay = 1 - learningRate * settings.weightDecay
  for (const [name, theta] of tensors) {
    const gradient = named(gradients, name)
    const m = named(state.first, name)
    const v = named(state.second, name)
    for (let i = 0; i < theta.length; i++) {
      const g = gradient[i]! * scale
      const first = beta1 * m[i]! + (1 - beta1) * g
      const second = beta2 * v[i]! + (1 - beta2) * g * g
      m[i] = first
      v[i] = second
      theta[i] = theta[i]! * decay - (stepSize * first) / (Math.sqrt(second) / secondScale + settings.epsilon)
    }
  }
}

/** Euclidean norm over all tensors together, summed in the map's order; NaN or infinite if any element is. */
export function globalNorm(tensors: Tensors): number {
  let sum = 0
  for (const data of tensors.values()) for (let i = 0; i < data.length; i++) sum += data[i]! * data[i]!
  return Math.sqrt(sum)
}

/** The factor that brings a gradient of norm `norm` down to `limit`, at most 1 (torch.nn.utils.clip_grad_norm_); limit 0: 1. */
export function clipFactor(norm: number, limit: number): number {
  return limit === 0 ? 1 : Math.min(1, limit / (norm + 1e-6))
}

/** Adds `gradients` to `sum` element by element. */
export function accumulate(sum: Tensors, gradients: Tensors): void {
  for (const [name, total] of sum) {
    const part = named(gradients, name)
    for (let i = 0; i < total.length; i++) total[i] = total[i]! + part[i]!
  }
}

/** Tensors of the same names and sizes, all zero. */
export function zerosLike(tensors: Tensors): Tensors {
  return new Map([...tensors].map(([name, data]) => [name, new Float32Array(data.length)]))
}

/** A copy that shares no memory. */
export function copyTensors(tensors: Tensors): Tensors {
  return new Map([...tensors].map(([name, data]) => [name, data.slice()]))
}

function named(tensors: Tensors, name: string): Float32Array {
  const data = tensors.get(name)
  if (data === undefined) throw new Error(`There is no tensor "${name}" in this step`)
  return data
}
