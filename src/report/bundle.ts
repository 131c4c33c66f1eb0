import { readFile } from 'node:fs/promises'
import { fileURLToPath } from 'node:url'
import { InputError } from '../support/errors.ts'

/** The page's script and style sheet. */
export interface Bundle {
  script: string
  style: string
}

/**
 * The bundle of the viewer that the build makes (scripts/viewer.mjs). It lies in `dist`, for this file there as for its source.
 *
 * @throws InputError when it was not built
 */
export async function readBundle(): Promise<Bundle> {
  const read = async (name: string): Promise<string> => {
    const file = fileURLToPath(new URL(`../../dist/report/${name}`, import.meta.url))
    try {
      return await readFile(file, 'utf8')
    } catch (error) {
      throw new InputError(
        'The viewer of the report is missing from this installation; "npm run build" makes it.',
        { file },
        error,
      )
    }
  }
  return { script: await read('viewer.js'), style: await read('viewer.css') }
}
