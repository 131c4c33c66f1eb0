import { type Device, type Precision, wrongResults } from '../../onnx/index.ts'
import type { TokenSequence } from '../input/sequence.ts'

/** Computes the embeddings of one batch, float32 [sequences, dimension]. */
interface Embeds {
  embed(sequences: TokenSequence[]): Promise<Float32Array>
  close(): Promise<void>
}

/** Smallest cosine with the CPU's numbers, which are float32, by what a device computes in; rounding to that leaves 0.99999 and more. */
const LEAST: Record<Precision, number> = { fp32: 0.999, fp16: 0.999, bf16: 0.99 }

/**
 * An engine on a device that first computes what the CPU does: the first sequence that it is given, on both. A kernel or a driver
 * that is wrong says nothing and gives other embeddings.
 *
 * @param openCpu opens the same engine on the CPU, for that one sequence
 * @param precision what the device computes in
 * @returns an engine whose `embed` throws a DeviceError where the two differ
 */
export function checkedAgainstCpu<E extends Embeds>(
  engine: E,
  device: Device,
  openCpu: () => Promise<Embeds>,
  precision: Precision = 'fp32',
): E {
  let checked = false
  return {
    ...engine,
    async embed(sequences) {
      const [first] = sequences
      if (!checked && first !== undefined) {
        const cpu = await openCpu()
        const expected = await cpu.embed([first]).finally(() => cpu.close())
        compareWithCpu(await engine.embed([first]), expected, device, "this encoder's embeddings", precision)
        checked = true
      }
      return engine.embed(sequences)
    },
  }
}

/**
 * @param what the numbers are, in the plural
 * @throws DeviceError where a device's numbers are not those of the CPU
 */
export function compareWithCpu(
  found: Float32Array,
  expected: Float32Array,
  device: Device,
  what: string,
  precision: Precision = 'fp32',
): void {
  const similarity = cosine(found, expected)
  if (!(similarity >= LEAST[precision]))
    throw wrongResults(device, `${what} are not those of the CPU (cosine ${similarity.toFixed(4)})`)
}

function cosine(a: Float32Array, b: Float32Array): number {
  let [ab, aa, bb] = [0, 0, 0]
  b.forEach((y, i) => {
    const x = a[i] ?? Number.NaN
    ab += x * y
    aa += x * x
    bb += y * y
  })
  return ab / Math.sqrt(aa * bb)
}
