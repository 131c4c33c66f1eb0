import { mkdtempSync, rmSync } from 'node:fs'
import { readdir, readFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { onTestFinished } from 'vitest'

/** A new folder, removed when the test is over. */
export function temporaryFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), 'canopy-test-'))
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }))
  return folder
}

/** Every file of a folder and its content, to see that nothing changed. */
export async function snapshot(folder: string): Promise<Record<string, string>> {
  const names = await readdir(folder, { recursive: true, withFileTypes: true })
  const files = names.filter((entry) => entry.isFile()).map((entry) => join(entry.parentPath, entry.name))
  const contents = await Promise.all(files.map(async (file) => [file, await readFile(file, 'base64')] as const))
  return Object.fromEntries(contents.sort())
}

/** One JSON object a line. */
export const lines = (...values: unknown[]): string => values.map((value) => `${JSON.stringify(value)}\n`).join('')
