// Two encoders in turn, each in a process of its own: how fast they embed the same texts, and how long refined items take.
import { join, resolve } from 'node:path'
import { quantile } from '../../dist/eval/index.js'
import { alternate, median, medianRatio } from '../support/alternate.mjs'

const here = import.meta.dirname

/**
 * Embeds the texts with each encoder `{ id, folder, onnx, tokens }`: with this engine, and with transformers.js (sorted by length,
 * best batch size) where `onnx` names its folder. `tokens` is how many tokens the texts have for it, without padding.
 *
 * @returns a row a contestant: texts and tokens a second, loading, peak memory; ratios to the first encoder in the same program
 */
export async function compareSpeed(encoders, { texts, threads, rounds, folder, log }) {
  const common = { texts, warm: texts.slice(0, Math.ceil(texts.length / 8)), threads }
  const contestants = [
    ...encoders.map((encoder) => ({
      encoder,
      program: 'this engine',
      script: 'ours.mjs',
      request: { model: resolve(encoder.folder), tokenBudget: 4096 },
    })),
    ...encoders
      .filter(({ onnx }) => onnx !== undefined)
      .map((encoder) => ({
        encoder,
        program: 'transformers.js',
        script: 'transformers-js.mjs',
        request: { onnx: resolve(encoder.onnx), batchSizes: [1, 4, 8, 16, 32], sorted: true },
      })),
  ].map((contestant, i) => ({
    ...contestant,
    name: `${i}`,
    label: `${contestant.encoder.id}, ${contestant.program}`,
    command: process.execPath,
    script: join(here, contestant.script),
    request: () => ({ ...common, ...contestant.request }),
  }))
  const finished = await alternate(contestants, { rounds, folder, log })
  return finished.map(({ encoder, program, results, error }) => {
    const seconds = results.map((result) => result.seconds)
    const base = finished.find((other) => other.program === program && other.encoder === encoders[0])
    return {
      id: encoder.id,
      program,
      error,
      seconds,
      textsPerSecond: texts.length / median(seconds),
      tokensPerSecond: encoder.tokens / median(seconds),
      timesFaster: medianRatio(
        (base?.results ?? []).map((result) => result.seconds),
        seconds,
      ),
      loadSeconds: median(results.map((result) => result.loadSeconds)),
      memory: median(results.map((result) => result.memory)),
      note: results.at(-1)?.note,
    }
  })
}

/**
 * Asks an open encoder of each folder every question of its items, one after the other.
 *
 * @param cases `{ question, items }` as `openEncoder`'s `refine` takes them
 * @returns a row an encoder: median and 95th percentile of the milliseconds a question takes, over all rounds
 */
export async function compareServing(encoders, { cases, threads, rounds, folder, log }) {
  const contestants = encoders.map((encoder, i) => ({
    encoder,
    name: `${i}`,
    label: `${encoder.id}, refining`,
    command: process.execPath,
    script: join(here, 'serving.mjs'),
    request: () => ({ model: resolve(encoder.folder), threads, cases }),
  }))
  const finished = await alternate(contestants, { rounds, folder, log })
  return finished.map(({ encoder, results, error }) => {
    const sorted = Float64Array.from(results.flatMap(({ milliseconds }) => milliseconds)).sort()
    return {
      id: encoder.id,
      error,
      p50: quantile(sorted, 0.5),
      p95: quantile(sorted, 0.95),
      nodesPerQuestion: (results[0]?.nodes ?? Number.NaN) / cases.length,
      loadSeconds: median(results.map((result) => result.loadSeconds)),
      memory: median(results.map((result) => result.memory)),
    }
  })
}
