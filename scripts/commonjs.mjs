// Makes the package usable by require(): for every entry point that package.json gives to `require`, a CommonJS file that loads the
// ES module (Node >= 20.19 can), and its declarations, in which TypeScript sees the ES module's types from CommonJS. Where an entry's
// own declarations name another package's types, they are written out, so that they are that package's types as CommonJS sees them:
// a class of LangChain.js is another one there.
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { pathToFileURL } from 'node:url'

/**
 * @param {string} root folder of package.json, whose dist/ is built
 * @param {Record<string, { import?: { default: string }, require?: { default: string } }>} entries package.json's "exports"
 */
export async function writeCommonJs(root, entries) {
  for (const { import: esm, require: cjs } of Object.values(entries)) {
    if (esm === undefined || cjs === undefined) continue
    const file = join(root, cjs.default)
    const from = relative(dirname(file), join(root, esm.default)).replaceAll('\\', '/')
    const names = await import(pathToFileURL(join(root, esm.default)).href)
    const source = `'${from}'`
    const types = `import(${source}, { with: { 'resolution-mode': 'import' } })`
    const values = Object.entries(names).flatMap(([name, value]) => [
      `export declare const ${name}: typeof ${types}.${name}`,
      ...(isClass(value) ? [`export type ${name} = ${types}.${name}`] : []),
    ])
    mkdirSync(dirname(file), { recursive: true })
    writeFileSync(file, `module.exports = require(${source})\n`)
    const declared = ownDeclarations(root, esm.default, dirname(file))
    if (declared !== undefined) {
      writeFileSync(file.replace(/\.cjs$/, '.d.cts'), declared)
      continue
    }
    writeFileSync(
      file.replace(/\.cjs$/, '.d.cts'),
      [`export type * from ${source} with { 'resolution-mode': 'import' }`, ...values, ''].join('\n'),
    )
  }
}

const isClass = (value) => typeof value === 'function' && /^class\b/.test(Function.prototype.toString.call(value))

/** An entry's declarations as CommonJS's, in another folder; undefined where they name no other package. */
function ownDeclarations(root, entry, folder) {
  const own = readFileSync(join(root, entry.replace(/\.js$/, '.d.ts')), 'utf8')
  if (!/^(?:import|export) .* from '[^.]/m.test(own)) return undefined
  return own.replace(/^(import|export)( type)? (\{[^}]*\}) from '(\.[^']*)\.ts'/gm, (text, word, type, names, path) => {
    if (type === undefined && !/^\{ (type \w+,? )+\}$/.test(names))
      throw new Error(`The declarations of ${entry} take more than types from its files: ${text}`)
    const to = relative(folder, join(root, dirname(entry), path)).replaceAll('\\', '/')
    return `${word} type ${names.replaceAll(/\btype /g, '')} from '${to}.js' with { 'resolution-mode': 'import' }`
  })
}
