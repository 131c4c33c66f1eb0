import { describe, expect, it } from 'vitest'
import { gradients } from '../../src/autodiff/rules.ts'
import { operators } from '../../src/tfjs/operators.ts'
import { cases } from './cases.ts'
import { bothEngines, largestDifference } from './compare.ts'

/** float32 through two libraries: kernels of different order and approximations of erf, sin and exp. */
const TOLERANCE = 2e-6
const GRADIENT_TOLERANCE = 2e-5

describe.each(['wasm', 'cpu'] as const)('the operators of TensorFlow.js (%s)', (backend) => {
  it.each(cases)('agree with ONNX Runtime: %s', async (name, one) => {
    const { theirs, ours } = await bothEngines(name, one, backend)
    expect(Object.keys(ours.outputs)).toEqual(Object.keys(theirs.outputs))
    for (const [output, value] of Object.entries(theirs.outputs)) {
      const { dtype, shape } = ours.outputs[output]!
      expect({ dtype, shape }).toEqual({ dtype: value.dtype, shape: value.shape })
      expect(largestDifference(ours.outputs[output]!, value)).toBeLessThan(TOLERANCE)
    }
    for (const [input, value] of Object.entries(theirs.gradients))
      expect(largestDifference(ours.gradients[input]!, value), `gradient of ${input}`).toBeLessThan(GRADIENT_TOLERANCE)
  })
})

/** Operators that only move elements, or add them. */
const moving =
  /^(Add|Sub|Mul|Max|Min|Abs|Neg|Sign|Reshape|Squeeze|Unsqueeze|Flatten|Transpose|Expand|Concat|Split|Slice|Gather|GatherElements|GatherND|ScatterND|Tile|Trilu|Where|ReduceSum|ReduceMax|ReduceMin|ReduceProd|ArgMax|Identity)\b/

describe('the operators on integers, which stay exact outside of TensorFlow.js', () => {
  const onIntegers = cases
    .filter(([name, { inputs }]) => moving.test(name) && inputs.some(({ dtype }) => dtype === undefined))
    .map(([name, one]): [string, typeof one] => [
      name,
      {
        ...one,
        inputs: one.inputs.map((input, i) =>
          input.dtype === undefined
            ? { shape: input.shape, dtype: 'int64', values: wholeNumbers(input.shape, i) }
            : input,
        ),
      },
    ])

  it.each(onIntegers)('agree with ONNX Runtime: %s', async (name, one) => {
    const { theirs, ours } = await bothEngines(name, one, 'cpu')
    expect(ours.outputs).toEqual(theirs.outputs)
  })
})

function wholeNumbers(shape: number[], seed: number): number[] {
  return Array.from({ length: shape.reduce((a, b) => a * b, 1) }, (_, i) => ((i + 3 * seed) * 7) % 11)
}

/** Operators that `lower` takes apart before a graph comes here, although they have gradients of their own. */
const lowered = ['RotaryEmbedding', 'com.microsoft:RotaryEmbedding']

describe('the table of TensorFlow.js expressions', () => {
  it('has every operator that is differentiated', () => {
    expect(Object.keys(gradients).filter((op) => !(op in operators || lowered.includes(op)))).toEqual([])
  })
})
