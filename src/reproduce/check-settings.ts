import { dirname } from 'node:path'
import { InputError } from '../support/errors.ts'
import { resolveSettings, type TrainSettings } from '../train/index.ts'

/**
 * Settings of training, checked, defaults filled in.
 *
 * @param file the configuration, for the message and for paths relative to it
 * @throws InputError naming the setting and the file
 */
export async function checkedSettings(settings: Record<string, unknown>, file: string): Promise<TrainSettings> {
  try {
    return await resolveSettings(undefined, settings, dirname(file))
  } catch (error) {
    if (error instanceof InputError) throw new InputError(`"train": ${error.message}`, { file }, error)
    throw error
  }
}
