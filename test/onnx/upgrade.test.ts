import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import {
  type Attribute,
  decodeModel,
  type Graph,
  inferTypes,
  openSession,
  type Tensor,
  upgradeOpset,
} from '../../src/onnx/index.ts'
import { InputError } from '../../src/support/errors.ts'

const shape = [2, 3, 4]
const x: Tensor = {
  dtype: 'float32',
  shape,
  data: Float32Array.from({ length: 24 }, (_, i) => Math.sin(3 * i) * 2),
}

/** A graph of one node of an old operator set, with the input x [2, 3, 4]. */
function old(opset: number, op: string, attributes: Record<string, Attribute>, ranks: number[]): Graph {
  const outputs = ranks.map((_, i) => `y${i}`)
  return {
    opset,
    inputs: ['x'],
    outputs,
    nodes: [{ op, domain: '', name: 'old', inputs: ['x'], outputs, attributes }],
    initializers: new Map(),
    types: new Map([
      ['x', { dtype: 'float32', shape: ['a', 3, 4] }],
      ...outputs.map((name, i) => {
        const dims = Array.from({ length: ranks[i] as number }, (_, axis) => `${name}_${axis}`)
        return [name, { dtype: 'float32' as const, shape: dims }] as const
      }),
    ]),
  }
}

async function run(graph: Graph): Promise<Record<string, Tensor>> {
  const session = await openSession(graph, { threads: 1 })
  try {
    return await session.run({ x })
  } finally {
    await session.release()
  }
}

const ints = (...values: number[]): Attribute => ({ ints: values })
const cases: [string, number, string, Record<string, Attribute>, number[]][] = [
  ['Unsqueeze with axes as an attribute', 11, 'Unsqueeze', { axes: ints(0, 3) }, [5]],
  ['ReduceSum with axes as an attribute', 12, 'ReduceSum', { axes: ints(1), keepdims: { i: 0 } }, [2]],
  ['ReduceSum over all axes', 11, 'ReduceSum', {}, [3]],
  ['Split with sizes as an attribute', 11, 'Split', { axis: { i: 2 }, split: ints(1, 3) }, [3, 3]],
  ['Split into equal parts', 11, 'Split', { axis: { i: 2 } }, [3, 3]],
  ['Softmax over the axes from 1 on', 12, 'Softmax', {}, [3]],
  ['Softmax over all axes', 11, 'Softmax', { axis: { i: 0 } }, [3]],
  ['Softmax over the last axis', 11, 'Softmax', { axis: { i: 2 } }, [3]],
  ['LogSoftmax over the axes from 1 on', 8, 'LogSoftmax', { axis: { i: 1 } }, [3]],
  ['Clip with bounds as attributes', 8, 'Clip', { min: { f: -0.5 }, max: { f: 0.75 } }, [3]],
  ['Clip with an upper bound', 10, 'Clip', { max: { f: 0.75 } }, [3]],
  ['Dropout with a ratio', 10, 'Dropout', { ratio: { f: 0.3 } }, [3]],
  ['Pad with pads as an attribute', 10, 'Pad', { pads: ints(0, 1, 0, 0, 0, 2), value: { f: 7 } }, [3]],
  ['Slice with bounds as attributes', 9, 'Slice', { starts: ints(1, -3), ends: ints(3, 9), axes: ints(1, 2) }, [3]],
]

describe('older operator sets', () => {
  for (const [name, opset, op, attributes, ranks] of cases)
    test(`${name} (operator set ${opset}) means the same in 17`, async () => {
      const before = old(opset, op, attributes, ranks)
      const after = inferTypes(upgradeOpset(before))
      expect(after.opset).toBe(17)
      expect(await run(after)).toEqual(await run(before))
    })

  test('Softmax over the last axis stays one node', () => {
    const graph = upgradeOpset(old(11, 'Softmax', { axis: { i: 2 } }, [3]))
    expect(graph.nodes.map((node) => [node.op, node.attributes])).toEqual([['Softmax', { axis: { i: -1 } }]])
  })

  test('Squeeze with axes as an attribute means the same in 17', async () => {
    const before = old(11, 'Unsqueeze', { axes: ints(1) }, [4])
    before.nodes.push({
      op: 'Squeeze',
      domain: '',
      name: 'squeeze',
      inputs: ['y0'],
      outputs: ['z'],
      attributes: { axes: ints(1) },
    })
    before.outputs = ['z']
    before.types.set('z', { dtype: 'float32', shape: ['a', 3, 4] })
    expect((await run(inferTypes(upgradeOpset(before)))).z).toEqual({ ...x })
  })

  test('a whole encoder of operator set 11 gives what it gave', async () => {
    const file = join(import.meta.dirname, '../fixtures/onnx/tiny-bert-opset11/onnx/model.onnx')
    const graph = decodeModel(readFileSync(file), file)
    expect(graph.opset).toBe(11)
    const ids = (value: (i: number) => number): Tensor => ({
      dtype: 'int64',
      shape: [2, 4],
      data: BigInt64Array.from({ length: 8 }, (_, i) => BigInt(value(i))),
    })
    const feeds = Object.fromEntries(
      graph.inputs.map((name) => [
        name,
        ids(name === 'input_ids' ? (i) => i + 2 : name === 'token_type_ids' ? () => 0 : () => 1),
      ]),
    )
    const results = []
    for (const source of [file, inferTypes(upgradeOpset(graph))]) {
      const session = await openSession(source, { threads: 1, optimization: 'disabled' })
      results.push(await session.run(feeds))
      await session.release()
    }
    expect(results[1]).toEqual(results[0])
  })

  test('operator set 17 and later stay as they are', () => {
    const graph = old(18, 'Softmax', {}, [3])
    expect(upgradeOpset(graph)).toBe(graph)
  })

  test('what is too old, or cannot be said, is refused with the way out', () => {
    expect(() => upgradeOpset(old(6, 'Neg', {}, [3]))).toThrow(InputError)
    expect(() => upgradeOpset(old(6, 'Neg', {}, [3]))).toThrow(/operator set is 6; 7 and later.*version_converter/)
    expect(() => upgradeOpset(old(9, 'Upsample', {}, [3]))).toThrow(/node "old" \(Upsample, operator set 9\)/)
    const training = old(9, 'BatchNormalization', {}, [3, 1, 1, 1, 1])
    expect(() => upgradeOpset(training)).toThrow(/"old" \(BatchNormalization.*statistics of its batch/)
  })
})
