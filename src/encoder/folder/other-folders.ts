import { join } from 'node:path'
import { InputError } from '../../support/errors.ts'
import { exists } from '../../support/files.ts'
import { readJsonObject } from './json-files.ts'

/**
 * Refuses the folders of this toolkit that are easily given for an encoder's, each with what to give instead.
 *
 * @throws InputError for a training run, an adapter, and a folder with an export in it
 */
export async function refuseOtherFolders(root: string): Promise<void> {
  const has = (...path: string[]): Promise<boolean> => exists(join(root, ...path))
  if (await has('modules.json')) return
  if (await has('config.json')) {
    const { schema } = await readJsonObject(join(root, 'config.json'), '')
    if (typeof schema !== 'string' || !schema.startsWith('canopy-run/')) return
    throw new InputError(
      `${root} is a training run: export it (canopy export), or give its encoder and its adapter, ${join(root, 'adapter')} (--adapter, in a program "adapter").`,
    )
  }
  if (await has('adapter_config.json'))
    throw new InputError(
      `${root} is an adapter, which changes an encoder: give the encoder that it was trained over, and this folder as its adapter (--adapter, in a program "adapter"), or what canopy export made of both.`,
    )
  if ((await has('export', 'config.json')) || (await has('export', 'modules.json')))
    throw new InputError(`${root} is no encoder, but has one in it: did you mean ${join(root, 'export')}?`)
}
