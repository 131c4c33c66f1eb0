// This project's side of `bench/training.mjs`: `canopy train` as a library, in a process of its own.
//
//   node bench/training/ours.mjs request.json
//
// The request: encoder, queryEncoder, datasets, preferences, settings, padded (tokens of each step), until. The answer is that of
// bench/peers/training.py: steps with the seconds since the first one began, memory, and the adapter's folder. Validation,
// where the settings ask for it, does not count into the seconds.
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { readEncoder } from '../../dist/encoder/index.js'
import { train, versions } from '../../dist/train/index.js'

const request = JSON.parse(readFileSync(process.argv[2], 'utf8'))
const { settings, padded, until, output } = request
const stop = new AbortController()
const steps = []
const validations = []
let seconds = 0
const options = {
  encoder: await readEncoder(request.encoder),
  queryEncoder: await readEncoder(request.queryEncoder),
  datasets: request.datasets,
  preferences: request.preferences,
  output: join(output, 'run'),
  settings,
  signal: stop.signal,
  onStep(line) {
    const { step, pairs, tokens, loss, validation } = line
    if (step > 0) {
      seconds += line.seconds
      steps.push({ step, pairs, tokens, padded: padded?.[step - 1], loss, seconds })
    }
    if (validation === undefined) return
    validations.push({ step, ...validation })
    if (until !== undefined && step > 0 && validation.decision_accuracy >= until) stop.abort()
  },
}
let adapter
try {
  adapter = (await train(options)).adapter
} catch (error) {
  if (error.name !== 'AbortError') throw error
}
const memory = process.resourceUsage().maxRSS * 1024
writeFileSync(
  join(output, 'result.json'),
  JSON.stringify({ steps, validations, memory, adapter, versions: await versions() }),
)
