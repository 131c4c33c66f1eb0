import { readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { decodeModel, dtypeNumber, encodeModel, type Graph, intAttribute, type Node } from '../onnx/index.ts'
import { LARGEST_FLOAT16 } from './half.ts'
import { variantFile } from './variants.ts'

/**
 * Runs with copies of a folder's float16 graphs in which a number that is too large for float16 becomes NaN where it is cast. The CPU
 * has no float16 kernels: ONNX Runtime computes products in float32 there and leaves casts out, so that what overflows on other
 * devices would not show.
 *
 * @param graphs their names, `model` say
 * @param use gets what the copies' names end in, in place of `.onnx`
 */
export async function withOverflowShown<T>(
  folder: string,
  graphs: readonly string[],
  use: (ending: string) => Promise<T>,
): Promise<T> {
  const ending = '_fp16_overflow.onnx'
  const copies: string[] = []
  try {
    for (const graph of graphs) {
      const file = join(folder, 'onnx', variantFile(graph, 'fp16'))
      const copy = join(folder, 'onnx', graph + ending)
      copies.push(copy)
      await writeFile(copy, encodeModel(overflowShown(decodeModel(await readFile(file), file))))
    }
    return await use(ending)
  } finally {
    for (const copy of copies) await rm(copy, { force: true })
  }
}

/** x as it is, NaN where |x| > 65504, before every cast of a computed x to float16. */
function overflowShown(graph: Graph): Graph {
  const initializers = new Map(graph.initializers)
  for (const [name, value] of [
    ['overflow/limit', LARGEST_FLOAT16],
    ['overflow/none', Number.NaN],
  ] as const)
    initializers.set(name, { dtype: 'float32', shape: [], data: Float32Array.of(value) })
  const nodes = graph.nodes.flatMap((node): Node[] => {
    const [x = ''] = node.inputs
    if (node.op !== 'Cast' || intAttribute(node.attributes, 'to', 0) !== dtypeNumber('float16')) return [node]
    const at = (what: string): string => `${node.name}/${what}`
    const made = (op: string, inputs: string[], output: string): Node => ({
      ...{ op, domain: '', name: output, inputs, attributes: {} },
      outputs: [output],
    })
    return [
      made('Abs', [x], at('size')),
      made('Greater', [at('size'), 'overflow/limit'], at('overflows')),
      made('Where', [at('overflows'), 'overflow/none', x], at('shown')),
      { ...node, inputs: [at('shown')] },
    ]
  })
  return { ...graph, nodes, initializers }
}
