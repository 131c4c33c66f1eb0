import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { DEVICES, type Device, DeviceError, loadRuntime } from '../onnx/index.ts'
import type { Finding } from './health.ts'
import { largestDifference, placed, runProbe } from './probe.ts'

const RUNTIME = 'onnxruntime-node'

/** What is checked by running native code. */
export const NATIVE_CHECKS = [RUNTIME, ...DEVICES.map((device) => `device ${device}`)]

/** Longest that a check may take, in milliseconds: a software adapter compiles its shaders first. */
const PATIENCE = 120_000

const run = promisify(execFile)

/** Does one of `NATIVE_CHECKS` in this process, which a damaged library or driver may end or hold up for good. */
export async function nativeCheck(name: string): Promise<Finding> {
  const device = DEVICES.find((known) => name === `device ${known}`)
  return device === undefined ? checkRuntime() : checkDevice(device)
}

/**
 * Does one of `NATIVE_CHECKS` in a process of its own.
 *
 * @param command program and arguments that print `nativeCheck`'s finding as JSON when the check's name is added to them
 */
export async function checkApart(name: string, command: readonly string[], patience = PATIENCE): Promise<Finding> {
  const [program = '', ...args] = command
  try {
    const { stdout } = await run(program, [...args, name], { timeout: patience, killSignal: 'SIGKILL' })
    return JSON.parse(stdout) as Finding
  } catch (error) {
    const { killed, signal, code, message } = error as Error & { killed?: boolean; signal?: string; code?: number }
    const end = killed
      ? `gave no answer within ${patience / 1000} s`
      : `ended in the middle (${signal ?? (code === undefined ? message : `status ${code}`)})`
    return {
      name,
      status: 'fault',
      detail: `a process that tried it ${end}: a native library is damaged, or does not fit this machine.`,
      remedy:
        name === RUNTIME || name === 'device cpu'
          ? 'Remove node_modules/onnxruntime-node and install the dependencies again ("npm ci").'
          : "Install the card's driver and what it needs again, or use another device with --device.",
    }
  }
}

async function checkRuntime(): Promise<Finding> {
  try {
    const runtime = await loadRuntime()
    const providers = runtime.listSupportedBackends().map(({ name: provider }) => provider)
    const detail = `${runtime.env.versions.node}, built for ${providers.join(', ')}`
    return { name: RUNTIME, status: 'ok', detail }
  } catch (error) {
    return { name: RUNTIME, status: 'fault', ...faultOf(error) }
  }
}

/** Runs a small graph on the device and compares it with the CPU. */
async function checkDevice(device: Device): Promise<Finding> {
  const name = `device ${device}`
  const card = device === 'cuda' ? await nvidiaCard() : undefined
  try {
    const expected = await runProbe('cpu')
    const { outputs, placement, seconds } = await runProbe(device)
    const difference = largestDifference(outputs, expected.outputs)
    const detail = [
      `a small graph ran in ${(seconds * 1000).toFixed(1)} ms`,
      ...(device === 'cpu'
        ? []
        : [`differs from the CPU by ${difference.toExponential(1)} at most`, placed(placement)]),
      ...(card === undefined ? [] : [card]),
    ].join('; ')
    if (difference < 1e-3) return { name, status: 'ok', detail }
    return {
      name,
      status: 'fault',
      detail,
      remedy: 'Its results are wrong: update the driver of the card, and do not train on it until this line is ok.',
    }
  } catch (error) {
    const { detail, ...rest } = faultOf(error)
    const driver = device === 'cuda' ? ` ${card ?? 'nvidia-smi finds no NVIDIA driver.'}` : ''
    return { name, status: 'fault', detail: `${detail}${driver}`, ...rest }
  }
}

/** A finding's words from an error; one that is none of a device says itself what to do. */
function faultOf(error: unknown): Pick<Finding, 'detail' | 'remedy'> {
  if (error instanceof DeviceError) return { detail: error.fault, remedy: error.remedy }
  return { detail: (error as Error).message, remedy: 'Mend that, or use another device with --device.' }
}

/** The NVIDIA cards and their driver as nvidia-smi tells them; undefined without one. */
async function nvidiaCard(): Promise<string | undefined> {
  const asked = ['--query-gpu=name,driver_version,memory.total', '--format=csv,noheader']
  const found = await run('nvidia-smi', asked).catch(() => undefined)
  const cards = found?.stdout.trim()
  return cards === undefined || cards === '' ? undefined : `NVIDIA: ${cards.split('\n').join(' | ')}`
}
