// Contestants that take turns, each in a process of its own: A B C A B C …
import { spawn } from 'node:child_process'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

/**
 * Runs every contestant once a round. A contestant is `{ name, label, command, script, request }`; its process gets the path of
 * what `request()` returns, with a folder of its own as `output`, and leaves result.json there.
 *
 * @returns per contestant `{ name, label, results, error }`, one result per round; a contestant that fails is left out afterwards
 */
export async function alternate(contestants, { rounds, folder, log, onResult = () => {} }) {
  const standing = contestants.map((contestant) => ({ ...contestant, results: [], error: undefined }))
  for (let round = 1; round <= rounds; round++)
    for (const contestant of standing) {
      if (contestant.error !== undefined) continue
      const output = join(folder, `round-${round}`, contestant.name)
      const began = performance.now()
      try {
        const result = await runContestant(contestant, output)
        contestant.results.push({ ...result, output })
        onResult(contestant, result)
      } catch (error) {
        contestant.error = error.message
      }
      const took = ((performance.now() - began) / 1000).toFixed(1)
      log(`round ${round}, ${contestant.label}: ${contestant.error === undefined ? `${took} s` : contestant.error}`)
    }
  return standing
}

async function runContestant({ command, script, request }, output) {
  mkdirSync(output, { recursive: true })
  const file = join(output, 'request.json')
  writeFileSync(file, JSON.stringify({ ...request(), output }))
  const offline = { HF_HUB_OFFLINE: '1', TOKENIZERS_PARALLELISM: 'true', TRANSFORMERS_VERBOSITY: 'error' }
  const child = spawn(command, [script, file], {
    stdio: ['ignore', 'ignore', 'pipe'],
    env: { ...process.env, ...offline },
  })
  let stderr = ''
  child.stderr.on('data', (data) => {
    stderr = (stderr + data).slice(-4000)
  })
  const code = await new Promise((done, failed) => {
    child.on('error', failed)
    child.on('close', done)
  })
  if (code !== 0) throw new Error(`failed with status ${code}: ${stderr.trim().split('\n').slice(-6).join('\n')}`)
  return JSON.parse(readFileSync(join(output, 'result.json'), 'utf8'))
}

export function median(values) {
  const sorted = values.filter(Number.isFinite).sort((a, b) => a - b)
  if (sorted.length === 0) return Number.NaN
  const middle = sorted.length >> 1
  return sorted.length % 2 === 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2
}

/** Median over the rounds of a / b, round by round; both ran next to each other in a round. */
export function medianRatio(a, b) {
  return median(a.map((value, round) => value / b[round]))
}
