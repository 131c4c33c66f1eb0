import { readFileSync } from 'node:fs'
import { dirname, join, resolve } from 'node:path'
import { describe, expect, it } from 'vitest'

const src = resolve(import.meta.dirname, '../../src')

/** The packages that an entry imports, itself or through its files, where that is not for types alone. */
function packagesOf(file: string, seen = new Set<string>(), found = new Set<string>()): Set<string> {
  if (seen.has(file)) return found
  seen.add(file)
  const text = readFileSync(file, 'utf8')
  for (const [, type, path = ''] of text.matchAll(/^(?:import|export)(\s+type)?\s[^'"]*?from '([^']+)'/gm)) {
    if (type !== undefined) continue
    if (path.startsWith('.')) packagesOf(join(dirname(file), path), seen, found)
    else found.add(path)
  }
  return found
}
const frameworks = (entry: string): string[] =>
  [...packagesOf(join(src, entry))].filter((name) => /^@(langchain|llamaindex)\//.test(name)).sort()

describe('the packages of RAG frameworks', () => {
  it('are needed by no other entry point', () => {
    for (const entry of ['index.ts', 'web.ts', 'cli/main.ts']) expect(frameworks(entry), entry).toEqual([])
  })

  it('are needed one by one', () => {
    expect(frameworks('integrations/langchain.ts')).toEqual([
      '@langchain/core/documents',
      '@langchain/core/retrievers/document_compressors',
    ])
    expect(frameworks('integrations/llamaindex.ts')).toEqual(['@llamaindex/core/schema', '@llamaindex/core/utils'])
  })
})
