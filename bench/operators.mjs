// Every operator against the ONNX project's own tests: results against the stored ones, gradients against finite differences.
//
//   node bench/operators.mjs --tests <onnx/backend/test/data/node of the onnx package> [--json <file>] [--operator Softmax]
//
// Version 1.21 of the onnx package on PyPI has the tests inside, 1.23 no longer. Prints a table in Markdown; --json writes the
// numbers too.
import { writeFileSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { createServer } from 'vite'

const { values: flags } = parseArgs({
  options: { tests: { type: 'string' }, json: { type: 'string' }, operator: { type: 'string' } },
})
if (flags.tests === undefined) throw new Error('give --tests <onnx/backend/test/data/node>')

// The checks are TypeScript, shared with the tests; vite reads it.
const root = new URL('..', import.meta.url).pathname
const vite = await createServer({
  root,
  configFile: false,
  appType: 'custom',
  server: { middlewareMode: true, ws: false },
})
const module = await vite.ssrLoadModule('/test/operators/coverage.ts')
const rows = await module.operatorCoverage(flags.tests, { operator: flags.operator })
console.log(module.coverageTable(rows))
if (flags.json !== undefined) {
  const withVerdicts = rows.map((row) => ({ ...row, verdict: module.verdict(row) }))
  writeFileSync(flags.json, `${JSON.stringify(withVerdicts, null, 2)}\n`)
}
if (rows.some(({ forward, gradient }) => forward.failed.length + gradient.failed.length > 0)) process.exitCode = 1
await vite.close()
