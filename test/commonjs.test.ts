import { execFileSync } from 'node:child_process'
import { cpSync, existsSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import { expect, it } from 'vitest'
import { temporaryFolder } from './support/temporary.ts'

const root = resolve(import.meta.dirname, '..')

it('declares for require() what the frameworks of a CommonJS program take', async () => {
  if (!existsSync(join(root, 'dist', 'index.js'))) throw new Error('dist/ is missing. Run "npm run build".')
  const folder = temporaryFolder()
  const [copy, project] = [join(folder, 'package'), join(folder, 'project')]
  mkdirSync(copy)
  for (const name of ['dist', 'package.json']) cpSync(join(root, name), join(copy, name), { recursive: true })
  symlinkSync(join(root, 'node_modules'), join(copy, 'node_modules'))
  const { exports } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'))
  const { writeCommonJs } = await import(pathToFileURL(join(root, 'scripts', 'commonjs.mjs')).href)
  await writeCommonJs(copy, exports)

  mkdirSync(join(project, 'node_modules'), { recursive: true })
  symlinkSync(copy, join(project, 'node_modules', 'canopy-encoder'))
  for (const name of ['@langchain', '@llamaindex', '@types'])
    symlinkSync(join(root, 'node_modules', name), join(project, 'node_modules', name))
  const program = `
import type { BaseDocumentCompressor } from '@langchain/core/retrievers/document_compressors'
import type { BaseNodePostprocessor } from '@llamaindex/core/postprocessor'
import { CanopyCompressor, type Refinement } from 'canopy-encoder/langchain'
import { CanopyPostprocessor } from 'canopy-encoder/llamaindex'
import { type Encoder, InputError, openEncoder } from 'canopy-encoder'

async function main(): Promise<[BaseDocumentCompressor, BaseNodePostprocessor]> {
  const encoder: Encoder = await openEncoder('x')
  const compressor: CanopyCompressor = new CanopyCompressor({ encoder, onError: ({ error }) => error instanceof InputError })
  const refinement = {} as Refinement
  console.log(refinement.ranges[0]?.score.toFixed(2))
  return [compressor, await CanopyPostprocessor.fromFolder('x')]
}
void main()
`
  writeFileSync(join(project, 'program.cts'), program)
  const compiler = join(root, 'node_modules', 'typescript', 'bin', 'tsc')
  const flags = [
    '--noEmit',
    '--strict',
    '--skipLibCheck',
    '--target',
    'es2022',
    '--types',
    'node',
    '--module',
    'nodenext',
  ]
  const complaints = (): string => {
    try {
      return execFileSync(process.execPath, [compiler, ...flags, 'program.cts'], { cwd: project, encoding: 'utf8' })
    } catch (error) {
      return (error as { stdout: string }).stdout
    }
  }
  expect(complaints()).toBe('')
})
