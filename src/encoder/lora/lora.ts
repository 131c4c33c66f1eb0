import { createHash } from 'node:crypto'
import { InputError } from '../../support/errors.ts'
import { createRandom } from '../../support/random.ts'

/** A linear map of an encoder: its module path as in Hugging Face transformers, and its sizes. */
export interface LinearModule {
  module: string
  inputs: number
  outputs: number
}

/** A linear map with a low-rank update, y = W x + b + (alpha / rank) B A x (Hu et al. 2021, arXiv 2106.09685). */
export interface LoraTarget extends LinearModule {
  rank: number
  alpha: number
}

/** Which linear maps of a graph get a low-rank update, and how it is computed. */
export interface LoraOptions {
  lora?: LoraTarget[]
  /**
   * `merged` (the default): added to the weight in every run, where the weight is stored as float32 and is the map's own. `beside`:
   * computed beside the map, for weights in half precision, in which an update of less than a thousandth of the weight would be
   * lost.
   */
  update?: 'merged' | 'beside'
}

/** LoRA matrices with what they adapt. */
export interface Adapter {
  targets: LoraTarget[]
  /** By the names of `loraA` ([rank, inputs]) and `loraB` ([outputs, rank]), row by row. */
  tensors: Map<string, Float32Array>
  /** The fingerprint of the encoder that the matrices were trained over, where it is known. */
  baseFingerprint: string | undefined
  /**
   * Whether PEFT's settings of it are those of rank-stabilised LoRA, under which its alpha is scaled by 1 / √rank. The alphas of
   * `targets` are scaled by 1 / rank all the same.
   */
  rankStabilised?: boolean
  /** Adapted modules of the file that embeddings do not come from, as poolers and heads; absent where there is none. */
  leftOut?: string[]
}

/** Name of a target's A, a graph input float32 [rank, inputs]. */
export const loraA = (module: string): string => `${module}.lora_A.weight`
/** Name of a target's B, a graph input float32 [outputs, rank]. */
export const loraB = (module: string): string => `${module}.lora_B.weight`

/** Whether an adapter leaves its encoder as it is: every B is 0, as before the first step of training. */
export const changesNothing = ({ targets, tensors }: Adapter): boolean =>
  targets.every(({ module }) => tensors.get(loraB(module))?.every((value) => value === 0) ?? true)

/** Names and shapes of the tensors that adapt `targets`, in the order of the targets, A before B. */
export function loraShapes(targets: readonly LoraTarget[]): { name: string; shape: [number, number] }[] {
  return targets.flatMap(({ module, rank, inputs, outputs }) => [
    { name: loraA(module), shape: [rank, inputs] as [number, number] },
    { name: loraB(module), shape: [outputs, rank] as [number, number] },
  ])
}

/**
 * The modules that the patterns name, in the order of `modules`. As in PEFT, a pattern is a module's path or its last parts
 * (`query`, `output.dense`), or `all-linear`; one with a character of regular expressions other than the dot is an expression
 * that has to match the whole path.
 *
 * @throws InputError for a pattern that names no module
 */
export function selectTargets<T extends LinearModule>(modules: readonly T[], patterns: readonly string[]): T[] {
  const chosen = new Set<T>()
  for (const pattern of patterns) {
    const matches = matcher(pattern)
    const found = modules.filter(({ module }) => matches(module))
    if (found.length === 0) {
      const names = [...new Set(modules.map(({ module }) => module.replace(/\.\d+\./g, '.*.')))]
      throw new InputError(
        `The pattern "${pattern}" names no linear module of the encoder${isExpression(pattern) ? ' (an expression has to match the whole name)' : ''}; it has ${names.join(', ')}.`,
      )
    }
    for (const module of found) chosen.add(module)
  }
  return modules.filter((module) => chosen.has(module))
}

const isExpression = (pattern: string): boolean => /[\\^$*+?()[\]{}|]/.test(pattern)

function matcher(pattern: string): (module: string) => boolean {
  if (pattern === 'all-linear') return () => true
  if (!isExpression(pattern)) return (module) => module === pattern || module.endsWith(`.${pattern}`)
  let expression: RegExp
  try {
    expression = new RegExp(`^(?:${pattern})$`)
  } catch (error) {
    throw new InputError(
      `The module pattern "${pattern}" is no regular expression: ${(error as Error).message}.`,
      {},
      error,
    )
  }
  return (module) => expression.test(module)
}

/**
 * The matrices that training starts from: A uniform in ±1/√inputs (Kaiming-uniform with a = √5, as PEFT draws it), B zero, so
 * that the encoder is unchanged. The same seed gives the same matrices.
 */
export function initialLora(targets: readonly LoraTarget[], seed: string): Map<string, Float32Array> {
  const tensors = new Map<string, Float32Array>()
  for (const { module, rank, inputs, outputs } of targets) {
    const random = createRandom(`${seed}/${module}`)
    const bound = 1 / Math.sqrt(inputs)
    tensors.set(
      loraA(module),
      Float32Array.from({ length: rank * inputs }, () => (2 * random.next() - 1) * bound),
    )
    tensors.set(loraB(module), new Float32Array(outputs * rank))
  }
  return tensors
}

/** W + (alpha / rank) B A for one target, float32 [outputs, inputs], accumulated in double precision. */
export function mergedWeight(weight: Float32Array, adapter: Adapter, target: LoraTarget): Float32Array {
  const { module, rank, inputs, outputs, alpha } = target
  const a = tensorOf(adapter, loraA(module))
  const b = tensorOf(adapter, loraB(module))
  if (weight.length !== inputs * outputs)
    throw new RangeError(`The weight of ${module} has ${weight.length} elements, not ${outputs} x ${inputs}`)
  const merged = new Float32Array(weight.length)
  const row = new Float64Array(inputs)
  for (let o = 0; o < outputs; o++) {
    row.fill(0)
    for (let r = 0; r < rank; r++) {
      const factor = (b[o * rank + r] as number) * (alpha / rank)
      if (factor === 0) continue
      for (let i = 0; i < inputs; i++) row[i] = (row[i] as number) + factor * (a[r * inputs + i] as number)
    }
    for (let i = 0; i < inputs; i++) merged[o * inputs + i] = (weight[o * inputs + i] as number) + (row[i] as number)
  }
  return merged
}

function tensorOf(adapter: Adapter, name: string): Float32Array {
  const tensor = adapter.tensors.get(name)
  if (tensor === undefined) throw new RangeError(`The adapter has no tensor "${name}"`)
  return tensor
}

/** SHA-256 (hexadecimal) over what an adapter computes: targets, ranks, alphas and matrices. */
export function adapterHash(adapter: Adapter): string {
  const hash = createHash('sha256')
  for (const { module, rank, alpha } of adapter.targets) {
    hash.update(JSON.stringify([module, rank, alpha]))
    for (const name of [loraA(module), loraB(module)]) {
      const { buffer, byteOffset, byteLength } = tensorOf(adapter, name)
      hash.update(new Uint8Array(buffer, byteOffset, byteLength))
    }
  }
  return hash.digest('hex')
}
