import { existsSync } from 'node:fs'
import { createRequire } from 'node:module'
import { basename, dirname, join, relative } from 'node:path'
import type { InferenceSession } from 'onnxruntime-node'
import { InputError } from '../support/errors.ts'

/** Where graphs run: ONNX Runtime's CPU kernels, an NVIDIA card, or any card that WebGPU (on Linux: Vulkan) finds. */
export const DEVICES = ['cpu', 'cuda', 'webgpu'] as const
export type Device = (typeof DEVICES)[number]

export type Runtime = Omit<typeof import('onnxruntime-node'), 'default'>

/** A device, or all of ONNX Runtime, does not work here: what is wrong, and how to mend it. The message is both. */
export class DeviceError extends InputError {
  override name = 'DeviceError'
  readonly fault: string
  readonly remedy: string

  constructor(fault: string, remedy: string, cause?: unknown) {
    super(`${fault} ${remedy}`, {}, cause)
    this.fault = fault
    this.remedy = remedy
  }
}

/**
 * Loads onnxruntime-node, whose native part is not there for every platform.
 *
 * @throws DeviceError that says which platforms there are
 */
export async function loadRuntime(): Promise<Runtime> {
  try {
    const runtime = await import('onnxruntime-node')
    // Failures arrive as exceptions; ONNX Runtime need not print them too.
    runtime.env.logLevel = 'fatal'
    return runtime
  } catch (error) {
    throw new DeviceError(
      `onnxruntime-node cannot be loaded on ${platformName()}: ${firstLine(error)}`,
      'There are binaries for Linux with glibc (x64, arm64), macOS on Apple silicon and Windows: install the dependencies again ' +
        'there ("npm ci"), or use such a machine or container image (node:22-slim instead of an Alpine one, for example).',
      error,
    )
  }
}

/** The system that native binaries must fit, for people. */
export function platformName(): string {
  return `${process.platform} ${process.arch}${isMusl() ? ' with musl' : ''}`
}

/** Whether this is a Linux whose C library is not glibc (Alpine, say). */
export function isMusl(): boolean {
  if (process.platform !== 'linux') return false
  // Without this the report looks up the names of open connections.
  Object.assign(process.report, { excludeNetwork: true })
  const { header } = process.report.getReport() as unknown as { header: { glibcVersionRuntime?: string } }
  return header.glibcVersionRuntime === undefined
}

/**
 * ONNX Runtime's settings for a device.
 *
 * @throws DeviceError for one that this platform's package lacks, and for CUDA whose own file is not installed
 */
export function providerSettings(
  device: Device,
  runtime: Runtime,
): Pick<InferenceSession.SessionOptions, 'executionProviders'> {
  const here = runtime.listSupportedBackends().map(({ name }) => name)
  if (!here.includes(device))
    throw new DeviceError(
      `onnxruntime-node has no ${device} on ${platformName()}.`,
      `Choose one of ${DEVICES.filter((known) => here.includes(known)).join(', ')} with --device.`,
    )
  if (device === 'cuda') {
    checkCudaInstalled(cudaProvider())
    // Products of float32 matrices would otherwise be rounded to TF32's 10 bits on newer cards.
    process.env.NVIDIA_TF32_OVERRIDE ??= '0'
  }
  return { executionProviders: [device] }
}

/** The file that onnxruntime-node loads for CUDA, and the command that fetches it. */
interface CudaProvider {
  file: string
  install: string
}

function cudaProvider(): CudaProvider {
  const folder = dirname(createRequire(import.meta.url).resolve('onnxruntime-node/package.json'))
  const file = join(folder, 'bin', 'napi-v6', process.platform, process.arch, 'libonnxruntime_providers_cuda.so')
  const script = relative(process.cwd(), join(folder, 'script', 'install.js'))
  return { file, install: `node ${script} --onnxruntime-node-install=cuda12` }
}

function checkCudaInstalled({ file, install }: CudaProvider): void {
  if (existsSync(file)) return
  throw new DeviceError(
    `CUDA's part of onnxruntime-node is not installed (there is no ${basename(file)}).`,
    `Fetch it with: ${install} (it also needs an NVIDIA driver, CUDA 12 and cuDNN 9).`,
  )
}

/**
 * Why a device does not work here; undefined where `reason` is no fault of the device.
 *
 * @param reason ONNX Runtime's words when a session was made for the device, or run on it
 */
export function deviceFault(device: Device, reason: string): DeviceError | undefined {
  if (device === 'cpu') return undefined
  const missing = /Could not find an implementation for (\w+)/.exec(reason)?.[1]
  if (missing !== undefined)
    return new DeviceError(
      `Neither ${device} nor the CPU beside it has a kernel for ${missing} in the types of this graph.`,
      'Use --precision fp32 if it was another, or --device cpu.',
    )
  return device === 'cuda' ? cudaFault(reason, cudaProvider().file) : webgpuFault(reason)
}

/** The fault of a device that computes, but something else than the CPU does: `what` says where that shows. */
export function wrongResults(device: Device, what: string): DeviceError {
  return new DeviceError(
    `On ${device} ${what}: a kernel of ONNX Runtime or the card's driver is wrong.`,
    'Use --device cpu, or another driver.',
  )
}

/** What CUDA's fault is, from ONNX Runtime's words and what the dynamic loader says to the provider's file. */
export function cudaFault(reason: string, file: string): DeviceError | undefined {
  if (/driver version is insufficient|forward compatibility|cudaErrorInsufficientDriver|unsupported PTX/i.test(reason))
    return new DeviceError(`The NVIDIA driver is too old for CUDA 12 (${reason}).`, 'Install driver 525 or newer.')
  if (/no CUDA-capable device|CUDA failure 100\b|cudaErrorNoDevice/i.test(reason))
    return new DeviceError(
      `There is no NVIDIA card that CUDA can see (${reason}).`,
      'Look at "nvidia-smi" and CUDA_VISIBLE_DEVICES; a container needs --gpus all.',
    )
  if (/shared library|failed to load|dlopen|LoadLibrary/i.test(reason)) {
    const said = loaderError(file) ?? reason
    const library = /^(lib[\w.+-]+): cannot open shared object/.exec(said)?.[1]
    if (library === undefined)
      return new DeviceError(
        `CUDA's part of onnxruntime-node does not load: ${said}.`,
        `Fetch it again with: ${cudaProvider().install}`,
      )
    return new DeviceError(
      `CUDA needs ${library}, which is not found.`,
      `It is part of ${packageOf(library)}: install that, or name its folder in LD_LIBRARY_PATH.`,
    )
  }
  if (!/cuda|cudnn|cublas/i.test(reason) || /memory/i.test(reason)) return undefined
  return new DeviceError(`CUDA does not work here: ${reason}.`, 'Compare "nvidia-smi" with the versions that it needs.')
}

function packageOf(library: string): string {
  if (library.startsWith('libcuda.so')) return 'the NVIDIA driver'
  return library.startsWith('libcudnn') ? 'cuDNN 9 for CUDA 12' : 'the CUDA 12 toolkit'
}

function webgpuFault(reason: string): DeviceError | undefined {
  if (/requires f16/.test(reason))
    return new DeviceError('The WebGPU adapter here does not compute in float16.', 'Use --precision fp32 with it.')
  const said = /Failed to get a WebGPU (?:adapter|device).*/.exec(reason)?.[0]
  if (said === undefined) return undefined
  return new DeviceError(
    `There is no WebGPU adapter that ONNX Runtime can use (${said}).`,
    process.platform === 'linux'
      ? 'On Linux it runs on Vulkan: install libvulkan1 and the Vulkan driver of your card (mesa-vulkan-drivers for AMD and Intel, ' +
          'NVIDIA\'s own otherwise); "vulkaninfo --summary" shows what is there.'
      : 'Update the driver of the graphics card, or use --device cpu.',
  )
}

/** What the dynamic loader says to a library; undefined where it loads. */
function loaderError(file: string): string | undefined {
  try {
    process.dlopen({ exports: {} }, file)
  } catch (error) {
    // A library that loads but is no addon of Node.
    return /did not self-register/.test((error as Error).message) ? undefined : firstLine(error)
  }
  return undefined
}

function firstLine(error: unknown): string {
  return (error instanceof Error ? error.message : String(error)).split('\n')[0] as string
}
