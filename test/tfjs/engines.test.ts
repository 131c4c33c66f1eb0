import { existsSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import {
  chosenModules,
  encoderModules,
  initialLora,
  type LoraTarget,
  loadTokenizer,
  readEncoder,
  textSequence,
} from '../../src/encoder/index.ts'
import { createRandom } from '../../src/support/random.ts'
import type { QueryRows } from '../../src/train/data/query-file.ts'
import { loraEncoder } from '../../src/train/engine/encoder.ts'
import { type Engine, type MicroBatch, openEngine, type TrainableEncoder } from '../../src/train/engine/engine.ts'
import { openTfjsEngine } from '../../src/train/engine/tfjs-engine.ts'
import type { Tensors } from '../../src/train/step/optimizer.ts'
import { tinyBert } from '../encoder/fixtures.ts'
import { minilmDir } from '../support/minilm.ts'
import { relativeError, rowsOf, toyEncoder, toyTensors, unitRows } from '../train/toy-encoder.ts'

const QUESTIONS = 3

/** An encoder with adapters that do something, and a batch of token sequences and pairs for it. */
interface Setup {
  encoder: TrainableEncoder
  tensors: Tensors
  queries: QueryRows
  batch: MicroBatch
}

function batchFor(seed: string, dimension: number, vocabulary: number, longest: number) {
  const random = createRandom(seed)
  const sequences = [longest, ...Array.from({ length: 8 }, () => 3 + random.int(longest - 3))].map((length) =>
    textSequence(Int32Array.from({ length }, () => random.int(vocabulary))),
  )
  const pairs = Array.from({ length: 12 }, () => ({
    preferred: random.int(sequences.length),
    other: random.int(sequences.length),
    question: random.int(QUESTIONS),
    weight: random.next() / 10,
  }))
  const queries = unitRows(
    Float32Array.from({ length: QUESTIONS * dimension }, () => random.normal()),
    dimension,
  )
  return { queries: rowsOf(queries, dimension), batch: { sequences, pairs } }
}

async function encoderSetup(folder: string, options: { longest?: number; rank?: number } = {}): Promise<Setup> {
  const { longest = 20, rank = 4 } = options
  const profile = await readEncoder(folder)
  const modules = chosenModules(await encoderModules(profile), null)
  const targets = modules.map(
    ({ module, inputs, outputs }): LoraTarget => ({ module, inputs, outputs, rank, alpha: 8 }),
  )
  const tokenizer = await loadTokenizer(profile)
  const encoder = await loraEncoder(profile, targets, tokenizer.padId)
  const random = createRandom(folder)
  const tensors = initialLora(targets, 'engines')
  for (const [name, data] of tensors)
    if (name.includes('lora_B')) data.set(Array.from(data, () => random.normal() / 10))
  const vocabulary = Math.min(64, (profile.config.vocab_size as number | undefined) ?? 64)
  return { encoder, tensors, ...batchFor('engines', profile.dimension, vocabulary, longest) }
}

const fixtures = join(import.meta.dirname, '..', 'fixtures')
const onnxFixtures = join(fixtures, 'onnx')
const exported = readdirSync(onnxFixtures).filter((name) => existsSync(join(onnxFixtures, name, 'onnx')))
const architectures: [string, () => Promise<Setup>][] = [
  ['a bag of words', async () => ({ encoder: toyEncoder(), tensors: toyTensors(), ...batchFor('toy', 6, 12, 9) })],
  ['a BERT checkpoint, mean pooling', () => encoderSetup(tinyBert('mean'))],
  ['a BERT checkpoint, CLS pooling', () => encoderSetup(tinyBert('cls'))],
  ['a Qwen3 checkpoint', () => encoderSetup(join(fixtures, 'qwen3'))],
  ['a Qwen3-VL checkpoint', () => encoderSetup(join(fixtures, 'qwen3-vl'))],
  ...exported.map((name): [string, () => Promise<Setup>] => [name, () => encoderSetup(join(onnxFixtures, name))]),
]

const opened: Engine[] = []
afterAll(async () => {
  for (const engine of opened) await engine.close()
})

async function bothEngines(setup: Setup, loss: 'logistic' | 'hinge', tokenBudget = 4096) {
  const options = { ...setup, loss: { loss, tau: 0.3, margin: 0.1 }, tokenBudget }
  const engines = {
    onnxruntime: await openEngine({ ...options, threads: 1 }),
    tfjs: await openTfjsEngine({ ...options, backend: 'wasm' }),
  }
  opened.push(engines.onnxruntime, engines.tfjs)
  return engines
}

/** ‖ours − theirs‖ / ‖theirs‖ of the adapter matrix that differs most. */
function worst(ours: Tensors, theirs: Tensors): number {
  expect([...ours.keys()]).toEqual([...theirs.keys()])
  return Math.max(
    ...[...theirs].map(([name, data]) => {
      expect(
        data.some((v) => v !== 0),
        name,
      ).toBe(true)
      return relativeError(ours.get(name)!, data)
    }),
  )
}

describe.each(architectures)('ONNX Runtime with our gradients and TensorFlow.js with its own: %s', (_, open) => {
  it('agree on embeddings, loss and gradients', async () => {
    const setup = await open()
    const { batch, tensors } = setup
    const { onnxruntime, tfjs } = await bothEngines(setup, 'logistic')
    const embeddings = await onnxruntime.embed(batch.sequences, tensors)
    expect(relativeError(await tfjs.embed(batch.sequences, tensors), embeddings)).toBeLessThan(1e-5)
    const theirs = await onnxruntime.onePass(batch, tensors)
    const ours = await tfjs.onePass(batch, tensors)
    expect(Math.abs(ours.loss / theirs.loss - 1)).toBeLessThan(1e-5)
    expect(worst(ours.gradients, theirs.gradients)).toBeLessThan(2e-5)
    const hinge = await bothEngines(setup, 'hinge', 32)
    const inTwo = await hinge.tfjs.twoPass(batch, tensors)
    const reference = await hinge.onnxruntime.onePass(batch, tensors)
    expect(Math.abs(inTwo.loss / reference.loss - 1)).toBeLessThan(1e-5)
    expect(worst(inTwo.gradients, reference.gradients)).toBeLessThan(2e-5)
  })
})

describe('TensorFlow.js on a whole model', () => {
  const folder = minilmDir()
  it.skipIf(folder === undefined)('agrees on all-MiniLM-L6-v2 (CANOPY_MINILM)', async () => {
    const setup = await encoderSetup(folder!, { longest: 40, rank: 16 })
    const { onnxruntime, tfjs } = await bothEngines(setup, 'logistic')
    const theirs = await onnxruntime.onePass(setup.batch, setup.tensors)
    const ours = await tfjs.onePass(setup.batch, setup.tensors)
    expect(Math.abs(ours.loss / theirs.loss - 1)).toBeLessThan(1e-5)
    expect(worst(ours.gradients, theirs.gradients)).toBeLessThan(2e-5)
  })
})
