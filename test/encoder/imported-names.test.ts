import { describe, expect, it } from 'vitest'
import { attentionNames, inLayers, moduleName, wrapperOf } from '../../src/encoder/imported/names.ts'
import type { Graph, Node } from '../../src/onnx/index.ts'

const clues = { weight: 'onnx::MatMul_7', bias: undefined, node: 'node_MatMul_3', output: 'val_9', scopes: undefined }

const graphWith = (...names: string[]): Graph => ({
  ...{ opset: 17, inputs: [], outputs: [], nodes: [], types: new Map() },
  initializers: new Map(names.map((name) => [name, { dtype: 'float32', shape: [1], data: new Float32Array(1) }])),
})

describe('the name of a linear map', () => {
  it.each([
    ['its weight', { weight: 'encoder.layer.0.output.dense.weight' }, 'encoder.layer.0.output.dense'],
    ['a quantised weight', { weight: 'encoder.layer.0.output.dense.weight_quantized' }, 'encoder.layer.0.output.dense'],
    ['a weight of GenAI', { weight: 'model.layers.3.attn.q_proj.MatMul.weight_Q4' }, 'layers.3.self_attn.q_proj'],
    ['its bias', { bias: 'bert.encoder.layer.0.attention.self.key.bias' }, 'encoder.layer.0.attention.self.key'],
    [
      'its node',
      { node: '/encoder/layer.1/attention/self/value/MatMul_quant' },
      'encoder.layer.1.attention.self.value',
    ],
    ['its output', { output: '/transformer/layer.0/ffn/lin1/MatMul_output_0' }, 'transformer.layer.0.ffn.lin1'],
    [
      'the scopes of its node',
      { scopes: "['', 'model.layers.0', 'model.layers.0.mlp', 'model.layers.0.mlp.up_proj', 'linear_4']" },
      'layers.0.mlp.up_proj',
    ],
  ])('comes from %s', (_, some, name) => {
    expect(moduleName({ ...clues, ...some }, '')).toBe(name)
  })

  it('is not known where nothing says it', () => {
    expect(moduleName(clues, '')).toBeUndefined()
  })

  it('begins inside whatever the model was wrapped in', () => {
    const graph = graphWith('my.wrap.embeddings.word.weight', 'my.wrap.encoder.layer.0.output.dense.bias', 'val_3')
    expect(wrapperOf(graph)).toBe('my.wrap')
    const bias = 'my.wrap.encoder.layer.0.output.dense.bias'
    expect(moduleName({ ...clues, bias }, 'my.wrap')).toBe('encoder.layer.0.output.dense')
  })

  it('keeps the container of the layers, even where all parameters lie in it', () => {
    expect(wrapperOf(graphWith('encoder.layer.0.a.weight', 'encoder.layer.0.b.weight'))).toBe('')
    expect(wrapperOf(graphWith('onnx::MatMul_1'))).toBe('')
  })

  it('lies in a layer, or not', () => {
    expect(inLayers('encoder.layer.0.output.dense')).toBe(true)
    expect(inLayers('layers.11.mlp.down_proj')).toBe(true)
    for (const head of ['pooler.dense', 'lm_head', 'embeddings.projection', 'decoder.pooler.0.dense'])
      expect(inLayers(head)).toBe(false)
  })
})

describe('the names of the maps inside a fused attention', () => {
  const node: Node = {
    op: 'Attention',
    domain: 'com.microsoft',
    name: 'Attention_0',
    inputs: [],
    outputs: ['y'],
    attributes: {},
  }

  it.each([
    ['encoder.layer.0.attention.output.dense', 'encoder.layer.0.attention.self.query'],
    ['transformer.layer.2.attention.out_lin', 'transformer.layer.2.attention.q_lin'],
    ['encoder.layer.0.attention.attn.o', 'encoder.layer.0.attention.attn.q'],
    ['layers.4.self_attn.o_proj', 'layers.4.self_attn.q_proj'],
    ['linear.3', 'Attention_0.q'],
  ])('follow from the next map, %s', (next, query) => {
    expect(attentionNames(node, next)[0]).toBe(query)
  })

  it('are the operator’s own otherwise', () => {
    expect(attentionNames(node, undefined)).toEqual(['Attention_0.q', 'Attention_0.k', 'Attention_0.v'])
  })
})
