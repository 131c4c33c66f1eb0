import { createRequire } from 'node:module'
import type * as core from '@tensorflow/tfjs-core'
import { beforeAll, describe, expect, it } from 'vitest'
import { GraphBuilder, type Tensor } from '../../src/onnx/index.ts'
import { installedTfjs, openTfjs } from '../../src/tfjs/index.ts'

const tf = createRequire(import.meta.url)('@tensorflow/tfjs-core') as typeof core

// its memory can be asked for once it has a backend
beforeAll(() => installedTfjs('wasm'))

const floats = (values: number[], shape = [values.length]): Tensor => ({
  dtype: 'float32',
  shape,
  data: Float32Array.from(values),
})

/** y = σ(x W), loss = Σ y. */
function model(): GraphBuilder {
  const g = new GraphBuilder()
  const x = g.input('x', 'float32', ['rows', 2])
  const w = g.initializer('w', floats([1, 2, 3, 4, 5, 6], [2, 3]))
  g.output(g.sigmoid(g.matmul(x, w)), 'y')
  g.output(g.reduceSum('y', [0, 1]), 'loss')
  return g
}

describe('a graph in TensorFlow.js', () => {
  it('holds no more tensors after many steps than before, and none when it is closed', async () => {
    const before = tf.memory().numTensors
    const session = await openTfjs(model().build(), { backend: 'wasm' })
    const feeds = { x: floats([0.1, -0.2, 0.3, 0.1], [2, 2]) }
    const held = tf.memory().numTensors
    expect(held).toBeGreaterThan(before)
    await session.gradients(feeds, { of: 'loss', wrt: ['x'] })
    const buffers = tf.memory().numDataBuffers
    for (let step = 0; step < 5; step++) {
      await session.run(feeds)
      await session.gradients(feeds, { of: 'loss', wrt: ['x'], outputs: ['y'] })
      await session.gradients(feeds, { of: 'y', seed: floats([1, 0, 0, 0, 2, 0], [2, 3]), wrt: ['x'] })
      expect(tf.memory().numTensors).toBe(held)
      expect(tf.memory().numDataBuffers).toBe(buffers)
    }
    session.close()
    expect(tf.memory().numTensors).toBe(before)
  })

  it('leaves nothing behind when a run fails', async () => {
    const session = await openTfjs(model().build(), { backend: 'wasm' })
    const held = tf.memory().numTensors
    await expect(session.run({ x: floats([1, 2, 3], [1, 3]) })).rejects.toThrow(/MatMul/)
    await expect(session.gradients({ x: floats([1, 2, 3], [1, 3]) }, { of: 'loss', wrt: ['x'] })).rejects.toThrow()
    expect(tf.memory().numTensors).toBe(held)
    session.close()
  })

  it('runs out of memory before the backend does, and can go on with less', async () => {
    const limit = tf.memory().numBytes + 1000
    const session = await openTfjs(model().build(), { backend: 'wasm', memoryLimit: limit })
    const held = tf.memory().numTensors
    const feeds = (rows: number) => ({ x: floats(new Array<number>(2 * rows).fill(0.1), [rows, 2]) })
    // the words that make a training run halve its token budget
    await expect(session.run(feeds(100))).rejects.toThrow(/out of memory/)
    await expect(session.gradients(feeds(100), { of: 'loss', wrt: ['x'] })).rejects.toThrow(/out of memory/)
    expect(tf.memory().numTensors).toBe(held)
    expect((await session.run(feeds(2), ['loss'])).loss!.data[0]).toBeCloseTo(4.0032, 3)
    session.close()
  })

  it('gives vector-Jacobian products: d(y)/d(x) applied to a seed', async () => {
    const session = await openTfjs(model().build(), { backend: 'cpu' })
    const feeds = { x: floats([0.1, -0.2], [1, 2]) }
    const { outputs, gradients } = await session.gradients(feeds, {
      of: 'y',
      seed: floats([0, 1, 0], [1, 3]),
      wrt: ['x'],
      outputs: ['y'],
    })
    const y = outputs.y!.data[1] as number
    expect(gradients.get('x')![0]).toBeCloseTo(y * (1 - y) * 2, 5)
    expect(gradients.get('x')![1]).toBeCloseTo(y * (1 - y) * 5, 5)
    session.close()
  })

  it('evaluates only what the outputs that are asked for need', async () => {
    const g = model()
    const other = g.input('other', 'float32', [1])
    g.output(g.mul(other, 'loss'), 'product')
    const session = await openTfjs(g.build(), { backend: 'cpu' })
    const { loss } = await session.run({ x: floats([0, 0], [1, 2]) }, ['loss'])
    expect(loss!.data[0]).toBeCloseTo(1.5, 5)
    await expect(session.run({ x: floats([0, 0], [1, 2]) })).rejects.toThrow('The input "other" is missing')
    session.close()
  })

  it('keeps two graphs on two backends apart', async () => {
    const sessions = [
      await openTfjs(model().build(), { backend: 'wasm' }),
      await openTfjs(model().build(), { backend: 'cpu' }),
    ]
    const feeds = { x: floats([0.5, -1], [1, 2]) }
    for (let i = 0; i < 2; i++) {
      const [a, b] = await Promise.all(sessions.map((session) => session.run(feeds, ['loss'])))
      expect(a!.loss!.data[0]).toBeCloseTo(b!.loss!.data[0] as number, 5)
    }
    for (const session of sessions) session.close()
  })

  it('computes integers exactly, beyond what float32 or a double holds', async () => {
    const g = new GraphBuilder()
    const a = g.input('a', 'int64', [2])
    const b = g.input('b', 'int64', [2])
    g.output(g.add(a, b), 'sum')
    g.output(g.mul(a, b), 'product')
    g.output(g.one('Equal', [a, b]), 'equal')
    const session = await openTfjs(g.build(), { backend: 'cpu' })
    const big = 2n ** 53n + 1n
    const { sum, product, equal } = await session.run({
      a: { dtype: 'int64', shape: [2], data: BigInt64Array.of(big, -7n) },
      b: { dtype: 'int64', shape: [2], data: BigInt64Array.of(big - 1n, 3n) },
    })
    expect(sum!.data).toEqual(BigInt64Array.of(2n ** 54n + 1n, -4n))
    expect(product!.data[0]).toBe(BigInt.asIntN(64, big * (big - 1n)))
    expect(equal!.data).toEqual(Uint8Array.of(0, 0))
    session.close()
  })

  it('computes what follows from the weights alone once, half precision and 4 bits included', async () => {
    const g = new GraphBuilder(21)
    const x = g.input('x', 'float32', [1, 2])
    const half = g.initializer('half', { dtype: 'float16', shape: [2], data: Uint16Array.of(0x3c00, 0xc100) })
    const nibbles = g.initializer('nibbles', { dtype: 'int4', shape: [2], data: Uint8Array.of(0x7f) })
    const scale = g.initializer('scale', floats([0.5], []))
    const dequantised = g.one('DequantizeLinear', [nibbles, scale], { types: [{ dtype: 'float32', shape: [2] }] })
    g.output(g.add(x, g.mul(g.cast(half, 'float32'), dequantised)), 'y')
    const before = tf.memory().numTensors
    const session = await openTfjs(g.build(), { backend: 'cpu' })
    // their product is all that stays
    expect(tf.memory().numTensors).toBe(before + 1)
    const { y } = await session.run({ x: floats([0, 0], [1, 2]) })
    expect([...(y!.data as Float32Array)]).toEqual([-0.5, -8.75])
    session.close()
  })
})

describe('what TensorFlow.js cannot do', () => {
  it('is an error that names the operator and the node, when the graph is opened', async () => {
    const g = new GraphBuilder()
    const x = g.input('x', 'float32', [2])
    g.output(g.one('Det', [x], { name: 'some/node', types: [{ dtype: 'float32', shape: [2] }] }))
    await expect(openTfjs(g.build())).rejects.toThrow('No TensorFlow.js expression for: Det (node "some/node")')
  })

  it('is an error where the graph leaves float32 on the way from what is trained to the loss', async () => {
    const g = new GraphBuilder()
    const x = g.input('x', 'float32', [2])
    g.output(g.reduceSum(g.cast(g.cast(x, 'float64'), 'float32'), [0]), 'loss')
    const session = await openTfjs(g.build(), { backend: 'cpu' })
    await expect(session.gradients({ x: floats([1, 2]) }, { of: 'loss', wrt: ['x'] })).rejects.toThrow(
      /Cast.*float64 between what is trained and the loss/,
    )
    session.close()
  })

  it('is an error beyond six axes, where the wasm backend would give wrong numbers', async () => {
    const g = new GraphBuilder()
    const x = g.input('x', 'float32', [2])
    g.output(g.one('Reshape', [x, g.constant([1, 1, 1, 1, 1, 1, 2], 'int64')]))
    const session = await openTfjs(g.build(), { backend: 'wasm' })
    await expect(session.run({ x: floats([1, 2]) })).rejects.toThrow(/at most 6 axes, not 7/)
    session.close()
  })
})
