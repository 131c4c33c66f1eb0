import { existsSync } from 'node:fs'
import { join } from 'node:path'

/**
 * The folder of a downloaded all-MiniLM-L6-v2 checkpoint that CANOPY_MINILM names; undefined where it is not there, and tests
 * that need it are skipped.
 */
export function minilmDir(): string | undefined {
  const folder = process.env.CANOPY_MINILM
  return folder !== undefined && existsSync(join(folder, 'config.json')) ? folder : undefined
}
