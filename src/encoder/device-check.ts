import { type Device, wrongResults } from '../onnx/index.ts'

/** Computes the embeddings of one batch, float32 [sequences, dimension]. */
interface Embeds {
  embed(sequences: Int32Array[]): Promise<Float32Array>
  close(): Promise<void>
}

/** Smallest cosine with the CPU's embedding; rounding leaves 0.99999 and more. */
const LEAST = 0.999

/**
 * An engine on a device that first computes what the CPU does: the first sequence that it is given, on both. A kernel or a driver
 * that is wrong says nothing and gives other embeddings.
 *
 * @param openCpu opens the same engine on the CPU, for that one sequence
 * @returns an engine whose `embed` throws a DeviceError where the two differ
 */
export function checkedAgainstCpu<E extends Embeds>(engine: E, device: Device, openCpu: () => Promise<Embeds>): E {
  let checked = false
  return {
    ...engine,
    async embed(sequences) {
      const [first] = sequences
      if (!checked && first !== undefined) {
        const cpu = await openCpu()
        const expected = await cpu.embed([first]).finally(() => cpu.close())
        const similarity = cosine(await engine.embed([first]), expected)
        if (!(similarity >= LEAST))
          throw wrongResults(
            device,
            `this encoder's embeddings are not those of the CPU (cosine ${similarity.toFixed(4)})`,
          )
        checked = true
      }
      return engine.embed(sequences)
    },
  }
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
