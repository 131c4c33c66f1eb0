import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { InferenceSession } from 'onnxruntime-node'
import { InputError } from '../support/errors.ts'
import type { Device } from './providers.ts'

/** What the first run of a graph showed: how many nodes ran on the device, and which operators the CPU had to take over. */
export interface Placement {
  device: Device
  /** Nodes that ran on the device. */
  onDevice: number
  /** Operator -> nodes of it that ran on the CPU, because the device has no kernel for them. */
  onCpu: Record<string, number>
}

/** A profile that ONNX Runtime writes of a session's runs until it is read, in a folder that goes then. */
export interface Profile {
  settings: Pick<InferenceSession.SessionOptions, 'enableProfiling' | 'profileFilePrefix'>
  /** Ends the profile of a session that was made with `settings`, and says where nodes ran. */
  placement(session: InferenceSession, device: Device): Promise<Placement>
  /** Removes the folder; nothing happens where it is gone. */
  discard(): Promise<void>
}

/**
 * Where nodes run can be seen in a profile of a run, and nowhere else.
 *
 * @throws InputError where there is no folder for temporary files, and from `placement` where it had no room for the profile
 */
export async function beginProfile(): Promise<Profile> {
  const folder = await mkdtemp(join(tmpdir(), 'canopy-profile-')).catch(noProfile)
  const discard = () => rm(folder, { recursive: true, force: true })
  return {
    settings: { enableProfiling: true, profileFilePrefix: join(folder, 'profile') },
    discard,
    async placement(session, device) {
      session.endProfiling()
      try {
        const [file = 'profile'] = await readdir(folder)
        return placementOf(await readFile(join(folder, file), 'utf8'), device)
      } catch (error) {
        return noProfile(error)
      } finally {
        await discard()
      }
    },
  }
}

function noProfile(error: unknown): never {
  throw new InputError(
    `ONNX Runtime cannot write down where nodes run (${(error as Error).message}): temporary files need a folder with room, which TMPDIR names.`,
    {},
    error,
  )
}

/** Reads ONNX Runtime's profile of a run. */
export function placementOf(profile: string, device: Device): Placement {
  const events = JSON.parse(profile) as { cat: string; args?: { provider?: string; op_name?: string } }[]
  const placement: Placement = { device, onDevice: 0, onCpu: {} }
  for (const { cat, args } of events) {
    const op = args?.op_name
    // Copies between the device's memory and ours are no nodes of the graph.
    if (cat !== 'Node' || args?.provider === undefined || op === undefined || op.startsWith('Memcpy')) continue
    if (args.provider === 'CPUExecutionProvider') placement.onCpu[op] = (placement.onCpu[op] ?? 0) + 1
    else placement.onDevice++
  }
  return placement
}

/** A placement in words; undefined where everything ran on the device. */
export function placementText({ device, onDevice, onCpu }: Placement): string | undefined {
  const ops = Object.entries(onCpu).sort((a, b) => b[1] - a[1])
  if (ops.length === 0) return undefined
  const named = ops.map(([op, n]) => `${op} (${n})`).join(', ')
  return `nodes of the graph on ${device}: ${onDevice}; on the CPU, since ${device} has no kernel for them: ${named}`
}
