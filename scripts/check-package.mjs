// Installs the packed package into an empty project, as a user's `npm install canopy-encoder` would, and runs its quickstart.
// Needs `npm run build` and the npm registry.
import { execFileSync } from 'node:child_process'
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'

const QUICKSTART_FILES = [
  ...['config.json', 'tokenizer.json', 'model.safetensors', 'README.md'].map((name) => `models/canopy-mini/${name}`),
  ...['dataset.json', 'items.jsonl', 'questions.jsonl'].map((name) => `datasets/sample/${name}`),
  ...['configs/quickstart.yaml', 'examples/refine.mjs', 'dist/report/viewer.js'],
]

const root = resolve(import.meta.dirname, '..')
const project = mkdtempSync(join(tmpdir(), 'canopy-package-'))
const run = (command, args, cwd) =>
  execFileSync(command, args, {
    cwd,
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'inherit'],
    env: { ...process.env, ONNXRUNTIME_NODE_INSTALL: 'skip' },
  })

try {
  const [{ filename, size, files }] = JSON.parse(run('npm', ['pack', '--json', '--pack-destination', project], root))
  console.log(`${filename}: ${files.length} files, ${Math.round(size / 1024)} kB`)
  const packed = new Set(files.map(({ path }) => path))
  const missing = QUICKSTART_FILES.filter((path) => !packed.has(path))
  if (missing.length > 0) throw new Error(`The package lacks what the quickstart needs: ${missing.join(', ')}.`)
  writeFileSync(join(project, 'package.json'), '{"private": true, "type": "module"}')
  run('npm', ['install', '--no-audit', '--no-fund', `./${filename}`], project)
  const output = run('npx', ['canopy', 'quickstart'], project)
  console.log(output.split('\n').slice(-24).join('\n'))
  if (!existsSync(join(project, 'runs/quickstart/export/onnx/model.onnx')))
    throw new Error('The quickstart left no export.')
  console.log(run(process.execPath, ['node_modules/canopy-encoder/examples/refine.mjs'], project))

  const program = `
    import { buildTree, openEncoder, refine } from 'canopy-encoder'
    const encoder = await openEncoder('runs/quickstart/export')
    const [item] = await encoder.refine('Who keeps the light?', [{ title: 'Light', text: 'The sea is deep. Mara keeps the light. Gulls cry.' }])
    await encoder.close()
    if (item.leaves !== 3 || item.kept.length === 0) throw new Error('nothing was kept')
    const kept = refine(buildTree(3), ({ from, to }) => (from === 1 && to === 2 ? 2 : to - from === 3 ? 0 : 1))
    console.log(JSON.stringify({ kept: item.kept, pure: kept.map(({ from, to }) => [from, to]) }))`
  writeFileSync(join(project, 'program.mjs'), program)
  console.log(run(process.execPath, ['program.mjs'], project))
} finally {
  rmSync(project, { recursive: true, force: true })
}
