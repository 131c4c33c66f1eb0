import { fileURLToPath } from 'node:url'
import { exists } from './files.ts'

/**
 * Where a folder of this package lies (`models/canopy-mini`, `datasets/sample`), as its examples name them; undefined for any other
 * name. Nobody gets them instead of what was named: whoever works in a project of one's own is told of them.
 */
export async function packagedFolder(name: string): Promise<string | undefined> {
  const [, path] = /^(?:\.[\\/])?((?:models|datasets)[\\/][\w-]+)[\\/]?$/.exec(name) ?? []
  if (path === undefined) return undefined
  const folder = fileURLToPath(new URL(`../../${path.replace('\\', '/')}`, import.meta.url))
  return (await exists(folder)) ? folder : undefined
}

/** A sentence for a name that {@link packagedFolder} knows. */
export const comesWithPackage = (name: string, folder: string): string =>
  `There is no folder ${name} here; it comes with the package and lies in ${folder}. Give that path.`
