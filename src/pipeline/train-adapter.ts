import { type PairOptions, readEncoderPair } from '../encoder/index.ts'
import { given } from '../support/given.ts'
import {
  requireStart,
  resolveSettings,
  statedSettings,
  type TrainOptions,
  type TrainResult,
  type TrainSettingsInput,
  train,
} from '../train/index.ts'
import { ENCODER_OPTIONS } from './pair-options.ts'

export interface TrainAdapterOptions
  extends Pick<PairOptions, (typeof ENCODER_OPTIONS)[number]>,
    Omit<TrainOptions, 'encoder' | 'queryEncoder' | 'settings'> {
  /** Folder or Hugging Face id of the encoder that is adapted. */
  encoder: string
  /** Settings of the run; what is left out has its default. `adapter`: the one that training begins from. */
  settings?: TrainSettingsInput | undefined
}

/**
 * Trains an adapter as `canopy train` does; see `train`, whose options these are but for the encoders, which are named.
 *
 * @throws InputError for encoders that cannot be read and settings that are wrong, and as `train` does
 */
export async function trainAdapter(options: TrainAdapterOptions): Promise<TrainResult> {
  const { encoder, settings: wanted = {}, ...run } = options
  const settings = await resolveSettings(undefined, wanted)
  await requireStart(settings, options.output)
  const pair = await readEncoderPair(encoder, {
    ...given(options, ENCODER_OPTIONS),
    ...statedSettings(settings),
    ...(settings.adapter !== null && { adapter: settings.adapter }),
  })
  return train({ ...run, encoder: pair.encoder, queryEncoder: pair.query, settings })
}
