import { statfs } from 'node:fs/promises'
import { availableParallelism } from 'node:os'
import { MissingToolError, toolVersion } from '../media/index.ts'
import { type Device, platformName } from '../onnx/index.ts'
import { readLimits } from '../support/limits.ts'
import { installedTfjs } from '../tfjs/index.ts'
import { checkApart, NATIVE_CHECKS } from './native-checks.ts'

/** What one check found. A `fault` stops training on the CPU, or on the device that was asked for; a `warn` stops something else. */
export interface Finding {
  name: string
  status: 'ok' | 'warn' | 'fault'
  detail: string
  /** What to do about it; absent where all is well. */
  remedy?: string
}

export interface HealthOptions {
  /** The device that has to work; the others may be missing. */
  device: Device
  /** The folder whose disk is looked at. */
  folder: string
  /** What does a native check in a process of its own; see `checkApart`. */
  command: readonly string[]
}

/** Looks at everything that training and evaluation need of the machine, one finding at a time. */
export async function* checkHealth(options: HealthOptions): AsyncGenerator<Finding> {
  yield checkNode()
  yield* checkNative(options)
  yield* checkLimits()
  yield await checkDisk(options.folder)
  yield await checkFfmpeg()
  yield await checkTfjs()
}

function checkNode(): Finding {
  const { node } = process.versions
  const [major = 0, minor = 0] = node.split('.').map(Number)
  const detail = `${node} on ${platformName()}`
  if (major > 20 || (major === 20 && minor >= 19)) return { name: 'node', status: 'ok', detail }
  return { name: 'node', status: 'fault', detail, remedy: 'Install Node.js 20.19 or newer.' }
}

/** ONNX Runtime and, where it works, each device; those that need not work are warned of. */
async function* checkNative({ device, command }: HealthOptions): AsyncGenerator<Finding> {
  const [runtime = '', ...devices] = NATIVE_CHECKS
  const found = await checkApart(runtime, command)
  yield found
  if (found.status === 'fault') return
  const checks = devices.map((name) => ({ name, finding: checkApart(name, command) }))
  for (const { name, finding } of checks) {
    const { status, ...rest } = await finding
    const needed = name === 'device cpu' || name === `device ${device}`
    yield { ...rest, status: status === 'fault' && !needed ? 'warn' : status }
  }
}

async function* checkLimits(): AsyncGenerator<Finding> {
  const { memory, processors } = await readLimits()
  const detail = `${gibibytes(memory.available)} of ${gibibytes(memory.total)} free${memory.container ? ', the limit of a container' : ''}`
  yield memory.available >= 2 * 2 ** 30
    ? { name: 'memory', status: 'ok', detail }
    : {
        name: 'memory',
        status: 'warn',
        detail,
        remedy:
          'Training a small encoder takes 2 to 3 GiB: end other programs, raise the limit, or give a smaller --token-budget.',
      }
  const { count, container } = processors
  const threads = availableParallelism()
  if (container && count < threads)
    yield {
      name: 'processors',
      status: 'warn',
      detail: `a container gives ${count} of ${threads} processors`,
      remedy: `Give --threads ${Math.max(1, Math.floor(count))}: more threads than processors wait for each other.`,
    }
  else yield { name: 'processors', status: 'ok', detail: String(count) }
}

async function checkDisk(folder: string): Promise<Finding> {
  const name = 'disk'
  try {
    const { bavail, bsize } = await statfs(folder)
    const free = bavail * bsize
    const detail = `${gibibytes(free)} free in ${folder}`
    if (free >= 2 ** 30) return { name, status: 'ok', detail }
    return {
      name,
      status: 'warn',
      detail,
      remedy: 'Checkpoints, caches and exports need room: free some, or give an --output on another disk.',
    }
  } catch (error) {
    return {
      name,
      status: 'warn',
      detail: `not known: ${(error as Error).message}`,
      remedy: 'Start in another folder.',
    }
  }
}

async function checkFfmpeg(): Promise<Finding> {
  const name = 'ffmpeg'
  try {
    const [ffmpeg, ffprobe] = [await toolVersion('ffmpeg'), await toolVersion('ffprobe')]
    return { name, status: 'ok', detail: `${ffmpeg}, ffprobe ${ffprobe}` }
  } catch (error) {
    if (!(error instanceof MissingToolError)) throw error
    const remedy = 'Only videos need it, but those need both programs.'
    return { name, status: 'warn', detail: error.message, remedy }
  }
}

async function checkTfjs(): Promise<Finding> {
  const name = 'tfjs'
  try {
    const { backend, version } = await installedTfjs()
    return { name, status: 'ok', detail: `TensorFlow.js ${version} with the ${backend} backend, for --engine tfjs` }
  } catch (error) {
    const remedy = 'Only --engine tfjs needs it.'
    return { name, status: 'warn', detail: (error as Error).message, remedy }
  }
}

const gibibytes = (bytes: number): string => `${(bytes / 2 ** 30).toFixed(1)} GiB`
