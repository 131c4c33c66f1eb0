import type { GraphBuilder } from '../../onnx/index.ts'
import { type LoraOptions, loraA, loraB } from './lora.ts'

/** A linear map of a graph. */
interface LinearMap {
  /** Its module path in Hugging Face transformers, by which it is adapted. */
  module: string
  /** float32 [outputs, inputs]. */
  weight: string
  /** What is added, float32, of a shape that broadcasts to [tokens, outputs]: biases, or a sum that goes on. */
  c?: string | undefined
  /** 1 where absent. */
  scale?: number
}

/**
 * How a graph computes its linear maps of x, float32 [tokens, inputs]: scale · (x Wᵀ + c), W with its LoRA update where the map is
 * adapted: x (W + (alpha / r) B A)ᵀ, or beside it x Wᵀ + (alpha / r) (x Aᵀ) Bᵀ. The first adds the update once a run instead of
 * taking every token through A and B, which makes a training step 5 % faster (MiniLM, rank 16, 1 400 tokens). It needs the
 * precision of W to hold the update. A and B become inputs of the graph.
 */
export function linearMaps(g: GraphBuilder, { lora = [], update = 'merged' }: LoraOptions) {
  const targets = new Map(lora.map((target) => [target.module, target]))
  return (x: string, { module, weight, c, scale = 1 }: LinearMap): string => {
    const map = (w: string): string => g.gemm(x, w, c, { transB: true, alpha: scale, beta: scale, name: module })
    const target = targets.get(module)
    if (target === undefined) return map(weight)
    const a = g.input(loraA(module), 'float32', [target.rank, target.inputs])
    const b = g.input(loraB(module), 'float32', [target.outputs, target.rank])
    const alpha = target.alpha / target.rank
    if (update === 'merged') return map(g.gemm(b, a, weight, { alpha, name: `${module}.lora` }))
    const y = map(weight)
    const down = g.gemm(x, a, null, { transB: true, name: `${module}.lora_A` })
    return g.gemm(down, b, y, { transB: true, alpha: scale * alpha, name: `${module}.lora_B` })
  }
}
