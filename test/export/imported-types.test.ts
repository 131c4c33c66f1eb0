import { cpSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { canopySettings, type EncoderProfile, readAdapter, readEncoder } from '../../src/encoder/index.ts'
import { type ExportedEncoder, type ExportType, exportEncoder } from '../../src/export/index.ts'
import { wrongWeights } from '../../src/export/written-weights.ts'
import { decodeModel, encodeModel, type Graph, type Node, type Tensor } from '../../src/onnx/index.ts'
import { tinyBert } from '../encoder/fixtures.ts'
import { tinyQwen3 } from '../encoder/qwen3-known.ts'
import { temporaryFolder } from '../support/temporary.ts'

const fixture = (form: string): string => join(import.meta.dirname, '..', 'fixtures', 'onnx', `tiny-${form}`)
const adapterOf = (form: string): string =>
  join(form.startsWith('bert') ? tinyBert('mean') : tinyQwen3('qwen3'), 'adapter')

async function exported(
  encoder: EncoderProfile,
  types: ExportType[],
  adapter?: Awaited<ReturnType<typeof readAdapter>>,
) {
  const output = join(temporaryFolder(), 'exported')
  const settings = canopySettings(encoder, encoder, { title: true, tableFormat: 'markdown', branching: 2 })
  const options = { encoder, adapter, queryEncoder: encoder, settings, output, version: '0', threads: 1, types }
  return { output, check: (await exportEncoder(options)) as ExportedEncoder }
}

const graphOf = (output: string, file: string): Graph => decodeModel(readFileSync(join(output, 'onnx', file)))
const domains = ({ nodes }: Graph): string[] => [...new Set(nodes.map(({ domain }) => domain))].sort()

describe('types of an ONNX folder', () => {
  it.each(['bert-plain', 'bert-dynamo', 'bert-opset11', 'qwen3-plain', 'qwen3-gqa'])(
    'are made of its plain float32 graph with the adapter in it: %s',
    async (form) => {
      const encoder = await readEncoder(fixture(form))
      const adapter = await readAdapter(adapterOf(form), encoder).catch(() => undefined)
      const { output, check } = await exported(encoder, ['fp32', 'fp16', 'int8', 'int4'], adapter)
      const { fp16, int8, int4 } = check.others!
      expect(fp16!.minCosine).toBeGreaterThan(0.9999)
      expect(int8!.minCosine).toBeGreaterThan(0.99)
      expect(int4!.minCosine).toBeLessThan(int8!.minCosine)
      expect(int8!.minCosine).toBeLessThan(fp16!.minCosine)
      const size = (file: string): number => statSync(join(output, 'onnx', file)).size
      expect(size('model_fp16.onnx')).toBeLessThan(0.85 * size('model.onnx'))
      expect(size('model_int8.onnx')).toBeLessThan(0.8 * size('model.onnx'))
      const own = domains(graphOf(output, 'model.onnx'))
      expect(domains(graphOf(output, 'model_fp16.onnx'))).toEqual(own)
      expect(domains(graphOf(output, 'model_int8.onnx'))).toEqual(own)
      const products = graphOf(output, 'model_q4.onnx').nodes.filter(({ op }) => op === 'MatMulNBits')
      expect(products.length).toBeGreaterThanOrEqual(adapter?.targets.length ?? 12)
      expect(readFileSync(join(output, 'README.md'), 'utf8')).toContain(
        "| int8 | `model_int8.onnx` | `dtype: 'int8'` |",
      )
    },
  )

  it('are made of weights that are turned before their products, too', async () => {
    const folder = join(temporaryFolder(), 'turned')
    cpSync(fixture('bert-plain'), folder, { recursive: true })
    const file = join(folder, 'onnx', 'model.onnx')
    const graph = decodeModel(readFileSync(file))
    const initializers = new Map(graph.initializers)
    const nodes = graph.nodes.flatMap((node): Node[] => {
      const name = node.inputs[1] ?? ''
      const weight = graph.initializers.get(name) as Tensor | undefined
      if (node.op !== 'MatMul' || weight === undefined) return [node]
      const [height, width] = weight.shape as [number, number]
      const data = new Float32Array(height * width).map((_, i) =>
        Number(weight.data[(i % height) * width + Math.floor(i / height)]),
      )
      initializers.set(name, { dtype: 'float32', shape: [width, height], data })
      const turn = { op: 'Transpose', domain: '', name: '', inputs: [name], outputs: [`${name}/turn`], attributes: {} }
      return [turn, { ...node, inputs: node.inputs.with(1, `${name}/turn`) }]
    })
    writeFileSync(file, encodeModel({ ...graph, nodes, initializers }))
    const [plain, turned] = await Promise.all(
      [fixture('bert-plain'), folder].map(async (place) => {
        const encoder = await readEncoder(place)
        return exported(encoder, ['fp16', 'int8', 'int4'], await readAdapter(adapterOf('bert'), encoder))
      }),
    )
    const stored = ({ output }: { output: string }, name: string) => {
      const numbers = [...graphOf(output, name).initializers.values()].map((t) => ('data' in t ? t.data.byteLength : 0))
      return numbers.reduce((a, b) => a + b, 0)
    }
    for (const name of ['model_fp16.onnx', 'model_int8.onnx', 'model_q4.onnx'])
      expect(stored(turned!, name)).toBe(stored(plain!, name))
    expect(turned!.check.others!.int8!.minCosine).toBeCloseTo(plain!.check.others!.int8!.minCosine, 6)
    expect(turned!.check.others!.int4!.minCosine).toBeCloseTo(plain!.check.others!.int4!.minCosine, 6)
  })

  it.each(['int8', 'int4'] as const)(
    'hold whole numbers that are compared with the merged weights: %s',
    async (type) => {
      const encoder = await readEncoder(fixture('bert-plain'))
      const adapter = await readAdapter(adapterOf('bert'), encoder)
      const { output, check } = await exported(encoder, [type], adapter)
      expect(check.unrounded!.minCosine).toBeGreaterThan(0.999999)
      expect(readdirSync(join(output, 'onnx'))).toEqual([`model_${type === 'int8' ? type : 'q4'}.onnx`])
      expect(await wrongWeights(output, encoder, adapter, type)).toEqual([])
      const [, ...others] = adapter.targets
      const wrong = await wrongWeights(output, encoder, { ...adapter, targets: others }, type)
      expect(wrong).toEqual([expect.stringMatching(/^model: the numbers of .* are \d+\.\d+ steps off/)])
    },
  )

  it.each([
    [
      'bert-fp16',
      /model\.onnx: The graph is in half precision already; --dtype fp16, int8 and int4 .* take plain float32/,
    ],
    ['bert-int8', /The graph is quantised already/],
    ['bert-qdq', /The graph is quantised already/],
    ['bert-fused', /keeps weights inside fused operators, EmbedLayerNormalization \(com\.microsoft\), Attention/],
  ])('are refused where its weights cannot be stored otherwise, nothing written: %s', async (form, why) => {
    const encoder = await readEncoder(fixture(form))
    const settings = canopySettings(encoder, encoder, { title: true, tableFormat: 'markdown', branching: 2 })
    const folder = temporaryFolder()
    const options = { encoder, queryEncoder: encoder, settings, output: join(folder, 'x'), version: '0', threads: 1 }
    await expect(exportEncoder({ ...options, types: ['fp32', 'int8'] })).rejects.toThrow(why)
    expect(readdirSync(folder)).toEqual([])
  })
})

describe('an adapter over an ONNX folder', () => {
  it('is refused by the names of its modules where another tool made one map of three', async () => {
    const folder = join(temporaryFolder(), 'packed')
    cpSync(fixture('bert-plain'), folder, { recursive: true })
    const file = join(folder, 'onnx', 'model.onnx')
    const graph = decodeModel(readFileSync(file))
    const parts = ['query', 'key', 'value'].map(
      (part) => graph.nodes.find(({ op, name }) => op === 'MatMul' && name.includes(`layer.0/attention/self/${part}`))!,
    )
    const weights = parts.map(({ inputs }) => graph.initializers.get(inputs[1]!) as Tensor)
    const [height, width] = weights[0]!.shape as [number, number]
    const data = new Float32Array(3 * height * width)
    for (const [part, weight] of weights.entries())
      for (let row = 0; row < height; row++)
        data.set((weight.data as Float32Array).subarray(row * width, (row + 1) * width), row * 3 * width + part * width)
    graph.initializers.set('packed', { dtype: 'float32', shape: [height, 3 * width], data })
    const node = (op: string, inputs: string[], outputs: string[], attributes: Node['attributes'] = {}): Node => ({
      ...{ op, domain: '', name: '', inputs, outputs, attributes },
    })
    const at = graph.nodes.indexOf(parts[0]!)
    const nodes = graph.nodes.filter((other) => !parts.includes(other))
    nodes.splice(
      at,
      0,
      node('MatMul', [parts[0]!.inputs[0]!, 'packed'], ['all']),
      node(
        'Split',
        ['all'],
        parts.map(({ outputs }) => outputs[0]!),
        { axis: { i: -1 } },
      ),
    )
    writeFileSync(file, encodeModel({ ...graph, nodes }))
    const encoder = await readEncoder(folder)
    await expect(readAdapter(adapterOf('bert'), encoder)).rejects.toThrow(
      /encoder\.layer\.0\.attention\.self\.(query|key|value)/,
    )
  })
})
