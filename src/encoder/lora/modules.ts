import { openSafetensors } from '../../onnx/index.ts'
import { defaultTargets, linearModules } from '../architecture.ts'
import type { EncoderProfile } from '../folder/profile.ts'
import { type EncoderModule, readImported, type Storage } from '../imported/index.ts'
import { selectTargets } from './lora.ts'
import { innerPath } from './module-path.ts'

const STORAGES: Record<string, Storage> = { F16: 'fp16', BF16: 'bf16' }

/**
 * The linear maps of an encoder that LoRA can adapt, of a checkpoint as of an ONNX folder.
 *
 * @throws InputError for an architecture or a graph that is not supported
 */
export async function encoderModules(profile: EncoderProfile): Promise<EncoderModule[]> {
  if (profile.kind === 'onnx')
    return (await readImported(profile)).modules.map(({ module, inputs, outputs, standard, storage, uses }) => ({
      ...{ module, inputs, outputs, standard, storage },
      ...(uses.length > 1 && { uses: uses.length }),
    }))
  const modules = linearModules(profile)
  const standard = new Set(selectTargets(modules, defaultTargets(profile)))
  const { tensors } = await openSafetensors(profile.modelFolder)
  const dtypes = new Map([...tensors].map(([name, { dtype }]) => [innerPath(name), dtype]))
  return modules.map((module) => ({
    ...module,
    standard: standard.has(module),
    storage: STORAGES[dtypes.get(`${innerPath(module.module)}.weight`) ?? ''] ?? 'fp32',
  }))
}

/**
 * The modules that the patterns name, as {@link selectTargets} does; without patterns those that are adapted by default.
 *
 * @throws InputError for a pattern that names no module
 */
export function chosenModules(modules: readonly EncoderModule[], patterns: readonly string[] | null): EncoderModule[] {
  return patterns === null ? modules.filter(({ standard }) => standard) : selectTargets(modules, patterns)
}
