import { createHash } from 'node:crypto'
import { readFile, realpath, stat } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { dirname, relative, resolve } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { InputError } from '../../support/errors.ts'
import { fileError, sha256File } from '../../support/files.ts'

// What names no file, or stands in a comment, costs nothing but a look.
const LITERALS = /(["'`])(\.{1,2}(?:\/[^"'`\n]*)?|\/[^"'`\n]+|file:[^"'`\n]+)\1/g
const COMMENTS = /\/\*[\s\S]*?\*\/|(?<=^|[\s;{}(),])\/\/[^\n]*/g
const COMPUTED = /(?<![.\w$])(?:import|require)\s*\((?!\s*(["'`])(?:(?!\$\{)[^"'`\n])*\1\s*[),])/

/**
 * SHA-256 of a loss module together with every local file that it names in a literal (what it imports or requires, and what it
 * may read), over any number of steps, without running anything. Packages and Node's own modules are not followed.
 *
 * @returns `files`: the SHA-256 of each, by path relative to the module
 * @throws InputError for a module that is not there, or imports something whose name is only known when it runs
 */
export async function hashLossModule(path: string): Promise<{ sha256: string; files: Record<string, string> }> {
  const start = await realpath(path).catch((error: unknown) => {
    throw fileError(error, 'cannot read the loss module', resolve(path))
  })
  const hashes = new Map<string, string>()
  const pending = [start]
  for (let file = pending.pop(); file !== undefined; file = pending.pop()) {
    if (hashes.has(file)) continue
    if (!/\.[cm]?js$/.test(file)) {
      hashes.set(file, await sha256File(file))
      continue
    }
    const bytes = await readFile(file).catch((error: unknown) => {
      throw fileError(error, 'cannot read the loss module', file)
    })
    hashes.set(file, createHash('sha256').update(bytes).digest('hex'))
    const source = bytes.toString()
    requireLiteralImports(source, file)
    for (const [, , specifier] of source.matchAll(LITERALS)) pending.push(...(await filesNamed(specifier!, file)))
  }
  const files = Object.fromEntries(
    [...hashes].map(([file, hash]): [string, string] => [relative(dirname(start), file), hash]).sort(),
  )
  return { sha256: createHash('sha256').update(JSON.stringify(files)).digest('hex'), files }
}

function requireLiteralImports(source: string, file: string): void {
  const code = source.replaceAll(COMMENTS, (comment) => comment.replaceAll(/[^\n]/g, ' '))
  const computed = COMPUTED.exec(code)
  if (computed === null) return
  throw new InputError(
    'A loss module imports by literal names only (import … from "./file.mjs"), so that all of it can be hashed.',
    { file, line: code.slice(0, computed.index).split('\n').length },
  )
}

/** What a literal in a file names: as import takes it (a URL), and as require does (extensions and index.js left out). */
async function filesNamed(specifier: string, file: string): Promise<string[]> {
  const found: string[] = []
  for (const resolved of [
    () => fileURLToPath(new URL(specifier, pathToFileURL(file))),
    () => createRequire(file).resolve(specifier),
  ]) {
    try {
      const real = await realpath(resolved())
      if ((await stat(real)).isFile()) found.push(real)
    } catch {
      // No file: an import that is really there fails on its own.
    }
  }
  return found
}
