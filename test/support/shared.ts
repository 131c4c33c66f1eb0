import { existsSync } from 'node:fs'
import { resolve } from 'node:path'

/**
 * The folder of third-party test data that lies beside the repository, or where CANOPY_SHARED says; undefined where it is
 * not there, and tests that need it are skipped.
 */
export function sharedDir(): string | undefined {
  const folder = process.env.CANOPY_SHARED ?? resolve(import.meta.dirname, '../../../shared')
  return existsSync(resolve(folder, 'data')) ? folder : undefined
}
