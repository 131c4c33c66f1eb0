import { execFileSync } from 'node:child_process'
import { existsSync, writeFileSync } from 'node:fs'
import { join, relative, resolve } from 'node:path'
import { expect, it } from 'vitest'
import { temporaryFolder } from './support/temporary.ts'

const root = resolve(import.meta.dirname, '..')
/** Another build than dist/ where CANOPY_DIST says so. */
const dist = resolve(root, process.env.CANOPY_DIST ?? 'dist')

// TypeScript 7 looks at no @types by itself, and checks the declarations of packages; `dom` has AbortSignal, as @types/node has
it('declares its entry points without the types of Node', () => {
  if (!existsSync(join(dist, 'index.js'))) throw new Error('dist/ is missing. Run "npm run build".')
  const folder = temporaryFolder()
  const entries = ['index', 'training', 'web', 'postgres']
  const imports = entries.map((name) => {
    const path = relative(folder, join(dist, `${name}.js`)).replaceAll('\\', '/')
    return `export * as ${name} from '${path}'\n`
  })
  writeFileSync(join(folder, 'program.ts'), imports.join(''))
  const compilerOptions = { strict: true, noEmit: true, skipLibCheck: false, types: [], lib: ['es2022', 'dom'] }
  const how = { target: 'es2022', module: 'nodenext' }
  const config = { compilerOptions: { ...compilerOptions, ...how }, files: ['program.ts'] }
  writeFileSync(join(folder, 'tsconfig.json'), JSON.stringify(config))
  const compiler = join(root, 'node_modules', 'typescript', 'bin', 'tsc')
  let said = ''
  try {
    execFileSync(process.execPath, [compiler, '-p', folder], { encoding: 'utf8' })
  } catch (error) {
    said = (error as { stdout: string }).stdout
  }
  expect(said).toBe('')
})
