import { join, resolve } from 'node:path'
import { type Encoder, openPair, readEncoderPair, refineItems } from '../../src/encoder/index.ts'

/** canopy-mini, frozen, in this thread: what `openEncoder` runs in its own. */
export async function openMini(): Promise<Pick<Encoder, 'refine' | 'close'>> {
  const pair = await readEncoderPair(join(resolve(import.meta.dirname, '../..'), 'models', 'canopy-mini'))
  const encoders = await openPair(pair, { threads: 1 })
  return {
    refine: (question, items, { signal } = {}) =>
      refineItems(encoders, pair.settings, question, items, signal === undefined ? {} : { signal }),
    close: () => encoders.close(),
  }
}

export const FERRY =
  '  The ferry to Sorn leaves at six.\nIt carries the post, two cows at most, and whoever has a ticket. The captain, Ida Brandt, ' +
  'bought it with the money from her first novel.\n\nThe engine was rebuilt twice. In winter a sledge crosses the ice instead.\n'
export const TOWER =
  'The clock tower of Brennick was finished in 1704. For a century the clock was wound by hand every morning. Since 1911 an ' +
  'electric motor has done the work 🕰️. Lightning struck the spire in 1836. Visitors may climb the 212 steps on Sundays.'
export const QUESTION = 'How did the captain pay for the boat?'
