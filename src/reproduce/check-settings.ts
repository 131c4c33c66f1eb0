import { InputError } from '../support/errors.ts'
import { resolveSettings, type TrainSettings } from '../train/index.ts'

/**
 * Settings of training, checked, defaults filled in.
 *
 * @param file the configuration, for the message
 * @throws InputError naming the setting and the file
 */
export async function checkedSettings(settings: Record<string, unknown>, file: string): Promise<TrainSettings> {
  try {
    return await resolveSettings(undefined, settings)
  } catch (error) {
    if (error instanceof InputError) throw new InputError(`"train": ${error.message}`, { file }, error)
    throw error
  }
}
