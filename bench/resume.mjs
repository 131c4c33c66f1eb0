// Kills `canopy train` with SIGKILL again and again, resumes it each time with the same command, and compares the final adapter with
// that of a run that nobody disturbed. Moments are drawn from every phase: while it starts, in the middle of steps, while it
// validates and while it writes a checkpoint.
//
//   npm run build
//   node bench/resume.mjs [--kills 50] [--seed 1] [--encoder <folder>] --work <new folder> [-- <flags of canopy train>]
//
// Trains on datasets/sample; --encoder is a checkpoint or an ONNX folder, a small BERT with random weights by default. Flags behind
// `--` are given to `canopy train` too, and win; with `--dataset` and `--preferences` among them, the sample is left alone.
import { execFileSync, spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, readdirSync, readFileSync, statSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import seedrandom from 'seedrandom'

const root = resolve(import.meta.dirname, '..')
const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    kills: { type: 'string', default: '50' },
    seed: { type: 'string', default: '1' },
    work: { type: 'string' },
    encoder: { type: 'string' },
    cli: { type: 'string', default: join(root, 'dist/cli/main.js') },
  },
})
if (values.work === undefined || existsSync(values.work)) {
  console.error(
    'usage: node bench/resume.mjs --work <new folder> [--kills n] [--seed n] [--encoder <folder>] [-- <flags>]',
  )
  process.exit(2)
}
const work = resolve(values.work)
mkdirSync(work, { recursive: true })
const kills = Number(values.kills)
const random = seedrandom(values.seed)
const flags = await trainFlags()

async function trainFlags() {
  // Enough steps for all the kills: each of them comes two steps after the one before, on average.
  const schedule = `--steps ${40 + 3 * kills} --evaluate-every 8 --checkpoint-every 3 --learning-rate 0.002`
  const standard = `${schedule} --batch-size 4 --token-budget 512 --threads 1`.split(' ')
  if (!positionals.includes('--dataset')) {
    const dataset = join(root, 'datasets/sample')
    const preferences = join(work, 'preferences.jsonl')
    const make = ['preferences', '--dataset', dataset, '--split', 'train', '--output', preferences]
    execFileSync(process.execPath, [values.cli, ...make], { stdio: 'ignore' })
    standard.push('--dataset', dataset, '--preferences', preferences)
    if (values.encoder === undefined && !positionals.includes('--encoder')) {
      const { createRandomBert } = await import('../dist/encoder/index.js')
      const { trainingTexts } = await import('../dist/reproduce/index.js')
      const vocabularyFrom = await trainingTexts([{ folder: dataset, split: 'train' }])
      await createRandomBert(join(work, 'encoder'), { seed: 1, vocabularyFrom })
      standard.push('--encoder', join(work, 'encoder'))
    }
  }
  if (values.encoder !== undefined) standard.push('--encoder', resolve(values.encoder))
  return [...standard, ...positionals]
}

const start = (run) => {
  const args = [values.cli, 'train', ...flags, '--output', join(work, run), '--resume']
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'ignore', 'pipe'] })
  let stderr = ''
  child.stderr.on('data', (data) => {
    stderr += data
  })
  const state = { child, ended: false, began: performance.now() }
  state.closed = new Promise((done) =>
    child.on('close', (code, signal) => {
      state.ended = true
      done({ code, signal, stderr })
    }),
  )
  return state
}

const lines = (run) => {
  const file = join(work, run, 'metrics.jsonl')
  if (!existsSync(file)) return []
  return readFileSync(file, 'utf8')
    .split('\n')
    .slice(0, -1)
    .map((line) => JSON.parse(line))
}
const lastStep = (run) => lines(run).at(-1)?.step ?? -1
/** What is being written: folders and files under a temporary name. */
const unfinished = (run) =>
  [join(work, run), join(work, run, 'checkpoints')].flatMap((folder) =>
    existsSync(folder) ? readdirSync(folder).filter((name) => /^\..+\.tmp-\d+-[0-9a-f]+$/.test(name)) : [],
  )
/** Training writes this file anew right before its first step. */
const beginning = (run) => {
  const file = join(work, run, 'validation.jsonl')
  return existsSync(file) ? statSync(file).ino : undefined
}
const hashOf = (run) => {
  const folder = join(work, run, 'adapter')
  const hash = createHash('sha256')
  for (const name of readdirSync(folder).sort()) hash.update(name).update(readFileSync(join(folder, name)))
  return hash.digest('hex')
}
const mustEnd = async (run, process_) => {
  const { code, stderr } = await process_.closed
  if (code === 0) return
  console.error(`${run} ended with status ${code}:\n${stderr}`)
  process.exit(1)
}
/** Waits until `reached()`, or the process is gone. */
const until = async (state, reached) => {
  while (!state.ended && !reached()) await sleep(1)
}

// An undisturbed run, and how long its parts take.
const whole = start('whole')
await until(whole, () => beginning('whole') !== undefined)
const startup = performance.now() - whole.began
const arrivals = new Map()
await until(whole, () => {
  const step = lastStep('whole')
  if (!arrivals.has(step)) arrivals.set(step, performance.now())
  return false
})
await mustEnd('whole', whole)
const undisturbed = lines('whole')
const evaluated = new Set(undisturbed.filter(({ validation }) => validation !== undefined).map(({ step }) => step))
const totalSteps = undisturbed.at(-1).step
const stepMs = (1000 * undisturbed.reduce((sum, { seconds }) => sum + (seconds ?? 0), 0)) / totalSteps
const validations = [...evaluated].flatMap((step) =>
  step > 0 && arrivals.has(step) && arrivals.has(step - 1)
    ? [arrivals.get(step) - arrivals.get(step - 1) - stepMs]
    : [],
)
const validationMs = Math.max(1, validations.reduce((a, b) => a + b, 0) / Math.max(1, validations.length))
console.log(
  `undisturbed: ${totalSteps} steps in ${seconds(performance.now() - whole.began)}, of which ${seconds(startup)} to start, ` +
    `${stepMs.toFixed(0)} ms a step, ${validationMs.toFixed(0)} ms a validation; adapter ${hashOf('whole')}`,
)

const waits = {
  starting: (state) => Promise.race([sleep(random() * startup), state.closed]),
  async training(state, from) {
    const steps = Math.floor(random() * 6)
    await until(state, () => lastStep('killed') >= from + steps && beginning('killed') !== state.beginning)
    await Promise.race([sleep(random() * 2 * stepMs), state.closed])
  },
  async validating(state, from) {
    await until(state, () => lastStep('killed') >= from && evaluated.has(lastStep('killed') + 1))
    await Promise.race([sleep(stepMs + random() * validationMs), state.closed])
  },
  async writing(state) {
    await until(state, () => beginning('killed') !== state.beginning)
    await until(state, () => unfinished('killed').length > 0)
    await Promise.race([sleep(random() * 8), state.closed])
  },
}
const plan = ['training', 'writing', 'validating', 'training', 'writing', 'starting', 'validating', 'writing']
const phases = { starting: 0, training: 0, validating: 0, writing: 0 }
let done = 0
let late = 0
const began = performance.now()
for (let attempt = 0; done < kills && late < 3; attempt++) {
  const from = lastStep('killed')
  const before = beginning('killed')
  const state = start('killed')
  state.beginning = before
  await waits[plan[attempt % plan.length]](state, from)
  const [step, since] = [lastStep('killed'), performance.now()]
  state.child.kill('SIGKILL')
  const { code, signal, stderr } = await state.closed
  if (signal === null) {
    late++
    if (code === 0) continue
    console.error(`a resumed run ended with status ${code}:\n${stderr}`)
    process.exit(1)
  }
  done++
  const phase = phaseOf({ state, step, since })
  phases[phase]++
  console.log(`kill ${done}: ${phase}, ${step < 0 ? 'before the first line' : `after the line of step ${step}`}`)
}

/** What the process did when it was killed, as what it left behind shows; while it trains or validates, as the time since the last line does. */
function phaseOf({ state, step, since }) {
  // Before it begins, what is unfinished is the work of the process before.
  if (beginning('killed') === state.beginning) return 'starting'
  if (unfinished('killed').length > 0) return 'writing'
  if (step < 0) return 'validating'
  const line = statSync(join(work, 'killed', 'metrics.jsonl')).mtimeMs
  const elapsed = performance.timeOrigin + since - line
  return evaluated.has(step + 1) && elapsed > stepMs ? 'validating' : 'training'
}

await mustEnd('killed', start('killed'))
await mustEnd('killed', start('killed'))
const logged = lines('killed').map(({ step }) => step)
const once = logged.length === totalSteps + 1 && logged.every((step, i) => step === i)
const same = hashOf('killed') === hashOf('whole')
const enough = done === kills
console.log(
  `${done} kills in ${seconds(performance.now() - began)}: ${Object.entries(phases)
    .map(([phase, n]) => `${n} ${phase}`)
    .join(', ')}${enough ? '' : `; the run was FINISHED BEFORE ${kills}: give more --steps`}`,
)
console.log(`resumed: adapter ${hashOf('killed')}, ${same ? 'the same bytes' : 'DIFFERENT'}`)
console.log(`metrics.jsonl: ${logged.length} lines, ${once ? 'each step once' : 'steps are MISSING OR REPEATED'}`)
process.exitCode = same && once && enough ? 0 : 1

function seconds(ms) {
  return `${(ms / 1000).toFixed(1)} s`
}
