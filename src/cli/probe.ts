import { type Device, GraphBuilder, openSession, type Placement, placementText, type Tensor } from '../onnx/index.ts'

const ROWS = 32
const WIDTH = 64

/** What a run of the probe gave, where its nodes ran, and how long it took once the device had warmed up. */
interface ProbeRun {
  outputs: Record<string, Tensor>
  placement: Placement | undefined
  seconds: number
}

/** A small graph of the operators that encoders are made of, with its inputs: products, LayerNormalization, softmax and GELU. */
function probe() {
  const g = new GraphBuilder()
  const x = g.input('x', 'float32', ['rows', WIDTH])
  const w = g.input('w', 'float32', [WIDTH, WIDTH])
  const scale = g.input('scale', 'float32', [WIDTH])
  const bias = g.input('bias', 'float32', [WIDTH])
  const h = g.layerNorm(g.gemm(x, w, bias), scale, bias, 1e-5)
  const attention = g.softmax(g.matmul(h, g.transpose(h, [1, 0])))
  g.output(g.gelu(g.matmul(attention, h)), 'y')
  const wave = (shape: number[], step: number): Tensor => {
    const size = shape.reduce((a, b) => a * b, 1)
    return { dtype: 'float32', shape, data: Float32Array.from({ length: size }, (_, i) => Math.sin(i * step)) }
  }
  const feeds = {
    x: wave([ROWS, WIDTH], 0.7),
    w: wave([WIDTH, WIDTH], 1.3),
    scale: wave([WIDTH], 0.1),
    bias: wave([WIDTH], 0.3),
  }
  return { graph: g.build(), feeds }
}

/** Runs the probe on a device; errors are those of the device. */
export async function runProbe(device: Device): Promise<ProbeRun> {
  const { graph, feeds } = probe()
  let placement: Placement | undefined
  const onPlacement = (found: Placement): void => {
    placement = found
  }
  const session = await openSession(graph, { device, threads: 1, onPlacement })
  try {
    await session.run(feeds)
    const started = performance.now()
    const outputs = await session.run(feeds)
    return { outputs, placement, seconds: (performance.now() - started) / 1000 }
  } finally {
    await session.release()
  }
}

/** The largest difference between two runs' outputs; infinite where something is not a number. */
export function largestDifference(a: Record<string, Tensor>, b: Record<string, Tensor>): number {
  let largest = 0
  for (const [name, { data }] of Object.entries(b))
    data.forEach((x: number | bigint, i: number) => {
      const difference = Math.abs(Number(a[name]?.data[i]) - Number(x))
      largest = Math.max(largest, Number.isNaN(difference) ? Number.POSITIVE_INFINITY : difference)
    })
  return largest
}

/** Where the nodes ran, in words. */
export function placed(placement: Placement | undefined): string {
  return placement === undefined ? '' : (placementText(placement) ?? `all ${placement.onDevice} nodes ran on it`)
}
