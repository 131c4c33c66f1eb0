import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { create, toBinary } from '@bufbuild/protobuf'
import fc from 'fast-check'
import {
  type AttributeProto,
  AttributeProtoSchema,
  AttributeProto_AttributeType as AttributeType,
  FunctionProtoSchema,
  type GraphProto,
  GraphProtoSchema,
  type ModelProto,
  ModelProtoSchema,
  type NodeProto,
  NodeProtoSchema,
  OperatorSetIdProtoSchema,
  TensorProtoSchema,
  TensorShapeProto_DimensionSchema,
  TensorShapeProtoSchema,
  TypeProto_SequenceSchema,
  TypeProto_TensorSchema,
  TypeProtoSchema,
  type ValueInfoProto,
  ValueInfoProtoSchema,
} from 'onnx-buf'
import { describe, expect, test } from 'vitest'
import { addGradients } from '../../src/autodiff/index.ts'
import {
  checkGraph,
  decodeModel,
  encodeModel,
  type Graph,
  inferTypes,
  lower,
  openSession,
  simplify,
  type Tensor,
  upgradeOpset,
} from '../../src/onnx/index.ts'
import { InputError } from '../../src/support/errors.ts'

const imports = (...domains: string[]) =>
  domains.map((domain) => create(OperatorSetIdProtoSchema, { domain, version: domain === '' ? 17n : 1n }))

const node = (
  op: string,
  input: string[],
  output: string[],
  attribute: AttributeProto[] = [],
  domain = '',
): NodeProto => create(NodeProtoSchema, { opType: op, name: `${op}:${output[0]}`, input, output, attribute, domain })

const attribute = (name: string, fields: Partial<AttributeProto>): AttributeProto =>
  create(AttributeProtoSchema, { name, ...(fields as object) })
const float = (name: string, f: number) => attribute(name, { type: AttributeType.FLOAT, f })

/** A float value of these sizes, -1 and names for open ones. */
function value(name: string, sizes: (number | string)[], elemType = 1): ValueInfoProto {
  const dim = sizes.map((d) =>
    create(TensorShapeProto_DimensionSchema, {
      value: typeof d === 'number' ? { case: 'dimValue', value: BigInt(d) } : { case: 'dimParam', value: d },
    }),
  )
  const tensor = create(TypeProto_TensorSchema, { elemType, shape: create(TensorShapeProtoSchema, { dim }) })
  return create(ValueInfoProtoSchema, {
    name,
    type: create(TypeProtoSchema, { value: { case: 'tensorType', value: tensor } }),
  })
}

/** The bytes of a model from x [n] to y. */
function model(
  nodes: NodeProto[],
  more: { graph?: Partial<GraphProto>; model?: Partial<ModelProto> } = {},
): Uint8Array {
  const graph = create(GraphProtoSchema, {
    name: 'g',
    node: nodes,
    input: [value('x', ['n'])],
    output: [value('y', ['n'])],
    ...(more.graph as object),
  })
  return toBinary(
    ModelProtoSchema,
    create(ModelProtoSchema, { irVersion: 8n, opsetImport: imports(''), graph, ...(more.model as object) }),
  )
}

const x: Tensor = { dtype: 'float32', shape: [3], data: Float32Array.of(-1, 0.5, 2) }

async function run(graph: Graph): Promise<number[]> {
  const session = await openSession(inferTypes(graph), { threads: 1 })
  try {
    return Array.from((await session.run({ x })).y?.data as Float32Array)
  } finally {
    await session.release()
  }
}

describe("a model's own functions", () => {
  /** scaled(a; k) = LeakyRelu(a; alpha = k) + a, and twice(a) = scaled(scaled(a)). */
  const reference = attribute('alpha', { type: AttributeType.FLOAT, refAttrName: 'k' })
  const scaled = create(FunctionProtoSchema, {
    name: 'scaled',
    domain: 'own',
    input: ['a'],
    output: ['b'],
    attributeProto: [float('k', 0.25)],
    opsetImport: imports(''),
    node: [node('LeakyRelu', ['a'], ['inner'], [reference]), node('Add', ['inner', 'a'], ['b'])],
  })
  const twice = create(FunctionProtoSchema, {
    name: 'twice',
    domain: 'own',
    input: ['a'],
    output: ['b', 'unused'],
    opsetImport: imports('', 'own'),
    node: [
      node('scaled', ['a'], ['inner'], [float('k', 0.5)], 'own'),
      node('scaled', ['inner'], ['b'], [], 'own'),
      node('Neg', ['b'], ['unused']),
    ],
  })
  const functions = { functions: [scaled, twice], opsetImport: imports('', 'own') }

  test('are put in the place of their calls, within each other, with attributes given and by default', async () => {
    const nodes = [node('twice', ['x'], ['z'], [], 'own'), node('twice', ['z'], ['y'], [], 'own')]
    const graph = decodeModel(model(nodes, { model: functions }))
    checkGraph(graph)
    expect(graph.nodes.filter(({ domain }) => domain === 'own')).toEqual([])
    const [half, quarter] = [0.5, 0.25].map((k) => (v: number) => (v < 0 ? k * v : v) + v) as [
      (v: number) => number,
      (v: number) => number,
    ]
    const twiceOf = (v: number) => quarter(half(v))
    expect(await run(graph)).toEqual([-1, 0.5, 2].map((v) => Math.fround(twiceOf(twiceOf(v)))))
  })

  test('that hand an input through work too', async () => {
    const through = create(FunctionProtoSchema, { name: 'through', domain: 'own', input: ['a'], output: ['a'] })
    const nodes = [node('through', ['x'], ['z'], [], 'own'), node('Neg', ['z'], ['y'])]
    const graph = decodeModel(model(nodes, { model: { functions: [through], opsetImport: imports('', 'own') } }))
    expect(await run(graph)).toEqual([1, -0.5, -2])
  })

  test('that call themselves, are of another operator set, or multiply without end are refused', () => {
    const self = create(FunctionProtoSchema, {
      name: 'self',
      domain: 'own',
      input: ['a'],
      output: ['b'],
      node: [node('self', ['a'], ['b'], [], 'own')],
    })
    const call = (name: string) => [node(name, ['x'], ['y'], [], 'own')]
    const decode = (name: string, list: (typeof self)[]) => () =>
      decodeModel(model(call(name), { model: { functions: list, opsetImport: imports('', 'own') } }), 'm.onnx')
    expect(decode('self', [self])).toThrow(/m\.onnx: the function "self" calls itself/)
    const other = create(FunctionProtoSchema, {
      ...self,
      name: 'other',
      opsetImport: [create(OperatorSetIdProtoSchema, { domain: '', version: 18n })],
    })
    expect(decode('other', [other])).toThrow(/written for operator set 18 and the model for 17.*onnx\.inliner/)
    // each of these calls the next one twice
    const doubling = Array.from({ length: 40 }, (_, i) =>
      create(FunctionProtoSchema, {
        name: `f${i}`,
        domain: 'own',
        input: ['a'],
        output: ['b'],
        node: [node(`f${i + 1}`, ['a'], ['c'], [], 'own'), node(`f${i + 1}`, ['c'], ['b'], [], 'own')],
      }),
    )
    expect(decode('f0', doubling)).toThrow(/over 50000 nodes/)
    // and so do these, to no end at all
    const empty = create(FunctionProtoSchema, { name: 'f40', domain: 'own', input: ['a'], output: ['b'] })
    expect(decode('f0', [...doubling, empty])).toThrow(/over 50000 nodes/)
    const deep = Array.from({ length: 5000 }, (_, i) =>
      create(FunctionProtoSchema, {
        name: `f${i}`,
        domain: 'own',
        input: ['a'],
        output: ['b'],
        node: [node(i === 4999 ? 'Neg' : `f${i + 1}`, ['a'], ['b'], [], i === 4999 ? '' : 'own')],
      }),
    )
    expect(decode('f0', deep)).toThrow(/over 64 functions call each other/)
  })

  test('called very often by nodes of one name are inlined in a moment', () => {
    const count = 20_000
    const calls = Array.from({ length: count }, (_, i) =>
      create(NodeProtoSchema, {
        opType: 'scaled',
        domain: 'own',
        name: 'same',
        input: [i === 0 ? 'x' : `v${i}`],
        output: [i === count - 1 ? 'y' : `v${i + 1}`],
      }),
    )
    const graph = decodeModel(model(calls, { model: functions }))
    expect(graph.nodes.length).toBe(2 * count)
    expect(new Set(graph.nodes.map(({ name }) => name)).size).toBe(2 * count)
  }, 5000)
})

describe('a graph that is none', () => {
  const ints = (name: string, ...values: bigint[]) =>
    create(TensorProtoSchema, { name, dataType: 7, dims: [BigInt(values.length)], int64Data: values })

  test.each([
    ['a cycle', [node('Add', ['x', 'b'], ['a']), node('Neg', ['a'], ['b']), node('Neg', ['b'], ['y'])], /reads "b"/],
    ['a value read before it is made', [node('Neg', ['a'], ['y']), node('Neg', ['x'], ['a'])], /reads "a"/],
    ['a value from nowhere', [node('Add', ['x', 'gone'], ['y'])], /reads "gone", which nothing before it makes/],
    ['a value made twice', [node('Neg', ['x'], ['y']), node('Exp', ['x'], ['y'])], /"y", made by node.*exists already/],
    ['a node that makes a weight', [node('Shape', ['x'], ['w']), node('Neg', ['x'], ['y'])], /"w", made by.*exists/],
    ['a node that makes an input', [node('Neg', ['w'], ['x']), node('Neg', ['x'], ['y'])], /"x", made by.*exists/],
    ['an output from nowhere', [node('Neg', ['x'], ['z'])], /Nothing makes the output "y"/],
  ])('%s is refused', (_, nodes, message) => {
    expect(() => decodeModel(model(nodes, { graph: { initializer: [ints('w', 1n)] } }), 'm.onnx')).toThrow(InputError)
    expect(() => decodeModel(model(nodes, { graph: { initializer: [ints('w', 1n)] } }), 'm.onnx')).toThrow(message)
  })

  test('two nodes of one name keep it to the first', async () => {
    const named = (input: string, output: string) =>
      create(NodeProtoSchema, { opType: 'Neg', name: 'twin', input: [input], output: [output] })
    const graph = decodeModel(model([named('x', 'a'), named('a', 'y')]))
    expect(graph.nodes.map(({ name }) => name)).toEqual(['twin', ''])
    expect(await run(graph)).toEqual([-1, 0.5, 2])
  })

  test('twenty thousand readers of one value, and sizes without bounds, take a moment', () => {
    const count = 20_000
    const nodes = Array.from({ length: count }, (_, i) =>
      node('Add', [i === 0 ? 'x' : `v${i}`, 'x'], [i === count - 1 ? 'y' : `v${i + 1}`]),
    )
    const graph = simplify(lower(inferTypes(decodeModel(model(nodes)))).graph)
    expect(addGradients(graph, { y: 1 }, ['x']).graph.nodes.length).toBeGreaterThan(count)
    const huge = [2n ** 62n, 2n ** 52n]
    for (const op of ['Reshape', 'Expand', 'Tile'])
      expect(
        inferTypes(decodeModel(model([node(op, ['x', 's'], ['y'])], { graph: { initializer: [ints('s', ...huge)] } }))),
      ).toBeDefined()
    const filled = inferTypes(
      decodeModel(
        model([node('ConstantOfShape', ['s'], ['c']), node('Add', ['x', 'c'], ['y'])], {
          graph: { initializer: [ints('s', 2n ** 50n, 2n ** 50n)] },
        }),
      ),
    )
    expect(filled.initializers.has('c')).toBe(false)
  }, 10_000)
})

describe('constants', () => {
  const constant = (fields: AttributeProto) => [node('Constant', [], ['c'], [fields]), node('Mul', ['x', 'c'], ['y'])]
  test.each([
    ['value_float', { type: AttributeType.FLOAT, f: 2 }],
    ['value_floats', { type: AttributeType.FLOATS, floats: [2] }],
    ['value', { type: AttributeType.TENSOR, t: create(TensorProtoSchema, { dataType: 1, floatData: [2] }) }],
  ])('by %s are initializers', async (name, fields) => {
    const graph = decodeModel(model(constant(attribute(name, fields as Partial<AttributeProto>))))
    expect(graph.nodes.map(({ op }) => op)).toEqual(['Mul'])
    expect(await run(graph)).toEqual([-2, 1, 4])
  })

  test.each([
    [
      'value_string',
      { type: AttributeType.STRING, s: new TextEncoder().encode('a') },
      /by "value_string" is not supported/,
    ],
    [
      'sparse_value',
      { type: AttributeType.SPARSE_TENSOR },
      /"sparse_value": SPARSE_TENSOR attributes are not supported/,
    ],
  ])('by %s are refused', (name, fields, message) => {
    const bytes = model(constant(attribute(name, fields as Partial<AttributeProto>)))
    expect(() => decodeModel(bytes)).toThrow(message)
    expect(() => decodeModel(bytes)).toThrow(InputError)
  })
})

describe('element types', () => {
  test('4-bit, 16-bit and unsigned tensors survive, packed as they are stored', () => {
    const tensors: [string, Tensor][] = [
      ['a', { dtype: 'int4', shape: [3], data: Uint8Array.of(0x21, 0x0f) }],
      ['b', { dtype: 'uint4', shape: [2, 2], data: Uint8Array.of(0x21, 0xff) }],
      ['c', { dtype: 'int16', shape: [2], data: Int16Array.of(-300, 300) }],
      ['d', { dtype: 'uint16', shape: [1], data: Uint16Array.of(65535) }],
      ['e', { dtype: 'uint32', shape: [1], data: Uint32Array.of(2 ** 32 - 1) }],
      ['f', { dtype: 'uint64', shape: [1], data: BigUint64Array.of(2n ** 64n - 1n) }],
    ]
    const graph: Graph = {
      opset: 21,
      inputs: [],
      outputs: [],
      nodes: [],
      initializers: new Map(tensors),
      types: new Map(),
    }
    expect(decodeModel(encodeModel(graph)).initializers).toEqual(graph.initializers)
  })

  test('4-bit data of the wrong length, and types that graphs cannot hold, are refused by name', () => {
    const initializer = (dataType: number, raw: number[]) =>
      model([node('Neg', ['x'], ['y'])], {
        graph: {
          initializer: [create(TensorProtoSchema, { name: 'w', dataType, dims: [3n], rawData: Uint8Array.from(raw) })],
        },
      })
    expect(() => decodeModel(initializer(22, [1]))).toThrow(/"w": shape \[3\] holds 3 elements, the data has 2/)
    expect(() => decodeModel(initializer(17, [1, 2, 3]))).toThrow(
      /"w": ONNX element type float8e4m3fn is not supported/,
    )
    expect(() => decodeModel(initializer(8, []))).toThrow(/"w": ONNX element type string is not supported/)
  })
})

describe('what is no graph of tensors', () => {
  test('sequences and optional values are refused, by name', () => {
    const sequence = create(ValueInfoProtoSchema, {
      name: 's',
      type: create(TypeProtoSchema, { value: { case: 'sequenceType', value: create(TypeProto_SequenceSchema) } }),
    })
    const bytes = model([node('Neg', ['x'], ['y'])], { graph: { input: [value('x', ['n']), sequence] } })
    expect(() => decodeModel(bytes)).toThrow(/input "s": is of a sequence type; only tensors are supported/)
    expect(() => decodeModel(model([node('SequenceConstruct', ['x'], ['s'])]))).toThrow(
      /"SequenceConstruct:s" \(SequenceConstruct\): sequences and optional values are not supported/,
    )
  })

  test('loops are refused, by name', () => {
    const body = attribute('body', { type: AttributeType.GRAPH, g: create(GraphProtoSchema) })
    expect(() => decodeModel(model([node('Loop', ['', '', 'x'], ['y'], [body])]))).toThrow(
      /"Loop:y" \(Loop\), attribute "body": GRAPH attributes are not supported/,
    )
  })

  test('a size of -1 is one that is open', () => {
    const graph = decodeModel(model([node('Neg', ['x'], ['y'])], { graph: { input: [value('x', [-1, ''])] } }))
    expect(graph.types.get('x')?.shape).toEqual(['open_0', 'open_1'])
  })
})

describe('branches', () => {
  const branch = (nodes: NodeProto[], output: string): GraphProto =>
    create(GraphProtoSchema, { name: 'branch', node: nodes, output: [create(ValueInfoProtoSchema, { name: output })] })
  const conditional = (then: GraphProto, otherwise: GraphProto): NodeProto =>
    node(
      'If',
      ['c'],
      ['y'],
      [
        attribute('then_branch', { type: AttributeType.GRAPH, g: then }),
        attribute('else_branch', { type: AttributeType.GRAPH, g: otherwise }),
      ],
    )
  const condition = create(TensorProtoSchema, { name: 'c', dataType: 9, int32Data: [1] })

  test('are read, written and read again, and the one that a constant takes is put in its place', async () => {
    const two = attribute('value_float', { type: AttributeType.FLOAT, f: 2 })
    const nodes = [node('Constant', [], ['k'], [two]), node('Mul', ['x', 'k'], ['inner'])]
    const bytes = model([conditional(branch(nodes, 'inner'), branch([node('Neg', ['x'], ['inner'])], 'inner'))], {
      graph: { initializer: [condition] },
    })
    const graph = decodeModel(bytes)
    expect(decodeModel(encodeModel(graph))).toEqual(graph)
    expect(inferTypes(graph).nodes.map(({ op }) => op)).toEqual(['Mul', 'Identity'])
    expect(await run(graph)).toEqual([-2, 1, 4])
  })

  test('within each other beyond reason are refused', () => {
    let inner = branch([node('Neg', ['x'], ['y'])], 'y')
    const plain = branch([], 'x')
    for (let i = 0; i < 20; i++) inner = branch([conditional(inner, plain)], 'y')
    const bytes = model([conditional(inner, plain)], { graph: { initializer: [condition] } })
    expect(() => decodeModel(bytes)).toThrow(/more than 16 branches lie within each other/)
  })
})

describe('damaged files', () => {
  const file = join(import.meta.dirname, '../fixtures/onnx/tiny-bert-opset11/onnx/model.onnx')

  test('are refused as a fault of the file, or read as what they now say', () => {
    const bytes = readFileSync(file)
    // the nodes and their names lie in front of the weights
    const place = fc.integer({ min: 0, max: Math.min(bytes.length, 40_000) - 1 })
    fc.assert(
      fc.property(
        fc.array(fc.tuple(place, fc.integer({ min: 0, max: 255 })), { minLength: 1, maxLength: 4 }),
        (changes) => {
          const damaged = Buffer.from(bytes)
          for (const [at, byte] of changes) damaged[at] = byte
          try {
            inferTypes(upgradeOpset(decodeModel(damaged, file)))
          } catch (e) {
            expect(e).toBeInstanceOf(InputError)
          }
        },
      ),
      { numRuns: 150 },
    )
  })
})
