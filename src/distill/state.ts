import { openSafetensors, type Tensor, writeSafetensors } from '../onnx/index.ts'
import { InputError } from '../support/errors.ts'
import { exists } from '../support/files.ts'
import { createRandom } from '../support/random.ts'
import { type AdamWState, initialAdamW, type Tensors } from '../train/index.ts'

/** All that a distillation has become after a step; the order of the texts follows from seed and epoch. */
export interface DistillState {
  /** Optimizer steps done. */
  step: number
  /** The pass over the texts, from 0, and the texts of it that are done. */
  epoch: number
  cursor: number
  tensors: Tensors
  optimizer: AdamWState
}

/** The state before the first step. */
export function initialDistillState(weights: Tensors): DistillState {
  return { step: 0, epoch: 0, cursor: 0, tensors: weights, optimizer: initialAdamW(weights) }
}

/** Standard deviation of the weights before training (Devlin et al. 2019, as Hugging Face's `initializer_range`). */
const INITIAL_STD = 0.02

/** Weights of a BERT before training: normal, norms at 1, biases at 0. Each tensor draws from a generator of its own. */
export function randomWeights(shapes: ReadonlyMap<string, readonly number[]>, seed: string): Map<string, Tensor> {
  const tensors = new Map<string, Tensor>()
  for (const [name, shape] of shapes) {
    const length = shape.reduce((a, b) => a * b, 1)
    const data = new Float32Array(length)
    if (name.endsWith('LayerNorm.weight')) data.fill(1)
    else if (shape.length > 1) {
      const random = createRandom(`${seed}/${name}`)
      for (let i = 0; i < length; i++) data[i] = INITIAL_STD * random.normal()
    }
    tensors.set(name, { dtype: 'float32', shape: [...shape], data })
  }
  return tensors
}

const PREFIXES = { tensors: '', first: 'first.', second: 'second.' } as const

/** Writes a state into one file, atomically. */
export async function writeState(
  path: string,
  state: DistillState,
  shapes: ReadonlyMap<string, number[]>,
  fingerprint: string,
): Promise<void> {
  const { step, epoch, cursor, tensors, optimizer } = state
  const stored = (part: Tensors, prefix: string): [string, Tensor][] =>
    [...part].map(([name, data]) => [prefix + name, { dtype: 'float32', shape: shapes.get(name)!, data }])
  const all = new Map([
    ...stored(tensors, PREFIXES.tensors),
    ...stored(optimizer.first, PREFIXES.first),
    ...stored(optimizer.second, PREFIXES.second),
  ])
  const metadata = { fingerprint, step, epoch, cursor, optimizerStep: optimizer.step }
  await writeSafetensors(path, all, Object.fromEntries(Object.entries(metadata).map(([k, v]) => [k, String(v)])))
}

/**
 * Reads what `writeState` wrote; undefined where there is nothing yet.
 *
 * @throws InputError for a file of another distillation
 */
export async function readState(
  path: string,
  shapes: ReadonlyMap<string, number[]>,
  fingerprint: string,
): Promise<DistillState | undefined> {
  if (!(await exists(path))) return undefined
  const file = await openSafetensors(path)
  const { metadata } = file
  if (metadata.get('fingerprint') !== fingerprint)
    throw new InputError(
      'The checkpoint is of a distillation with other settings, texts or another teacher. Take another --output.',
      { file: path },
    )
  const number = (name: string): number => {
    const value = Number(metadata.get(name))
    if (!Number.isSafeInteger(value) || value < 0)
      throw new InputError(`The checkpoint does not say its "${name}".`, { file: path })
    return value
  }
  const part = async (prefix: string): Promise<Tensors> => {
    const tensors: Tensors = new Map()
    for (const [name, shape] of shapes) {
      const data = await file.readTensor(prefix + name)
      if (data.length !== shape.reduce((a, b) => a * b, 1))
        throw new InputError(`The checkpoint's "${prefix + name}" has another shape than the student's.`, {
          file: path,
        })
      tensors.set(name, data)
    }
    return tensors
  }
  return {
    ...{ step: number('step'), epoch: number('epoch'), cursor: number('cursor') },
    tensors: await part(PREFIXES.tensors),
    optimizer: {
      step: number('optimizerStep'),
      first: await part(PREFIXES.first),
      second: await part(PREFIXES.second),
    },
  }
}
