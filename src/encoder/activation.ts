import type { GraphBuilder } from '../onnx/index.ts'

/** Activations by their names in config.json. */
type Activation = 'gelu' | 'gelu_new' | 'gelu_pytorch_tanh' | 'relu'

/**
 * An activation as a graph computes it.
 *
 * @param style `packed` graphs run here and take ONNX Runtime's own kernels; `plain` ones have standard operators only
 */
export function activation(g: GraphBuilder, x: string, kind: Activation, style: 'packed' | 'plain'): string {
  switch (kind) {
    case 'relu':
      return g.relu(x)
    case 'gelu':
      return style === 'packed' ? g.one('Gelu', [x], { domain: 'com.microsoft' }) : g.gelu(x)
    default:
      return style === 'packed' ? g.one('FastGelu', [x], { domain: 'com.microsoft' }) : tanhGelu(g, x)
  }
}

/** ½ x (1 + tanh(√(2/π) (x + 0.044715 x³))), the `gelu_new` and `gelu_pytorch_tanh` of transformers. */
function tanhGelu(g: GraphBuilder, x: string): string {
  // x + 0.044715 x³ = x (1 + 0.044715 x²)
  const cubic = g.mul(x, g.add(g.mul(g.mul(x, x), g.scalar(0.044715)), g.scalar(1)))
  const t = g.tanh(g.mul(cubic, g.scalar(Math.sqrt(2 / Math.PI))))
  return g.mul(g.mul(x, g.scalar(0.5)), g.add(t, g.scalar(1)))
}
