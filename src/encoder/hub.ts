import { stat } from 'node:fs/promises'
import type { Progress } from '../support/progress.ts'

export interface HubOptions {
  onProgress?: Progress
}

export async function locateEncoder(
  name: string,
  _options: HubOptions = {},
): Promise<{ folder: string; id?: string; revision?: string }> {
  await stat(name)
  return { folder: name }
}
