import type * as core from '@tensorflow/tfjs-core'
import type { Tfjs } from './values.ts'

type Kernel = core.KernelConfig['kernelFunc']

/** Backends whose kernels were replaced: a kernel that wraps another must not wrap itself. */
const replaced = new Set<string>()

/**
 * Puts kernels of ours in the place of those that a backend lacks or has only in a slow form. Gradients are not touched: tfjs's own
 * call whatever kernel there is.
 */
export function registerKernels(tf: Tfjs, backendName: string): void {
  if (replaced.has(backendName)) return
  replaced.add(backendName)
  replaceKernel(tf, 'UnsortedSegmentSum', backendName, () => segmentSum)
  if (backendName === 'wasm') replaceKernel(tf, 'BatchMatMul', backendName, (own) => matrixByMatrix(tf, own as Kernel))
}

function replaceKernel(
  tf: Tfjs,
  kernelName: string,
  backendName: string,
  make: (own: Kernel | undefined) => Kernel,
): void {
  const own = tf.getKernel(kernelName, backendName)
  if (own !== undefined) tf.unregisterKernel(kernelName, backendName)
  tf.registerKernel({ ...own, kernelName, backendName, kernelFunc: make(own?.kernelFunc) })
}

/**
 * out[s] = Σ x[i] over the i with segment s, behind the gradient of `tf.gather`. The wasm backend has none, and the cpu backend's
 * takes a pass over x for every segment.
 */
const segmentSum: Kernel = ({ inputs, backend, attrs }) => {
  const { x, segmentIds } = inputs as { x: core.TensorInfo; segmentIds: core.TensorInfo }
  const { numSegments } = attrs as { numSegments: number } & typeof attrs
  const memory = backend as core.KernelBackend
  const values = memory.readSync(x.dataId) as Float32Array
  const segments = memory.readSync(segmentIds.dataId) as Int32Array
  const inner = x.shape.slice(1)
  const width = inner.reduce((a, b) => a * b, 1)
  const sums = new Float32Array(numSegments * width)
  segments.forEach((segment, row) => {
    // a negative segment drops its row
    if (segment < 0) return
    for (let k = 0; k < width; k++) sums[segment * width + k]! += values[row * width + k]!
  })
  const shape = [numSegments, ...inner]
  return { dataId: memory.write(sums, shape, x.dtype) as core.TensorInfo['dataId'], shape, dtype: x.dtype }
}

/**
 * The matrix product of the wasm backend, whose fast form takes one pair of matrices as they lie: whatever is to be transposed is
 * transposed first, and a batch is computed matrix by matrix. (Its form for the rest is a loop, 15 times slower.)
 */
function matrixByMatrix(tf: Tfjs, own: Kernel): Kernel {
  const run = (kernelName: string, inputs: object, backend: object, attrs: object): core.TensorInfo => {
    const { kernelFunc } = tf.getKernel(kernelName, 'wasm')
    return kernelFunc({
      inputs: inputs as core.NamedTensorInfoMap,
      backend,
      attrs: attrs as core.NamedAttrMap,
    }) as core.TensorInfo
  }
  return (params) => {
    const { backend } = params
    const { a, b } = params.inputs as { a: core.TensorInfo; b: core.TensorInfo }
    const { transposeA, transposeB } = params.attrs as {
      transposeA: boolean
      transposeB: boolean
    } & typeof params.attrs
    const batch = a.shape.slice(0, -2)
    const count = batch.reduce((n, d) => n * d, 1)
    const sameBatch = batch.length + 2 === b.shape.length && batch.every((d, i) => d === b.shape[i])
    if (!sameBatch || (count === 1 && !transposeA && !transposeB)) return own(params)

    const temporary: core.TensorInfo[] = []
    const kept = (info: core.TensorInfo): core.TensorInfo => {
      temporary.push(info)
      return info
    }
    const matrices = (x: core.TensorInfo, transpose: boolean): core.TensorInfo => {
      const shape = [count, ...x.shape.slice(-2)]
      const flat = kept(run('Reshape', { x }, backend, { shape }))
      return transpose ? kept(run('Transpose', { x: flat }, backend, { perm: [0, 2, 1] })) : flat
    }
    const [left, right] = [matrices(a, transposeA), matrices(b, transposeB)]
    const [m, n] = [left.shape[1]!, right.shape[2]!]
    const at = (x: core.TensorInfo, i: number): core.TensorInfo =>
      count === 1 ? x : kept(run('Slice', { x }, backend, { begin: [i, 0, 0], size: [1, x.shape[1]!, x.shape[2]!] }))
    const attrs = { ...params.attrs, transposeA: false, transposeB: false }
    const products = Array.from({ length: count }, (_, i) =>
      kept(own({ inputs: { a: at(left, i), b: at(right, i) }, backend, attrs }) as core.TensorInfo),
    )
    const joined = count === 1 ? products[0]! : kept(run('Concat', products, backend, { axis: 0 }))
    const out = run('Reshape', { x: joined }, backend, { shape: [...batch, m, n] })
    for (const { dataId } of temporary) (backend as core.KernelBackend).disposeData(dataId)
    return out
  }
}
