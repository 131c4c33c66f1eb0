import { open } from 'node:fs/promises'
import {
  type Adapter,
  type EncoderProfile,
  type LoraTarget,
  loraB,
  mergedWeight,
  openWeights,
  type Weights,
} from '../encoder/index.ts'
import {
  bfloat16ToFloat32,
  byteLength,
  dataFromBytes,
  type ExternalTensor,
  elementSize,
  float16ToFloat32,
  type StoredTensor,
} from '../onnx/index.ts'
import { InputError } from '../support/errors.ts'
import { rowsOf, type WeightRows } from './streams.ts'

/** A checkpoint's tensors as float32, an adapter's updates added in, read from their files when they are needed. */
export interface MergedWeights {
  /**
   * What graphs are built over: references of type float32, whose `file` is the tensor's name in the checkpoint. They lead nowhere
   * by themselves; {@link MergedWeights.of} has the numbers.
   */
  readonly references: Weights
  /** The numbers behind an initializer that is one of the references. */
  of(tensor: ExternalTensor): WeightRows
}

/**
 * A checkpoint with an adapter merged in: W + (alpha / rank) B A, accumulated in double precision (PEFT calls this
 * `merge_and_unload`).
 *
 * @param signal ends the reading of weights, whoever reads them
 * @throws InputError for an adapter whose module has no weight in the checkpoint
 */
export async function mergedWeights(
  profile: EncoderProfile,
  adapter: Adapter | undefined,
  signal?: AbortSignal,
): Promise<MergedWeights> {
  const { weights, stored } = await openWeights(profile)
  const references = new Map<string, ExternalTensor>()
  for (const [name, { shape }] of weights) {
    const external = { file: name, offset: 0, length: byteLength('float32', shape) }
    references.set(name, { dtype: 'float32', shape: [...shape], external })
  }
  const targets = new Map<string, LoraTarget>()
  for (const target of adapter?.targets ?? []) {
    const end = `${target.module}.weight`
    const name = [...references.keys()].find((key) => key === end || key.endsWith(`.${end}`))
    if (name === undefined)
      throw new InputError(`The adapter changes ${target.module}, which the checkpoint does not have.`, {
        file: profile.weights,
      })
    targets.set(name, target)
  }
  return {
    references,
    of({ shape, external }) {
      const tensor = stored.tensors.get(external.file)
      if (tensor === undefined) throw new RangeError(`The checkpoint has no tensor "${external.file}"`)
      const { size } = rowsOf(shape)
      const target = targets.get(external.file)
      return {
        shape,
        async rows(from, to) {
          signal?.throwIfAborted()
          const values = await readFloats(tensor, from * size, to * size)
          return target === undefined
            ? values
            : mergedWeight(values, someRows(adapter as Adapter, target, from, to), {
                ...target,
                outputs: to - from,
              })
        },
      }
    },
  }
}

/** The adapter with rows `from` to `to` of a target's B, which are those that change these rows of its weight. */
function someRows(adapter: Adapter, { module, rank }: LoraTarget, from: number, to: number): Adapter {
  const b = adapter.tensors.get(loraB(module))
  if (b === undefined) throw new RangeError(`The adapter has no tensor "${loraB(module)}"`)
  return { ...adapter, tensors: new Map([...adapter.tensors, [loraB(module), b.subarray(from * rank, to * rank)]]) }
}

const floatTypes = { F32: 'float32', F16: 'float16', BF16: 'bfloat16' } as const

/** Elements `from` to `to` of a tensor in its file, as float32. */
async function readFloats(tensor: StoredTensor, from: number, to: number): Promise<Float32Array> {
  const dtype = floatTypes[tensor.dtype as keyof typeof floatTypes]
  if (dtype === undefined)
    throw new InputError(`A weight is ${tensor.dtype}, which is no float.`, { file: tensor.file })
  const bytes = new Uint8Array((to - from) * elementSize(dtype))
  const begin = tensor.offset + from * elementSize(dtype)
  const file = await open(tensor.file, 'r')
  try {
    for (let done = 0; done < bytes.length; ) {
      const { bytesRead } = await file.read(bytes, done, bytes.length - done, begin + done)
      if (bytesRead === 0)
        throw new InputError(`the file ended at byte ${begin + done} while it was read`, { file: tensor.file })
      done += bytesRead
    }
  } finally {
    await file.close()
  }
  const data = dataFromBytes(dtype, bytes)
  if (data instanceof Float32Array) return data
  return dtype === 'float16' ? float16ToFloat32(data as Uint16Array) : bfloat16ToFloat32(data as Uint16Array)
}
