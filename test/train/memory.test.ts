import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { longestRow } from '../../src/encoder/index.ts'
import { type Graph, GraphBuilder } from '../../src/onnx/index.ts'
import { largestThatFits, memoryPlan } from '../../src/train/index.ts'
import { loadedGraph } from '../../src/train/memory/loaded.ts'
import { executionOrder } from '../../src/train/memory/order.ts'
import { valueMemory } from '../../src/train/memory/values.ts'

const fixtures = join(import.meta.dirname, '../fixtures')
const config = (folder: string): Record<string, unknown> =>
  JSON.parse(readFileSync(join(fixtures, folder, 'config.json'), 'utf8'))

/** x -> relu -> exp -> their sum, of n numbers each. */
function sum(): Graph {
  const g = new GraphBuilder()
  const a = g.relu(g.input('x', 'float32', ['n']))
  g.output(g.add(a, g.one('Exp', [g.reshape(a, ['n'])])), 'y')
  return g.build()
}

/** A map of 3 x 4 in bfloat16, somewhere in a file. */
const stored = (rows: number) => ({
  ...{ dtype: 'bfloat16' as const, shape: [rows, 4] },
  external: { file: 'w', offset: 0, length: 8 * rows },
})

describe('the order of execution', () => {
  it("goes to a node's inputs with the highest numbers first", () => {
    const g = new GraphBuilder()
    const early = g.sqrt(g.input('early', 'float32', [2]))
    const late = g.relu(g.input('x', 'float32', [2]))
    g.output(g.add(early, late))
    expect(executionOrder(g.build()).map(({ op }) => op)).toEqual(['Relu', 'Sqrt', 'Add'])
  })

  it('has every node once, after those that make its inputs', () => {
    const graph = sum()
    const order = executionOrder(graph)
    expect(new Set(order)).toEqual(new Set(graph.nodes))
    const made = new Set([...graph.inputs, ...graph.initializers.keys()])
    for (const node of order) {
      for (const input of node.inputs) expect(made).toContain(input)
      for (const output of node.outputs) made.add(output)
    }
  })
})

describe('the memory of values', () => {
  it('is that of the values alive at once, those of another shape counted once', () => {
    // relu's, exp's and the sum's n numbers at the end; the name of the output is the sum under another name
    expect(valueMemory(sum())({ n: 100 })).toMatchObject({ peak: 1200, outputs: 400 })
    expect(valueMemory(sum())({ n: 7 }).peak).toBe(84)
  })

  it('frees what nothing reads any more', () => {
    const g = new GraphBuilder()
    let x = g.input('x', 'float32', ['n'])
    for (let i = 0; i < 10; i++) x = g.relu(x)
    g.output(x)
    expect(valueMemory(g.build())({ n: 100 })).toMatchObject({ peak: 800, outputs: 400 })
  })
})

describe('what a session makes of a graph', () => {
  const graph = (rows: number): Graph => {
    const g = new GraphBuilder()
    const w = g.cast(g.initializer('w', stored(rows)), 'float32')
    g.output(g.gemm(g.input('x', 'float32', ['n', 4]), w, null, { transB: true }))
    return g.build()
  }

  it('is a copy in float32 of small weights in half precision', () => {
    const loaded = loadedGraph(graph(3), 'cpu')
    expect(loaded).toMatchObject({ stored: 0, copies: 48, tables: 0 })
    expect(loaded.graph.nodes.map(({ op }) => op)).toEqual(['Gemm'])
  })

  it('leaves large ones in their file on the CPU, and casts them in every run', () => {
    const rows = 2 ** 25
    const loaded = loadedGraph(graph(rows), 'cpu')
    expect(loaded).toMatchObject({ stored: 2 ** 28, copies: 0 })
    expect(loaded.graph.nodes.map(({ op }) => op)).toEqual(['Cast', 'Gemm'])
    expect(loadedGraph(graph(rows), 'cuda')).toMatchObject({ stored: 0, copies: 2 ** 29 })
  })

  it('knows tables, of which rows are read', () => {
    const g = new GraphBuilder()
    g.output(g.gather(g.initializer('table', stored(5)), g.input('ids', 'int32', ['n'])))
    expect(loadedGraph(g.build(), 'cpu')).toMatchObject({ stored: 40, tables: 40 })
  })
})

describe('the largest number of tokens that fits', () => {
  it('is the last multiple of 64 for which the need is within the memory', () => {
    const need = (tokens: number): number => 1000 + 10 * tokens
    for (const steps of [0, 1, 2, 3, 31, 32, 33]) expect(largestThatFits(need(64 * steps), need)).toBe(64 * steps)
    expect(largestThatFits(need(128) - 1, need)).toBe(64)
    expect(largestThatFits(999, need)).toBe(0)
  })

  it('is no more than there can be', () => {
    expect(largestThatFits(1e12, (tokens) => tokens)).toBe(2 ** 20)
    expect(largestThatFits(1e12, (tokens) => tokens, 500)).toBe(500)
    expect(largestThatFits(499, (tokens) => tokens, 500)).toBe(448)
  })
})

describe('the memory plan', () => {
  const common = { file: 'config.json', dtype: 'bfloat16', device: 'cpu', precision: 'fp32' } as const
  const plan = memoryPlan({ ...common, config: config('qwen3-vl'), rank: 8 })

  it('counts parameters, maps and matrices', () => {
    // 4 layers of q 64 x 64, k and v 64 x 32, gate, up and down 64 x 96
    const perLayer = 8 * (64 + 64 + 2 * (64 + 32) + 3 * (64 + 96))
    expect(plan.targets).toHaveLength(4 * 6)
    expect(plan.parameters.adapter).toBe(4 * perLayer)
    expect(plan.parameters.vision).toBeGreaterThan(0)
    expect(plan.parameters.vision).toBeLessThan(plan.parameters.checkpoint)
  })

  it('adds up its parts', () => {
    const { total, ...parts } = plan.training({ tokens: 128, rowTokens: 64 })
    expect(total).toBeCloseTo(Object.values(parts).reduce((a, b) => a + b, 0))
    expect(parts.adapter).toBe(9 * 4 * plan.parameters.adapter)
  })

  it('grows with the tokens, faster the longer nodes are, and in training more than in encoding', () => {
    const activations = (tokens: number, rowTokens: number): number => plan.step({ tokens, rowTokens }).activations
    expect(activations(4096, 64)).toBeGreaterThan(1.9 * activations(2048, 64))
    expect(plan.perToken(64).step).toBeCloseTo((activations(512, 64) - activations(256, 64)) / 256)
    expect(activations(2048, 2048)).toBeGreaterThan(2 * activations(2048, 64))
    expect(plan.perToken(64).encoding).toBeLessThan(plan.perToken(64).step / 2)
  })

  const bert = memoryPlan({ ...common, config: config('tiny-bert/mean'), rank: 8 })

  it('lets encoding take no more tokens at once than the CPU computes best, unless what nodes share may be worth it', () => {
    const encoding = (of: typeof plan, tokens: number): number => of.encoding({ tokens, rowTokens: 64 }).activations
    expect(encoding(bert, 8192)).toBe(encoding(bert, 1024))
    expect(encoding(bert, 512)).toBeLessThan(encoding(bert, 1024))
    expect(encoding(plan, 8192)).toBeGreaterThan(7 * encoding(plan, 1024))
  })

  it('has rows that nodes share up to the length that causal encoders use, and runs of one node at least', () => {
    expect(plan.runSize(4096, 64)).toEqual({ tokens: 4096, rowTokens: longestRow(64) })
    expect(plan.runSize(256, 64)).toEqual({ tokens: 256, rowTokens: 256 })
    expect(plan.runSize(64, 3000)).toEqual({ tokens: 3000, rowTokens: 3000 })
    expect(bert.runSize(4096, 64)).toEqual({ tokens: 4096, rowTokens: 64 })
  })

  it('takes a run to need two passes over items beyond the budget, whose sessions stay open beside that of one pass', () => {
    const size = { tokens: 1024, rowTokens: 64 }
    const [step, encoding] = [bert.step(size).activations, bert.encoding(size).activations]
    expect(bert.mixedTraining(size).activations / (2 * step + encoding)).toBeCloseTo(1.2 / 1.1, 1)
  })

  it('counts the visual features that go into a run', () => {
    const text = memoryPlan({
      ...common,
      config: { ...(config('qwen3-vl').text_config as object), model_type: 'qwen3' },
      rank: 8,
    })
    const more = plan.perToken(64).encoding - text.perToken(64).encoding
    expect(more).toBeGreaterThanOrEqual(plan.featureBytes)
  })

  it('plans pictures and their features only where an encoder reads them', () => {
    // merged features and three levels of 64 numbers
    expect(plan.featureBytes).toBe(4 * 4 * 64)
    // a run takes as many as fit into 1 GiB, whatever their size
    const [many, few] = [256, 1024].map((patches) => plan.pictures!(patches).activations)
    expect(many! / few!).toBeCloseTo(1, 1)
    expect(few).toBeGreaterThan(2 ** 27)
    expect(few).toBeLessThan(2 ** 30)
    const text = memoryPlan({ ...common, config: config('qwen3'), rank: 8 })
    expect(text.pictures).toBeUndefined()
    expect(text.featureBytes).toBe(0)
  })

  it('plans for a card: weights in every session, in the precision of the products', () => {
    const size = { tokens: 64, rowTokens: 64 }
    const on = (precision: 'fp32' | 'bf16') =>
      memoryPlan({ ...common, config: config('qwen3'), rank: 8, device: 'cuda', precision })
    const [full, half] = [on('fp32').step(size), on('bf16').step(size)]
    expect(on('fp32').training(size).copies / full.copies).toBeCloseTo(2, 2)
    expect(half.copies / full.copies).toBeGreaterThan(0.5)
    expect(half.copies / full.copies).toBeLessThan(0.55)
  })

  it('refuses another architecture, a configuration that is not supported, and patterns that name nothing', () => {
    const of = (changes: Record<string, unknown>, targets?: string[]) => () =>
      memoryPlan({ ...common, config: { ...config('qwen3'), ...changes }, rank: 8, targets })
    expect(of({ model_type: 't5' })).toThrow('"model_type" is "t5"')
    expect(of({ hidden_size: undefined })).toThrow('hidden_size')
    expect(of({}, ['nothing'])).toThrow('The pattern "nothing" names no linear module')
  })
})
