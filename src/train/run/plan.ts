import { availableParallelism } from 'node:os'
import { join, resolve } from 'node:path'
import { type Dataset, openDataset } from '../../data/index.ts'
import {
  chosenModules,
  type EncoderProfile,
  encoderModules,
  FEATURES_FOLDER,
  graphNames,
  type InputReader,
  type LoraTarget,
  loraShapes,
  openReader,
} from '../../encoder/index.ts'
import { InputError } from '../../support/errors.ts'
import { benchmarkWeight } from '../data/instances.ts'
import { createSampler, type Sampler, splitValidation } from '../data/sampler.ts'
import { openTrainingSet, type TrainingSet } from '../data/training-set.ts'
import { computeVisuals, type LeftOut, leftOutNotes, visualInstances } from '../data/visuals.ts'
import { type ChosenEngine, chooseEngine, type EngineRecord, engineText } from '../engine/open.ts'
import { isLossModule, type LossModule, loadLossModule } from '../loss/module.ts'
import type { TrainSettings } from '../settings.ts'
import { BEGINS_FROM, type Fingerprint } from './checkpoints.ts'
import type { TrainOptions } from './run.ts'
import { machine, versions } from './versions.ts'
import { noteWarmStart, readWarmStart, type WarmStart } from './warm-start.ts'

/** What a run is, before anything is computed. */
export interface RunPlan {
  set: TrainingSet
  /** Instances that are trained on, and those that select the adapter. */
  split: { train: Int32Array; validation: Int32Array }
  /** Instances that are in neither. */
  leftOut: LeftOut
  /** What turns nodes into tokens. */
  reader: InputReader
  /** Opens another one. */
  openReader(): Promise<InputReader>
  /** Instances of the parts whose visual features may have to be computed yet. */
  visual: number[]
  /** The adapter that the run begins from, where it begins from one. */
  start: WarmStart | undefined
  /** The modules that LoRA adapts, and the shape of each of its matrices. */
  targets: LoraTarget[]
  shapes: Map<string, number[]>
  sampler: Sampler
  totalSteps: number
  /** Steps between evaluations, and between checkpoints. */
  evaluateEvery: number
  checkpointEvery: number
  threads: number
  /** The loss module, where the loss is not a built-in one. */
  module: LossModule | undefined
  engine: ChosenEngine
  /** Everything that the bytes of the final adapter depend on. */
  fingerprint: Fingerprint
}

/**
 * Opens a run's data, resolves what its settings leave open, and loads its loss module.
 *
 * @param onClose takes what is to be closed at the end
 * @throws InputError for inputs that do not fit each other
 */
export async function planRun(options: TrainOptions, onClose: (close: () => Promise<void>) => void): Promise<RunPlan> {
  const { settings, encoder, queryEncoder, warn = () => {}, note, onProgress } = options
  if (queryEncoder.dimension !== encoder.dimension)
    throw new InputError(
      `The query encoder's embeddings have ${queryEncoder.dimension} numbers, the node encoder's ${encoder.dimension}; a cosine needs equal sizes.`,
    )
  const start = await readWarmStart(options, resolve(options.output))
  if (start !== undefined) await noteWarmStart(start, options)
  const datasets: Dataset[] = []
  for (const path of options.datasets) {
    const dataset = await openDataset(path)
    onClose(() => dataset.close())
    datasets.push(dataset)
  }
  const set = await openTrainingSet(options.preferences, datasets, onProgress)
  checkWeights(settings, set.benchmarks, warn)
  const threads = settings.threads ?? availableParallelism()
  const inputs = await openInputs(options, set, threads, onClose)
  for (const note of leftOutNotes(inputs.leftOut)) warn(`${note}.`)
  if (set.empty > 0)
    note?.(
      `${set.empty} ${set.empty === 1 ? 'instance has' : 'instances have'} no pairs and ${set.empty === 1 ? 'is' : 'are'} not trained on: an item of one region has none, as a picture, nor has one whose regions are all gold.`,
    )
  const split = splitValidation(set.index, settings.validationShare, settings.seed, inputs.leftOut.instances)
  if (split.train.length === 0)
    throw new InputError('No instance with preference pairs is left to train on.', { file: options.preferences[0] })
  if (split.validation.length === 0 && settings.validationShare > 0)
    warn('No source is small enough for a validation part; the adapter of the last step is kept.')

  const targets = start?.adapter.targets ?? (await loraTargets(encoder, settings))
  const own = encoder.kind === 'onnx' ? graphNames(targets) : []
  if (own.length > 0)
    note?.(
      `The adapter is written under the names that the graph has for its maps. PEFT loads it over the checkpoint only if that has modules of these names, too, and not several in the place of one: ${own.slice(0, 3).join(', ')}${own.length > 3 ? ` and ${own.length - 3} more` : ''}.`,
    )
  const sampler = createSampler(split.train, settings.batchSize, settings.seed)
  const { stepsPerEpoch } = sampler
  const evaluateEvery = settings.evaluateEvery ?? Math.max(1, Math.ceil(stepsPerEpoch / 2))
  const module = isLossModule(settings.loss) ? await loadLossModule(settings) : undefined
  const engine = await chooseEngine(settings)
  return {
    ...{ set, split, ...inputs, start, targets, sampler, evaluateEvery, threads, module, engine },
    shapes: new Map(loraShapes(targets).map(({ name, shape }) => [name, shape as number[]])),
    totalSteps: settings.steps ?? Math.max(1, Math.ceil(settings.epochs * stepsPerEpoch)),
    checkpointEvery: settings.checkpointEvery ?? evaluateEvery,
    fingerprint: await fingerprintOf(options, { set, start, leftOut: inputs.leftOut, threads, module }, engine.record),
  }
}

/**
 * Opens what reads the nodes, and finds out which of them it can read: files are looked into only where those that cannot be read
 * shall be left out, for then the parts depend on them.
 */
async function openInputs(
  { settings, encoder, output, cache = output, onProgress, signal }: TrainOptions,
  set: TrainingSet,
  threads: number,
  onClose: (close: () => Promise<void>) => void,
): Promise<Pick<RunPlan, 'reader' | 'openReader' | 'visual' | 'leftOut'>> {
  const visual = await visualInstances(set, { onProgress, signal })
  const open = (): Promise<InputReader> =>
    openReader(encoder, {
      ...{ threads, device: settings.device },
      ...(visual.length > 0 && { cache: join(resolve(cache), FEATURES_FOLDER) }),
    })
  const reader = await open()
  onClose(() => reader.close())
  const opened = { reader, openReader: open }
  if (!reader.multimodal)
    return { ...opened, visual: [], leftOut: { instances: new Set(visual), notRead: visual.length, unreadable: [] } }
  if (settings.onError === 'stop')
    return { ...opened, visual, leftOut: { instances: new Set(), notRead: 0, unreadable: [] } }
  const leftOut = await computeVisuals(set, visual, open, { rendering: settings, onError: 'skip', onProgress, signal })
  return { ...opened, visual: [], leftOut }
}

/** Says which weights are for nothing, and refuses those under which there is nothing to train. */
function checkWeights(settings: TrainSettings, benchmarks: string[], warn: (message: string) => void): void {
  const known = benchmarks.map((name) => `"${name}"`).join(', ')
  for (const name of Object.keys(settings.benchmarkWeights))
    if (!benchmarks.includes(name)) warn(`"benchmarkWeights" names "${name}", which is not trained on (${known}).`)
  if (benchmarks.length > 0 && benchmarks.every((name) => benchmarkWeight(settings, name) === 0))
    throw new InputError(
      `"benchmarkWeights" gives every benchmark (${known}) the weight 0, so there is nothing to train.`,
    )
}

async function loraTargets(encoder: EncoderProfile, { targets, ...stated }: TrainSettings): Promise<LoraTarget[]> {
  const [rank, alpha] = [stated.rank, stated.alpha] as [number, number]
  const modules = chosenModules(await encoderModules(encoder), targets)
  if (modules.length === 0)
    throw new InputError('No linear map of a layer was found in the encoder; name the modules to adapt (--targets).', {
      file: encoder.weights,
    })
  for (const { module, inputs, outputs } of modules)
    if (rank > Math.min(inputs, outputs))
      throw new InputError(
        `A rank of ${rank} is more than ${module} has to adapt (${outputs} x ${inputs}); give at most ${Math.min(inputs, outputs)}.`,
      )
  return modules.map(({ module, inputs, outputs }) => ({ module, inputs, outputs, rank, alpha }))
}

/** Everything that the bytes of the final adapter depend on. */
async function fingerprintOf(
  options: TrainOptions,
  { set, start, leftOut, threads, module }: Pick<RunPlan, 'set' | 'start' | 'leftOut' | 'threads' | 'module'>,
  engine: EngineRecord,
): Promise<Fingerprint> {
  // How often and how many checkpoints are written has no say in what is trained, nor has the place of a loss module or an adapter; of files that
  // cannot be read it is their items that count.
  const { threads: _threads, keep: _keep, checkpointEvery: _every, onError: _onError, ...rest } = options.settings
  // What computes counts as it turned out, not as it was asked for.
  const { engine: _engine, tfjsBackend: _backend, adapter: _adapter, ...decisive } = rest
  const settings = module === undefined ? decisive : { ...decisive, loss: 'a module' }
  const named = (prefix: string, entries: object): Fingerprint =>
    Object.fromEntries(
      Object.entries(entries).map(([name, value]) => [
        `${prefix} ${name}`,
        typeof value === 'string' ? value : JSON.stringify(value),
      ]),
    )
  return {
    ...named('setting', settings),
    ...(module && { 'loss module': module.sha256 }),
    ...(start && { [BEGINS_FROM]: start.hash }),
    ...(leftOut.unreadable.length > 0 && { 'items left out': leftOut.unreadable.map(({ item }) => item).join(', ') }),
    encoder: options.encoder.fingerprint,
    'query encoder': options.queryEncoder.fingerprint,
    ...named('data', Object.fromEntries(set.sources.map((s, i) => [`${i + 1} (${s.dataset}, ${s.split})`, s.hash]))),
    ...named(
      'preferences',
      Object.fromEntries(set.sources.map((s, i) => [`${i + 1} (${s.dataset}, ${s.split})`, s.sha256])),
    ),
    ...named('version of', await versions()),
    engine: engineText(engine),
    machine: machine(),
    threads: String(threads),
  }
}
