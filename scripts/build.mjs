// Compiles src/ to dist/, bundles the viewer of the report, adds what require() takes and makes the command line executable.
import { execFileSync } from 'node:child_process'
import { chmodSync, existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { writeCommonJs } from './commonjs.mjs'
import { bundleViewer } from './viewer.mjs'

const root = join(dirname(fileURLToPath(import.meta.url)), '..')
const tsc = join(dirname(createRequire(import.meta.url).resolve('typescript/package.json')), 'bin', 'tsc')

rmSync(join(root, 'dist'), { recursive: true, force: true })
execFileSync(process.execPath, [tsc, '-p', join(root, 'tsconfig.build.json')], { stdio: 'inherit' })
const main = join(root, 'dist', 'cli', 'main.js')
if (existsSync(main)) chmodSync(main, 0o755)

const { script, style } = await bundleViewer()
mkdirSync(join(root, 'dist', 'report'), { recursive: true })
writeFileSync(join(root, 'dist', 'report', 'viewer.js'), script)
writeFileSync(join(root, 'dist', 'report', 'viewer.css'), style)

await writeCommonJs(root, JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')).exports)
