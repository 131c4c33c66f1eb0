// Installs the packed package into an empty project, as a user's `npm install canopy-encoder` would: its form (publint, Are the types
// wrong?), its quickstart, programs that import and require it, in this Node and in later ones where npm has a binary of theirs for the
// machine, and TypeScript's view of it. Needs `npm run build` and the npm registry.
import { execFileSync } from 'node:child_process'
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'

const QUICKSTART_FILES = [
  ...['config.json', 'tokenizer.json', 'model.safetensors', 'README.md'].map((name) => `models/canopy-mini/${name}`),
  ...['dataset.json', 'items.jsonl', 'questions.jsonl'].map((name) => `datasets/sample/${name}`),
  ...['configs/quickstart.yaml', 'examples/refine.mjs', 'dist/report/viewer.js'],
]
/** Versions of Node beside the one that runs this, from npm's packages of its binaries. */
const NODES = ['22', '24']
const ENTRIES = ['canopy-encoder', 'canopy-encoder/train', 'canopy-encoder/web', 'canopy-encoder/postgres']

const root = resolve(import.meta.dirname, '..')
const project = mkdtempSync(join(tmpdir(), 'canopy-package-'))
const run = (command, args, cwd = project) =>
  execFileSync(command, args, {
    cwd,
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'inherit'],
    env: { ...process.env, ONNXRUNTIME_NODE_INSTALL: 'skip' },
  })

/** A program among this repository's packages of development. */
const tool = (name, ...args) => run(join(root, 'node_modules', '.bin', name), args)

try {
  const [{ filename, size, files }] = JSON.parse(run('npm', ['pack', '--json', '--pack-destination', project], root))
  console.log(`${filename}: ${files.length} files, ${Math.round(size / 1024)} kB`)
  const packed = new Set(files.map(({ path }) => path))
  const missing = QUICKSTART_FILES.filter((path) => !packed.has(path))
  if (missing.length > 0) throw new Error(`The package lacks what the quickstart needs: ${missing.join(', ')}.`)
  tool('publint', '--strict', join(project, filename))
  tool('attw', '--profile', 'node16', join(project, filename))
  console.log('publint and arethetypeswrong find nothing')

  writeFileSync(join(project, 'package.json'), '{"private": true, "type": "module"}')
  run('npm', ['install', '--no-audit', '--no-fund', `./${filename}`])
  const output = run('npx', ['canopy', 'quickstart'])
  console.log(output.split('\n').slice(-24).join('\n'))
  if (!existsSync(join(project, 'runs/quickstart/export/onnx/model.onnx')))
    throw new Error('The quickstart left no export.')
  console.log(run(process.execPath, ['node_modules/canopy-encoder/examples/refine.mjs']))

  const program = `
async function main() {
  const encoder = await openEncoder('runs/quickstart/export')
  const [item] = await encoder.refine('Who keeps the light?', [{ title: 'Light', text: 'The sea is deep. Mara keeps the light. Gulls cry.' }])
  await encoder.close()
  if (item?.leaves !== 3 || item.kept.length === 0) throw new Error('nothing was kept')
  const kept = refine(buildTree(3), ({ from, to }) => (from === 1 && to === 2 ? 2 : to - from === 3 ? 0 : 1))
  console.log(JSON.stringify({ kept: item.kept, pure: kept.map(({ from, to }) => [from, to]) }))
}
main()
`
  const imports = `import { buildTree, openEncoder, refine } from 'canopy-encoder'\n${ENTRIES.map((name) => `import '${name}'`).join('\n')}`
  const requires = `const { buildTree, openEncoder, refine } = require('canopy-encoder')\n${ENTRIES.map((name) => `require('${name}')`).join('\n')}`
  writeFileSync(join(project, 'program.mjs'), imports + program)
  writeFileSync(join(project, 'program.cjs'), requires + program)
  const said = new Set()
  for (const node of [process.execPath, ...laterNodes()])
    for (const file of ['program.mjs', 'program.cjs']) {
      said.add(run(node, [file]))
      console.log(`${run(node, ['--version']).trim()} ${file}: as it should`)
    }
  if (said.size !== 1) throw new Error(`The programs do not agree: ${[...said].join('')}`)
  console.log([...said].join(''))

  // the same program as TypeScript sees it, as an ES module and as CommonJS
  run('npm', ['install', '--no-audit', '--no-fund', '--no-save', '@types/node@20'])
  for (const name of ['typed.mts', 'typed.cts']) writeFileSync(join(project, name), imports + program)
  for (const module of ['nodenext', 'node16'])
    tool(
      ...['tsc', '--noEmit', '--strict', '--skipLibCheck', '--target', 'es2022', '--types', 'node'],
      ...['--module', module, '--moduleResolution', module, 'typed.mts', 'typed.cts'],
    )
  console.log('TypeScript finds the types of both')
} finally {
  rmSync(project, { recursive: true, force: true })
}

/** Binaries of {@link NODES}; none for a machine that npm has none for. */
function laterNodes() {
  const name = `node-${process.platform}-${process.arch}`
  try {
    return NODES.map((version) => {
      const folder = join(project, `node-${version}`)
      run('npm', ['install', '--no-audit', '--no-fund', '--ignore-scripts', '--prefix', folder, `${name}@${version}`])
      return join(folder, 'node_modules', name, 'bin', 'node')
    })
  } catch {
    console.log(`npm has no ${name}: this Node alone is tried`)
    return []
  }
}
