// The built-in hinge loss as a module: the same numbers, to rounding.
//
//   canopy train --loss configs/losses/hinge.mjs …
//
//   L = Σ_p weight_p · max(0, m - d_p),   d_p = s(preferred) - s(other)

/** @type {import('canopy-encoder').Loss} */
export default function hinge({ instances, settings: { margin } }) {
  let loss = 0
  const gradients = instances.map(({ nodes, pairs, scores }) => {
    const gradient = new Float64Array(nodes.length)
    for (const { preferred, other, weight } of pairs) {
      const short = margin - (scores[preferred] - scores[other])
      if (short <= 0) continue
      loss += weight * short
      gradient[preferred] -= weight
      gradient[other] += weight
    }
    return gradient
  })
  return { loss, gradients }
}
