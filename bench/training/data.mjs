// The preference pairs that all contestants train on: HotpotQA, 2Wiki and NQ, imported, paired and put into batches by this project,
// and written down as texts for the others.
import { existsSync, mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { import2wiki, importHotpotqa, importNq, openDataset } from '../../dist/data/index.js'
import { encoderGraph, openEmbedder, openReader, runTokens } from '../../dist/encoder/index.js'
import { writeSafetensors } from '../../dist/onnx/index.js'
import { buildPreferences } from '../../dist/preferences/index.js'
import { assembleBatch, createDistinct, readInstance, shareOut } from '../../dist/train/data/instances.js'
import { createSampler, splitValidation } from '../../dist/train/data/sampler.js'
import { instanceInputs, openTrainingSet } from '../../dist/train/data/training-set.js'

const SETS = [
  ['hotpotqa', importHotpotqa, 'hotpotqa/train_distractor.json'],
  ['2wiki', import2wiki, 'hotpotqa/sibling_2wiki_dev.json'],
  ['nq', importNq, 'nq/train.jsonl'],
]

/** Imports the sets under `data` and builds their preferences, once per work folder. */
export async function prepareData(data, work) {
  const files = []
  for (const [name, importer, input] of SETS) {
    const folder = join(work, 'datasets', name)
    const preferences = join(work, `${name}.train.jsonl`)
    if (!existsSync(preferences)) {
      mkdirSync(join(work, 'datasets'), { recursive: true })
      await importer({ inputs: [join(data, input)], split: 'train', output: folder })
      const dataset = await openDataset(folder)
      await buildPreferences({ dataset, split: 'train', output: preferences, branching: 2 })
      await dataset.close()
    }
    files.push({ folder, preferences })
  }
  return files
}

/**
 * Opens what there is to train on: the training set, its split, the batches of every step, and the questions' embeddings by the
 * frozen encoder, of unit length, also as a file for the peers.
 */
export async function openTraining({ files, profile, settings, threads, work }) {
  const datasets = []
  for (const { folder } of files) datasets.push(await openDataset(folder))
  const set = await openTrainingSet(
    files.map(({ preferences }) => preferences),
    datasets,
  )
  const reader = await openReader(profile)
  const prompt = profile.prompts.node
  const encode = (inputs) => reader.encode(inputs, 'node')
  const split = splitValidation(set.index, settings.validationShare, settings.seed)
  const sampler = createSampler(split.train, settings.batchSize, settings.seed)

  const embedder = await openEmbedder(profile, { threads })
  const questions = []
  for await (const { number, text } of set.questions()) questions[number] = text
  const { embeddings: queries } = await embedder.embedTexts(questions, 'query')
  await embedder.close()
  const { dimension } = profile
  if (!profile.normalize) throw new Error('This bench takes an encoder whose embeddings have unit length.')
  const queryFile = join(work, 'queries.safetensors')
  const shape = [queries.length / dimension, dimension]
  await writeSafetensors(queryFile, new Map([['queries', { dtype: 'float32', shape, data: queries }]]), {})

  return {
    set,
    split,
    encode,
    queries: (question) => queries.subarray(question * dimension, (question + 1) * dimension),
    queryFile,
    dimension,
    stepsPerEpoch: sampler.stepsPerEpoch,
    /** Numbers of the instances of some steps. */
    instances: (from, to) =>
      Int32Array.from(Array.from({ length: to - from + 1 }, (_, i) => [...sampler.batch(from + i)]).flat()),
    /** The batch of a step as texts: distinct nodes, and pairs with their shares of the loss. */
    async texts(step) {
      const numbers = [...sampler.batch(step)]
      const instances = []
      const nodes = new Map()
      for (const number of numbers) {
        const instance = await readInstance(set, number, encode, settings)
        instances.push(instance)
        nodes.set(
          instance,
          instanceInputs(await set.read(number), settings).map(({ text }) => text),
        )
      }
      const distinct = createDistinct()
      const texts = []
      const pairs = []
      for (const { instance, pairs: own } of shareOut(instances, settings, set.benchmarks).members) {
        const place = instance.sequences.map((sequence) => distinct.add(sequence))
        nodes.get(instance).forEach((text, node) => {
          texts[place[instance.places[node]]] ??= prompt + text
        })
        for (const { preferred, other, weight } of own)
          pairs.push([place[preferred], place[other], instance.question, weight])
      }
      return { texts, pairs }
    },
    /** Tokens that this engine computes in each step with an encoder, padding included. */
    async computed(encoder) {
      const { tokens } = await encoderGraph(encoder, [], reader.padId)
      const computed = []
      for (let step = 1; step <= settings.steps; step++) {
        const instances = []
        for (const number of sampler.batch(step)) instances.push(await readInstance(set, number, encode, settings))
        const { tokenBudget } = settings
        const run = runTokens('cpu')
        const { micro } = assembleBatch(instances, settings, set.benchmarks, tokens, tokenBudget, run)
        computed.push(micro.reduce((sum, { sequences }) => sum + tokens(sequences), 0))
      }
      return computed
    },
    async close() {
      for (const dataset of datasets) await dataset.close()
    },
  }
}
