import type { TokenSequence } from '../../encoder/index.ts'
import { type Device, type Precision, wrongResults } from '../../onnx/index.ts'
import { createRandom } from '../../support/random.ts'
import type { Tensors } from '../step/optimizer.ts'
import { type Engine, openEngine, type TrainableEncoder } from './engine.ts'

/** How far gradients may be from the CPU's, relative to their norm: many times what rounding makes of them, and far below a wrong sign. */
const tolerances: Record<Precision, number> = { fp32: 0.01, fp16: 0.1, bf16: 0.3 }

/**
 * Makes sure that a device computes what it should: the gradients of a few sequences, on the device and on the CPU. A kernel or a
 * driver that is wrong says nothing and trains something else.
 *
 * @param sequences few and short ones, of real texts
 * @throws DeviceError when they are not the same up to rounding
 */
export async function checkDevice(
  engine: Pick<Engine, 'pullBack'>,
  encoder: TrainableEncoder,
  sequences: TokenSequence[],
  { device, precision, threads }: { device: Device; precision: Precision; threads: number },
): Promise<void> {
  // LoRA begins with B = 0, which leaves A without a gradient: any other matrices will do.
  const random = createRandom('device check')
  const tensors: Tensors = new Map(
    [...encoder.trainable].map(([name, shape]) => {
      const size = shape.reduce((a, b) => a * b, 1)
      return [name, Float32Array.from({ length: size }, () => 0.02 * random.normal())]
    }),
  )
  const slope = Float32Array.from({ length: sequences.length * encoder.dimension }, () => random.normal())
  const tokenBudget = Number.POSITIVE_INFINITY
  const cpu = await openEngine({
    encoder,
    queries: () => new Float32Array(),
    loss: undefined,
    tokenBudget,
    threads,
    precision,
  })
  try {
    const expected = await cpu.pullBack(sequences, slope, tensors)
    const found = await engine.pullBack(sequences, slope, tensors)
    const difference = relativeDifference(found, expected)
    if (difference <= tolerances[precision]) return
    throw wrongResults(
      device,
      `the gradients of this encoder are not those of the CPU (they differ by ${(100 * difference).toPrecision(3)} % of their norm)`,
    )
  } finally {
    await cpu.close()
  }
}

/** ‖a − b‖ / ‖b‖ over all tensors together; infinite where a number is missing. */
function relativeDifference(a: Tensors, b: Tensors): number {
  let [above, below] = [0, 0]
  for (const [name, data] of b)
    data.forEach((x, i) => {
      above += (a.get(name)![i]! - x) ** 2
      below += x ** 2
    })
  const difference = Math.sqrt(above / below)
  return Number.isNaN(difference) ? Number.POSITIVE_INFINITY : difference
}
