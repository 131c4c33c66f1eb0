// The built-in logistic loss as a module: the same numbers, to rounding. Something to start a loss of one's own from.
//
//   canopy train --loss configs/losses/logistic.mjs …
//
//   L = Σ_p weight_p · softplus(-d_p/τ),   d_p = s(preferred) - s(other)
//   dL/ds(preferred) = Σ_p weight_p · ℓ′(d_p),   dL/ds(other) = -Σ_p weight_p · ℓ′(d_p),   ℓ′(d) = -1/τ / (1 + exp(d/τ))

/** @type {import('canopy-encoder').Loss} */
export default function logistic({ instances, settings: { tau } }) {
  let loss = 0
  const gradients = instances.map(({ nodes, pairs, scores }) => {
    const gradient = new Float64Array(nodes.length)
    for (const { preferred, other, weight } of pairs) {
      const x = -(scores[preferred] - scores[other]) / tau
      loss += weight * (Math.max(x, 0) + Math.log1p(Math.exp(-Math.abs(x))))
      const slope = (-weight / tau) * (x > 0 ? 1 / (1 + Math.exp(-x)) : Math.exp(x) / (1 + Math.exp(x)))
      gradient[preferred] += slope
      gradient[other] -= slope
    }
    return gradient
  })
  return { loss, gradients }
}
