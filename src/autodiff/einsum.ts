import { type Dim, einsumTerms, type GraphBuilder, stringAttribute } from '../onnx/index.ts'
import { InputError } from '../support/errors.ts'
import type { GradientRule } from './rule.ts'

/** Letters for the axes under an ellipsis, which the equation does not use. */
function spelled(terms: string[][]): (letter: string) => string {
  const used = new Set(terms.flat())
  const free = [...'abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ'].filter((letter) => !used.has(letter))
  return (letter) => (/\d/.test(letter) ? (free[Number(letter)] as string) : letter)
}

/**
 * y = Σ a·b·... over the letters that y lacks:  da = Σ dy·b·... over the letters that a lacks. Letters that a alone has
 * were summed away: da is the same along them.
 */
export const einsumGradient: GradientRule = ({ dy, node, g }) => {
  const equation = stringAttribute(node.attributes, 'equation', '')
  const { inputs, output } = einsumTerms(
    equation,
    node.inputs.map((input) => g.shape(input).length),
  )
  if ([...inputs, output].some((letters) => new Set(letters).size < letters.length))
    throw new InputError(`No gradient for: Einsum "${equation}", which takes a diagonal (node "${node.name}")`)
  const spell = spelled([...inputs, output])
  return node.inputs.map((input, i) => () => {
    const own = inputs[i] as string[]
    const others = inputs.flatMap((letters, j) => (j === i ? [] : [{ letters, value: node.inputs[j] as string }]))
    const available = new Set([...output, ...others.flatMap(({ letters }) => letters)])
    const kept = own.filter((letter) => available.has(letter))
    const terms = [{ letters: output, value: dy }, ...others]
    const text = [...terms.map(({ letters }) => letters), kept].map((letters) => letters.map(spell).join(''))
    const found = g.one(
      'Einsum',
      terms.map(({ value }) => value),
      { attributes: { equation: { s: `${text.slice(0, -1).join(',')}->${text.at(-1)}` } } },
    )
    return alongLost(g, found, own, kept, g.shape(input))
  })
}

/** `found`, with the axes of `kept`, repeated along the axes that it lacks of `own`, which have the sizes `shape`. */
function alongLost(g: GraphBuilder, found: string, own: string[], kept: string[], shape: Dim[]): string {
  const lost = own.flatMap((letter, axis) => (kept.includes(letter) ? [] : [axis]))
  if (lost.length === 0) return found
  return g.expand(
    g.unsqueeze(found, lost),
    own.map((letter, axis) => (kept.includes(letter) ? 1 : (shape[axis] as Dim))),
  )
}
