// Kills `canopy train` with SIGKILL at random moments, resumes it each time, and compares the final adapter with that of a run
// that nobody disturbed.
//
//   node bench/resume.mjs [--kills 10] [--seed 1] --work <new folder> -- --encoder … --dataset … --preferences … [settings]
//
// Everything behind `--` goes to `canopy train`; --output and --resume are added here. Needs `npm run build`.
import { spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, readdirSync, readFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import seedrandom from 'seedrandom'

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    kills: { type: 'string', default: '10' },
    seed: { type: 'string', default: '1' },
    work: { type: 'string' },
    cli: { type: 'string', default: resolve(import.meta.dirname, '../dist/cli/main.js') },
  },
})
if (values.work === undefined || positionals.length === 0) {
  console.error('usage: node bench/resume.mjs [--kills n] [--seed n] --work <new folder> -- <flags of canopy train>')
  process.exit(2)
}
mkdirSync(values.work, { recursive: true })
const random = seedrandom(values.seed)

const start = (run) => {
  const args = [values.cli, 'train', ...positionals, '--output', join(values.work, run), '--resume']
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'ignore', 'pipe'] })
  let stderr = ''
  child.stderr.on('data', (data) => {
    stderr += data
  })
  const closed = new Promise((done) => child.on('close', (code, signal) => done({ code, signal, stderr })))
  return { child, closed }
}
const steps = (run) => {
  const file = join(values.work, run, 'metrics.jsonl')
  if (!existsSync(file)) return []
  const lines = readFileSync(file, 'utf8').split('\n').slice(0, -1)
  return lines.map((line) => JSON.parse(line).step)
}
const hashOf = (run) => {
  const folder = join(values.work, run, 'adapter')
  const hash = createHash('sha256')
  for (const name of readdirSync(folder).sort()) hash.update(name).update(readFileSync(join(folder, name)))
  return hash.digest('hex')
}
const mustEnd = async (run) => {
  const { code, stderr } = await start(run).closed
  if (code === 0) return
  console.error(stderr)
  process.exit(1)
}

const began = performance.now()
const whole = mustEnd('whole')
while (steps('whole').length < 2) await Promise.race([sleep(20), whole])
const startup = performance.now() - began
await whole
const duration = performance.now() - began
console.log(
  `undisturbed: ${steps('whole').at(-1)} steps in ${(duration / 1000).toFixed(1)} s, adapter ${hashOf('whole')}`,
)

for (let kill = 1; kill <= Number(values.kills); kill++) {
  const { child, closed } = start('killed')
  // From before its first step to some way into what is left; a start and a share of the training each, on average.
  await Promise.race([sleep(random() * (2 * startup + (duration - startup) / Number(values.kills))), closed])
  child.kill('SIGKILL')
  const { signal } = await closed
  console.log(`kill ${kill}: ${signal === null ? 'came too late, ' : ''}at step ${steps('killed').at(-1) ?? 'none'}`)
}
await mustEnd('killed')
const logged = steps('killed')
const once = logged.every((step, i) => step === i)
const same = hashOf('killed') === hashOf('whole')
console.log(`resumed: adapter ${hashOf('killed')}, ${same ? 'the same bytes' : 'DIFFERENT'}`)
console.log(`metrics.jsonl: ${logged.length} lines, ${once ? 'each step once' : 'steps are MISSING OR REPEATED'}`)
process.exitCode = same && once ? 0 : 1
