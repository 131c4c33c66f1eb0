import { existsSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { describe, expect, it, vi } from 'vitest'
import {
  checkPrecision,
  DeviceError,
  type Graph,
  GraphBuilder,
  inHalfPrecision,
  openSession,
  type Placement,
  placementText,
  type SessionOptions,
  type Tensor,
} from '../../src/onnx/index.ts'
import { beginProfile, placementOf } from '../../src/onnx/placement.ts'
import { cudaFault, deviceFault } from '../../src/onnx/providers.ts'
import { forWebgpu } from '../../src/onnx/webgpu.ts'
import { createRandom } from '../../src/support/random.ts'
import { softwareVulkan } from '../support/vulkan.ts'

const onnxruntime = dirname(createRequire(import.meta.url).resolve('onnxruntime-node/package.json'))
const cudaFile = join(onnxruntime, 'bin/napi-v6', process.platform, process.arch, 'libonnxruntime_providers_cuda.so')
const vulkan = softwareVulkan()

const random = createRandom('providers')
const tensor = (shape: number[]): Tensor => {
  const size = shape.reduce((a, b) => a * b, 1)
  return { dtype: 'float32', shape, data: Float32Array.from({ length: size }, () => random.normal()) }
}
const feeds = { a: tensor([2, 5, 3]), b: tensor([2, 7, 3]), w: tensor([7, 4]) }

/** ½ softmax(2 a bᵀ) w, with the products that have no kernel on WebGPU. */
function graph(): Graph {
  const g = new GraphBuilder()
  const a = g.input('a', 'float32', ['batch', 5, 3])
  const b = g.input('b', 'float32', ['batch', 7, 3])
  const w = g.input('w', 'float32', [7, 4])
  const p = g.softmax(g.fusedMatmul(a, b, { transB: true, alpha: 2 }))
  const turned = g.fusedMatmul(g.transpose(p, [0, 2, 1]), w, { transA: true, alpha: 0.5 })
  g.output(turned, 'y')
  return g.build()
}

async function run(
  g: Graph,
  { feeds: given = feeds, ...options }: SessionOptions & { feeds?: Record<string, Tensor> } = {},
): Promise<Float32Array> {
  const session = await openSession(g, { threads: 1, ...options })
  try {
    return (await session.run(given)).y!.data as Float32Array
  } finally {
    await session.release()
  }
}

const close = (a: Float32Array, b: Float32Array): void => {
  expect(a.length).toBe(b.length)
  a.forEach((x, i) => {
    expect(x).toBeCloseTo(b[i]!, 4)
  })
}

describe('a device', () => {
  it.skipIf(existsSync(cudaFile))('that is not installed is an error with the command that fetches it', async () => {
    const failed = openSession(graph(), { device: 'cuda' })
    await expect(failed).rejects.toThrow(DeviceError)
    await expect(failed).rejects.toThrow(
      process.platform === 'linux' && process.arch === 'x64'
        ? /script\/install\.js --onnxruntime-node-install=cuda12/
        : /has no cuda/,
    )
  })

  it.each([
    ['CUDA failure 35: CUDA driver version is insufficient for CUDA runtime version', /too old.*driver 525/],
    ['CUDA failure 100: no CUDA-capable device is detected', /no NVIDIA card.*nvidia-smi/],
    ['Failed to load shared library: libcublasLt.so.12', /Fetch it again/],
    ['CUDNN_STATUS_NOT_INITIALIZED', /CUDA does not work here/],
  ])('that fails with "%s" says what to do', (reason, remedy) => {
    expect(cudaFault(reason, cudaFile)?.message).toMatch(remedy)
  })

  it('that has no kernel for a type, nor the CPU, is told from a broken model', () => {
    const reason = "Could not find an implementation for Gelu(1) node with name 'Gelu_3'"
    expect(deviceFault('cuda', reason)?.message).toMatch(/Neither cuda nor the CPU.*Gelu.*--precision fp32/)
    expect(deviceFault('cpu', reason)).toBeUndefined()
  })

  it('without a fault of its own leaves the error to others', () => {
    expect(cudaFault('Could not find an implementation for Foo(1)', cudaFile)).toBeUndefined()
    expect(cudaFault('CUDA failure 2: out of memory', cudaFile)).toBeUndefined()
  })

  it('needs a folder for temporary files, and says so', async () => {
    vi.stubEnv('TMPDIR', '/nowhere/at/all')
    try {
      await expect(beginProfile()).rejects.toThrow(/where nodes run \(ENOENT.*TMPDIR/)
    } finally {
      vi.unstubAllEnvs()
    }
    const profile = await beginProfile()
    const unwritten = { endProfiling() {} } as unknown as Parameters<typeof profile.placement>[0]
    await expect(profile.placement(unwritten, 'webgpu')).rejects.toThrow(/where nodes run.*TMPDIR/)
  })

  it('says where nodes ran, copies not counted', () => {
    const node = (provider: string, op_name: string) => ({ cat: 'Node', args: { provider, op_name } })
    const profile = JSON.stringify([
      { cat: 'Session' },
      { cat: 'Node', args: { op_name: 'Gemm' } },
      node('CUDAExecutionProvider', 'Gemm'),
      node('CUDAExecutionProvider', 'MemcpyToHost'),
      node('CPUExecutionProvider', 'Shape'),
      node('CPUExecutionProvider', 'Shape'),
    ])
    const placement = placementOf(profile, 'cuda')
    expect(placement).toEqual({ device: 'cuda', onDevice: 1, onCpu: { Shape: 2 } })
    expect(placementText(placement)).toBe(
      'nodes of the graph on cuda: 1; on the CPU, since cuda has no kernel for them: Shape (2)',
    )
    expect(placementText({ device: 'cuda', onDevice: 1, onCpu: {} })).toBeUndefined()
  })

  it.skipIf(!vulkan)('computes what the CPU does, and tells that all nodes ran on it', async () => {
    let placement: Placement | undefined
    const expected = await run(graph())
    const found = await run(graph(), {
      device: 'webgpu',
      onPlacement: (p) => {
        placement = p
      },
    })
    close(found, expected)
    expect(placement).toMatchObject({ device: 'webgpu', onCpu: {} })
    expect(placement!.onDevice).toBeGreaterThan(4)
  })

  it.skipIf(!vulkan)('that has a kernel for no node of a graph is an error, not a run on the CPU', async () => {
    const g = new GraphBuilder()
    const ids = g.input('ids', 'int64', ['n'])
    g.output(g.one('Unique', [ids], { types: [{ dtype: 'int64', shape: ['m'] }] }), 'y')
    const session = await openSession(g.build(), { device: 'webgpu' })
    const data = BigInt64Array.of(3n, 3n, 1n)
    await expect(session.run({ ids: { dtype: 'int64', shape: [3], data } })).rejects.toThrow(/No node.*webgpu/)
    await session.release()
  })
})

describe('a precision', () => {
  it.skipIf(!vulkan)('that the adapter does not compute in is an error, too', async () => {
    const half = inHalfPrecision(graph(), 'fp16', { trainable: ['a', 'b', 'w'] })
    // SwiftShader has no float16
    await expect(run(half, { device: 'webgpu' })).rejects.toThrow(/not compute in float16.*--precision fp32/)
  })

  it('that the device cannot compute in is an error that names one that can', () => {
    expect(() => checkPrecision('bf16', 'cpu')).toThrow(/--device cuda/)
    expect(() => checkPrecision('fp16', 'cpu')).toThrow(/cuda or webgpu/)
    expect(() => checkPrecision('bf16', 'webgpu')).toThrow(/fp16 or fp32/)
    for (const device of ['cpu', 'cuda', 'webgpu'] as const) checkPrecision('fp32', device)
    checkPrecision('fp16', 'webgpu')
    checkPrecision('bf16', 'cuda')
  })
})

describe('a graph for WebGPU', () => {
  it('has standard products, and gives the same', async () => {
    const plain = forWebgpu(graph())
    expect(plain.nodes.map(({ op }) => op)).not.toContain('FusedMatMul')
    close(await run(plain), await run(graph()))
  })

  it.each([17, 21])('computes what its RMS normalisation leaves out (opset %i)', async (opset) => {
    const g = new GraphBuilder(opset)
    const a = g.input('a', 'float32', ['batch', 5, 3])
    const weight = g.constant([1, 2, 3], 'float32')
    const [y, statistic] = g.node('SimplifiedLayerNormalization', [a, weight], {
      outputs: 2,
      attributes: { axis: { i: -1 }, epsilon: { f: 1e-3 } },
      types: [
        { dtype: 'float32', shape: ['batch', 5, 3] },
        { dtype: 'float32', shape: ['batch', 5, 1] },
      ],
    }) as [string, string]
    g.output(g.mul(y, statistic), 'y')
    const expected = await run(g.build(), { feeds: { a: feeds.a } })
    close(await run(forWebgpu(g.build()), { feeds: { a: feeds.a } }), expected)
    // the kernel's own statistic is not written
    if (vulkan) close(await run(g.build(), { device: 'webgpu', feeds: { a: feeds.a } }), expected)
  })
})
