// A listwise loss: at each decision node v, what shall win is compared with everything that shall lose at once, instead of pair
// by pair. In a config file:
//
//   loss: losses/listwise.mjs          # relative to the config file
//   lossOptions: { temperature: 0.05 }
//
// The lists are those of the refinement rule. Where all of v is gold, v shall beat its children. Otherwise each gold child shall
// beat v and the children without gold, and v those:
//
//   ℓ(w, losers) = -log softmax over {w} ∪ losers at w = log(1 + Σ_l exp((s_l - s_w)/τ))
//   L = mean over decision nodes of the mean of their lists' ℓ
//
// With one loser in each list that is the logistic loss.

export function options({ temperature = 0.05, ...others }) {
  const unknown = Object.keys(others)
  if (unknown.length > 0) throw new Error(`there is no option ${unknown.join(', ')}; "temperature" is the only one.`)
  if (!(temperature > 0)) throw new Error(`"temperature" is a number above 0, not ${temperature}.`)
  return { temperature }
}

/** @type {import('canopy-encoder').Loss} */
export default function listwise({ instances, options: { temperature } }) {
  const decisions = instances.flatMap(({ nodes }, i) =>
    nodes.flatMap((node) => (node.children.length > 0 ? [{ i, lists: listsOf(nodes, node) }] : [])),
  )
  const gradients = instances.map(({ nodes }) => new Float64Array(nodes.length))
  let loss = 0
  for (const { i, lists } of decisions) {
    const { scores } = instances[i]
    const weight = 1 / decisions.length / lists.length
    for (const { winner, losers } of lists) {
      // The largest exponent is taken out of the sum, so that nothing overflows.
      const exponents = losers.map((l) => (scores[l] - scores[winner]) / temperature)
      const largest = Math.max(0, ...exponents)
      const terms = exponents.map((x) => Math.exp(x - largest))
      const sum = terms.reduce((a, b) => a + b, Math.exp(-largest))
      loss += weight * (largest + Math.log(sum))
      losers.forEach((l, k) => {
        const slope = (weight * terms[k]) / sum / temperature
        gradients[i][l] += slope
        gradients[i][winner] -= slope
      })
    }
  }
  return { loss, gradients }
}

/** What shall win against what at a decision node, by places among the nodes. */
function listsOf(nodes, node) {
  const v = nodes.indexOf(node)
  if (node.gold === 'all') return [{ winner: v, losers: node.children }]
  const gold = node.children.filter((c) => nodes[c].gold !== 'none')
  const rest = node.children.filter((c) => nodes[c].gold === 'none')
  const lists = gold.map((winner) => ({ winner, losers: [v, ...rest] }))
  return rest.length > 0 ? [...lists, { winner: v, losers: rest }] : lists
}
