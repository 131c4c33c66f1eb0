import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { create, fromBinary, toBinary } from '@bufbuild/protobuf'
import fc from 'fast-check'
import {
  AttributeProto_AttributeType,
  AttributeProtoSchema,
  GraphProtoSchema,
  ModelProtoSchema,
  NodeProtoSchema,
} from 'onnx-buf'
import { describe, expect, test } from 'vitest'
import {
  bfloat16ToFloat32,
  checkGraph,
  decodeModel,
  encodeModel,
  float16ToFloat32,
  float32ToBfloat16,
  float32ToFloat16,
  type Graph,
  GraphBuilder,
  openSession,
  prune,
  type Session,
  type Tensor,
} from '../../src/onnx/index.ts'
import { InputError } from '../../src/support/errors.ts'

const float32 = (shape: number[], ...values: number[]): Tensor => ({
  dtype: 'float32',
  shape,
  data: Float32Array.from(values),
})

async function using<T>(session: Session, use: (session: Session) => Promise<T>): Promise<T> {
  try {
    return await use(session)
  } finally {
    await session.release()
  }
}

const run = async (graph: Graph, feeds: Record<string, Tensor>) =>
  using(await openSession(graph, { threads: 1 }), (session) => session.run(feeds))

function example(): Graph {
  const g = new GraphBuilder()
  const x = g.input('x', 'float32', ['rows', 2])
  const w = g.initializer('w', float32([2, 3], 1, 2, 3, 4, 5, 6))
  const y = g.gemm(x, w, null, { alpha: 0.5 })
  g.output(g.reshape(g.softmax(y), ['rows', 3, 1]), 'y')
  return g.build()
}

describe('models as bytes', () => {
  test('a graph that is written and read is the same graph, and equal graphs are equal bytes', () => {
    const graph = example()
    const bytes = encodeModel(graph)
    expect(Buffer.from(bytes).equals(Buffer.from(encodeModel(example())))).toBe(true)
    // as a file is read: part of a larger Buffer, at an odd place
    const back = decodeModel(Buffer.concat([Buffer.of(0), bytes]).subarray(1))
    expect(back.nodes).toEqual(graph.nodes)
    expect(back.initializers).toEqual(graph.initializers)
    expect(back.inputs).toEqual(['x'])
    expect(back.types.get('x')).toEqual({ dtype: 'float32', shape: ['rows', 2] })
    expect(back.types.get('y')?.shape.slice(1)).toEqual([3, 1])
    expect(Buffer.from(encodeModel(back)).equals(Buffer.from(bytes))).toBe(true)
  })

  test('attributes of every kind, and tensors of every type, survive', () => {
    const graph: Graph = {
      opset: 20,
      inputs: [],
      outputs: [],
      types: new Map(),
      initializers: new Map<string, Tensor>([
        ['a', { dtype: 'float16', shape: [1], data: Uint16Array.of(15360) }],
        ['b', { dtype: 'bool', shape: [2], data: Uint8Array.of(1, 0) }],
        ['c', { dtype: 'int64', shape: [], data: BigInt64Array.of(-(2n ** 63n)) }],
        ['d', { dtype: 'bfloat16', shape: [0], data: new Uint16Array() }],
      ]),
      nodes: [
        {
          op: 'Thing',
          domain: 'com.microsoft',
          name: 't',
          inputs: ['a', '', 'b'],
          outputs: ['', 'z'],
          attributes: {
            i: { i: -3 },
            f: { f: 0.5 },
            s: { s: 'é' },
            ints: { ints: [1, -1] },
            none: { ints: [] },
            floats: { floats: [0.25] },
            strings: { strings: ['a', 'b'] },
            t: { t: float32([1], 7) },
          },
        },
      ],
    }
    const back = decodeModel(encodeModel(graph))
    expect(back.nodes).toEqual(graph.nodes)
    expect(back.initializers).toEqual(graph.initializers)
    expect(back.domains).toEqual({ 'com.microsoft': 1 })
  })

  test('the largest int64, which a double cannot hold, is written as the largest int64', () => {
    const g = new GraphBuilder()
    g.node('Thing', [], { attributes: { end: { i: 2 ** 63 } }, types: [{ dtype: 'float32', shape: [] }] })
    const model = fromBinary(ModelProtoSchema, encodeModel(g.build()))
    expect(model.graph?.node[0]?.attribute[0]?.i).toBe(2n ** 63n - 1n)
  })

  test('an external tensor is a location, an offset and a length', () => {
    const g = new GraphBuilder()
    const external = { file: 'model.safetensors', offset: 12345, length: 24 }
    g.output(g.initializer('w', { dtype: 'float32', shape: [2, 3], external }))
    const bytes = encodeModel(g.build())
    expect(decodeModel(bytes).initializers.get('w')).toEqual({ dtype: 'float32', shape: [2, 3], external })
  })

  test.each([
    ['../weights', /not inside the model's folder/],
    ['/etc/passwd', /not inside the model's folder/],
    ['a/../../b', /not inside the model's folder/],
    ['C:\\x', /not inside the model's folder/],
    ['', /names no file/],
  ])('external data in %j is refused', (file, message) => {
    const g = new GraphBuilder()
    g.output(g.initializer('w', { dtype: 'float32', shape: [1], external: { file, offset: 0, length: 4 } }))
    expect(() => decodeModel(encodeModel(g.build()), 'model.onnx')).toThrow(message)
  })

  test('damaged files and what graphs here cannot hold are named', () => {
    expect(() => decodeModel(Uint8Array.of(1, 2, 3), 'm.onnx')).toThrow(InputError)
    expect(() => decodeModel(new Uint8Array(), 'm.onnx')).toThrow(/m\.onnx: not an ONNX model/)
    const bytes = encodeModel(example())
    expect(() => decodeModel(bytes.subarray(0, bytes.length - 7))).toThrow(/cut short/)
    const model = fromBinary(ModelProtoSchema, bytes)
    model.graph?.node[0]?.attribute.push(
      create(AttributeProtoSchema, {
        name: 'then_branch',
        type: AttributeProto_AttributeType.GRAPH,
        g: create(GraphProtoSchema, {}),
      }),
    )
    expect(() => decodeModel(toBinary(ModelProtoSchema, model))).toThrow(/\(Gemm\), attribute "then_branch": GRAPH/)
    const lying = fromBinary(ModelProtoSchema, bytes)
    lying.graph?.initializer[0]?.dims.push(2n)
    expect(() => decodeModel(toBinary(ModelProtoSchema, lying))).toThrow(/"w".*holds 12 elements, the data has 6/)
  })

  test('Constant nodes become initializers, typed data fields are read, types are inferred', async () => {
    const model = fromBinary(ModelProtoSchema, encodeModel(example()))
    const w = model.graph?.initializer[0]
    if (w !== undefined) {
      w.floatData = [...new Float32Array(w.rawData.slice().buffer)]
      w.rawData = new Uint8Array()
    }
    const shape = model.graph?.initializer[1]
    if (shape !== undefined) {
      model.graph?.initializer.splice(1, 1)
      const value = create(AttributeProtoSchema, {
        name: 'value',
        type: AttributeProto_AttributeType.TENSOR,
        t: shape,
      })
      model.graph?.node.unshift(
        create(NodeProtoSchema, { name: 'c', opType: 'Constant', output: [shape.name], attribute: [value] }),
      )
    }
    const back = decodeModel(toBinary(ModelProtoSchema, model))
    expect(back.nodes.map((node) => node.op)).toEqual(['Gemm', 'Softmax', 'Reshape', 'Identity'])
    expect(back.initializers.get('w')).toEqual(example().initializers.get('w'))
    expect(back.types.get('y')?.shape).toEqual(['rows', 3, 1])
    const feeds = { x: float32([1, 2], 1, 2) }
    expect(await run(back, feeds)).toEqual(await run(example(), feeds))
  })
})

describe('sessions', () => {
  test('every element type goes in and comes out', async () => {
    const g = new GraphBuilder()
    const tensors: Record<string, Tensor> = {
      a: float32([2], 1, 2),
      b: { dtype: 'int64', shape: [1], data: BigInt64Array.of(2n ** 60n) },
      c: { dtype: 'int32', shape: [], data: Int32Array.of(-4) },
      d: { dtype: 'bool', shape: [2], data: Uint8Array.of(0, 1) },
      e: { dtype: 'float16', shape: [1], data: float32ToFloat16(Float32Array.of(0.5)) },
      f: { dtype: 'float64', shape: [1], data: Float64Array.of(Math.E) },
      h: { dtype: 'uint8', shape: [0], data: new Uint8Array() },
    }
    for (const [name, tensor] of Object.entries(tensors))
      g.output(g.input(name, tensor.dtype, [...tensor.shape]), `${name}_out`)
    const results = await run(g.build(), tensors)
    for (const [name, tensor] of Object.entries(tensors)) expect(results[`${name}_out`], name).toEqual(tensor)
  })

  test('feeds that do not fit are refused before anything runs, by name', async () => {
    const g = new GraphBuilder()
    const x = g.input('x', 'float32', ['rows', 2])
    const y = g.input('y', 'float32', ['rows', 2])
    g.output(g.add(x, y), 'sum')
    const good = float32([1, 2], 1, 2)
    await using(await openSession(g.build(), { threads: 1 }), async (session) => {
      await expect(session.run({ x: good })).rejects.toThrow('The input "y" is missing')
      await expect(session.run({ x: good, y: good, z: good })).rejects.toThrow(/no input "z"; it has x, y/)
      await expect(session.run({ x: good, y: float32([2], 1, 2) })).rejects.toThrow(
        /"y" has shape \[rows, 2\], not \[2\]/,
      )
      await expect(session.run({ x: good, y: float32([1, 3], 1, 2, 3) })).rejects.toThrow(/not \[1, 3\]/)
      await expect(session.run({ x: good, y: float32([2, 2], 1, 2, 3, 4) })).rejects.toThrow(
        /"rows" is 1 in the input "x" and 2 in "y"/,
      )
      const ints: Tensor = { dtype: 'int32', shape: [1, 2], data: Int32Array.of(1, 2) }
      await expect(session.run({ x: good, y: ints })).rejects.toThrow('"y" is float32, not int32')
      await expect(session.run({ x: good, y: { ...good, shape: [2, 2] } })).rejects.toThrow(/holds 4 elements/)
      expect((await session.run({ x: good, y: good })).sum?.data).toEqual(Float32Array.of(2, 4))
    })
  })

  test('a released session says so, and releasing twice is harmless', async () => {
    const session = await openSession(example(), { threads: 1 })
    await session.release()
    await session.release()
    await expect(session.run({ x: float32([1, 2], 1, 2) })).rejects.toThrow(/released/)
  })

  test('a model that ONNX Runtime refuses, missing weights, and a missing file are InputErrors', async () => {
    const g = new GraphBuilder()
    g.output(g.one('NoSuchOp', [g.input('x', 'float32', [1])], { types: [{ dtype: 'float32', shape: [1] }] }))
    await expect(openSession(g.build())).rejects.toThrow(InputError)
    await expect(openSession(g.build())).rejects.toThrow(/NoSuchOp/)
    await expect(openSession('nowhere/model.onnx')).rejects.toThrow(/nowhere\/model.onnx: there is no ONNX model/)
    const folder = await mkdtemp(join(tmpdir(), 'canopy-session-'))
    const h = new GraphBuilder()
    const external = { file: 'gone.safetensors', offset: 0, length: 4 }
    h.output(h.neg(h.initializer('w', { dtype: 'float32', shape: [1], external })))
    await expect(openSession(h.build())).rejects.toThrow(/give its folder/)
    await expect(openSession(h.build(), { externalFolder: folder })).rejects.toThrow(/gone\.safetensors/)
    await writeFile(join(folder, 'model.onnx'), encodeModel(example()))
    await using(await openSession(join(folder, 'model.onnx'), { threads: 1 }), async (session) => {
      expect([...session.inputs]).toEqual([['x', { dtype: 'float32', shape: ['rows', 2] }]])
      expect(session.outputs).toEqual(['y'])
    })
    await rm(folder, { recursive: true })
  })
})

describe('graphs', () => {
  test('pruning leaves what the outputs need and nothing else', async () => {
    const g = new GraphBuilder()
    const x = g.input('x', 'float32', [2])
    g.input('unused', 'float32', [1])
    const w = g.initializer('w', float32([2], 3, 4))
    const dead = g.initializer('dead', float32([2], 0, 0))
    const y = g.layerNorm(x, w, dead, 1e-5)
    g.withOutputs(g.build().nodes[0]!, 3)
    g.exp(g.add(x, g.initializer('deader', float32([2], 0, 0))))
    g.output(y, 'y')
    g.output(g.neg(x), 'z')
    const full = g.build()
    const nodes = full.nodes.length
    const small = prune(full, { outputs: ['y'], unusedInputs: false })
    expect(small.nodes.map((node) => node.op)).toEqual(['LayerNormalization', 'Identity'])
    expect(small.nodes[0]?.outputs.length).toBe(1)
    expect([...small.initializers.keys()]).toEqual(['w', 'dead'])
    expect(small.inputs).toEqual(['x'])
    expect(full.nodes.length).toBe(nodes)
    checkGraph(small)
    const feeds = { x: float32([2], 1, 5) }
    expect((await run(small, feeds)).y).toEqual((await run(full, { ...feeds, unused: float32([1], 0) })).y)
    expect(prune(full).inputs).toEqual(['x', 'unused'])
    expect(() => prune(full, { outputs: ['q'] })).toThrow(/no output "q"/)
  })

  test('checkGraph names the fault', () => {
    const graph = example()
    const change = (f: (g: Graph) => void) => () => {
      const copy: Graph = {
        ...graph,
        nodes: graph.nodes.map((node) => ({ ...node })),
        initializers: new Map(graph.initializers),
      }
      f(copy)
      checkGraph(copy)
    }
    expect(change(() => {})).not.toThrow()
    expect(change((g) => g.nodes.reverse())).toThrow(/reads "Reshape_out", which nothing before it makes/)
    expect(change((g) => g.nodes.push({ ...g.nodes[0]!, name: 'again' }))).toThrow(/"Gemm_out".*exists already/)
    expect(change((g) => g.nodes.push({ ...g.nodes[0]!, outputs: ['q'] }))).toThrow(/Two nodes are named "Gemm"/)
    expect(change((g) => (g.outputs = ['q']))).toThrow(/Nothing makes the output "q"/)
    expect(change((g) => g.initializers.set('w', float32([5], 1)))).toThrow(/"w".*holds 5 elements, the data has 1/)
  })

  test('reshape and expand read symbolic sizes when the graph runs', async () => {
    const g = new GraphBuilder()
    const x = g.input('x', 'float32', ['a', 'b', 2])
    const flat = g.reshape(x, ['ab', 2])
    g.output(flat, 'flat')
    g.output(g.transpose(g.reshape(flat, ['a', 'b', 2, 1]), [1, 0, 2, 3]), 'back')
    g.output(g.expand(g.scalar(7), ['b', 'ab']), 'wide')
    const data = Float32Array.from({ length: 12 }, (_, i) => i)
    const out = await run(g.build(), { x: { dtype: 'float32', shape: [3, 2, 2], data } })
    expect(out.flat?.shape).toEqual([6, 2])
    expect(out.back?.shape).toEqual([2, 3, 2, 1])
    expect(Array.from(out.back?.data ?? [], Number).slice(0, 4)).toEqual([0, 1, 4, 5])
    expect(out.wide).toEqual({ dtype: 'float32', shape: [2, 6], data: new Float32Array(12).fill(7) })
  })

  test('sumTo undoes broadcasting', async () => {
    const g = new GraphBuilder()
    const x = g.input('x', 'float32', ['n', 2, 3])
    g.output(g.sumTo(x, [2, 1]), 'y')
    const data = new Float32Array(24).fill(1)
    const { y } = await run(g.build(), { x: { dtype: 'float32', shape: [4, 2, 3], data } })
    expect(y).toEqual(float32([2, 1], 12, 12))
    expect(() => g.sumTo(x, ['m', 2, 3])).toThrow(/cannot tell/)
  })

  test('withOutputs asks the node that is there for its mean and inverse deviation', async () => {
    const g = new GraphBuilder()
    const x = g.input('x', 'float32', ['n', 4])
    const y = g.layerNorm(
      x,
      g.initializer('w', float32([4], 1, 1, 1, 1)),
      g.initializer('b', float32([4], 0, 0, 0, 0)),
      0,
    )
    g.output(y, 'y')
    const [, mean, inverseDeviation] = g.withOutputs(g.build().nodes[0]!, 3) as [string, string, string]
    expect(g.withOutputs(g.build().nodes[0]!, 3)).toEqual([y, mean, inverseDeviation])
    expect(g.build().nodes.map((node) => node.op)).toEqual(['LayerNormalization', 'Identity'])
    expect(g.type(mean)).toEqual({ dtype: 'float32', shape: ['n', 1] })
    g.output(mean)
    g.output(inverseDeviation)
    const graph = g.build()
    checkGraph(graph)
    const out = await run(graph, { x: float32([1, 4], 1, 3, 5, 7) })
    expect(out[mean]?.data[0]).toBe(4)
    expect(out[inverseDeviation]?.data[0]).toBeCloseTo(1 / Math.sqrt(5), 6)
  })

  test('a builder that continues a graph gives new names and symbols', () => {
    const first = new GraphBuilder()
    const x = first.input('x', 'float32', ['n', 4])
    first.output(first.concat([first.exp(x), x], 0))
    const g = GraphBuilder.from(first.build())
    g.output(g.exp(g.concat([x, x, x], 0)))
    expect(() => checkGraph(g.build())).not.toThrow()
    const symbols = g.build().outputs.map((name) => g.shape(name)[0])
    expect(new Set(symbols).size).toBe(2)
    expect(() => g.one('Neg', ['nothing'])).toThrow(/no value "nothing"/)
    expect(() => g.one('MatMul', [x, x, ''])).not.toThrow()
    expect(() => g.add(x, g.constant([1, 2, 3], 'float32'))).toThrow(/node "Add.*\(Add\).*do not broadcast/)
  })
})

describe('half-width floats', () => {
  test('every float16 and bfloat16 survives float32', () => {
    const all = Uint16Array.from({ length: 65536 }, (_, i) => i)
    for (const [widen, narrow] of [
      [float16ToFloat32, float32ToFloat16],
      [bfloat16ToFloat32, float32ToBfloat16],
    ] as const) {
      const wide = widen(all)
      const back = narrow(wide)
      for (let i = 0; i < all.length; i++) if (!Number.isNaN(wide[i])) expect(back[i]).toBe(i)
      expect(widen(narrow(Float32Array.of(Number.NaN)))[0]).toBeNaN()
    }
  })

  test('narrowing rounds as ONNX Runtime does', async () => {
    const g = new GraphBuilder()
    const x = g.input('x', 'float32', ['n'])
    g.output(g.cast(x, 'float16'), 'half')
    g.output(g.cast(g.cast(x, 'bfloat16'), 'float32'), 'brain')
    await using(await openSession(g.build(), { threads: 1, optimization: 'disabled' }), (session) =>
      fc.assert(
        fc.asyncProperty(fc.float32Array({ minLength: 1, maxLength: 200, noNaN: true }), async (data) => {
          const special = Float32Array.of(...data, 65519.99, 65520, 5.96e-8, 2.98e-8, 6.1e-5, -0, 1 + 2 ** -11)
          const out = await session.run({ x: { dtype: 'float32', shape: [special.length], data: special } })
          expect(float32ToFloat16(special)).toEqual(out.half?.data)
          expect(bfloat16ToFloat32(float32ToBfloat16(special))).toEqual(out.brain?.data)
        }),
        { seed: 3 },
      ),
    )
  })
})
