import { inHalfPrecision, leavesWeightsStored, openSession, type Tensor } from '../../onnx/index.ts'
import type { EncoderProfile } from '../folder/profile.ts'
import { type EncoderGraph, encoderGraph } from '../graph.ts'
import { openOriginal } from '../imported/index.ts'
import type { InputReader } from '../input/reader.ts'
import type { TokenSequence } from '../input/sequence.ts'
import { type LoraOptions, loraShapes } from '../lora/lora.ts'
import { isInParts, openExportedLanguage } from '../qwen3-vl/exported.ts'
import type { RowLayout } from '../rows/layout.ts'
import { planBatches } from '../rows/pack.ts'
import { checkedAgainstCpu } from './device-check.ts'
import type { EmbedderOptions } from './embed.ts'

/** Computes embeddings of batches, in native memory until it is closed. */
export interface Engine extends Pick<RowLayout, 'batches' | 'computed'> {
  /** Computes the embeddings of one batch, float32 [sequences, dimension]. */
  embed(sequences: TokenSequence[]): Promise<Float32Array>
  close(): Promise<void>
}

/** What computes an encoder's embeddings: its graph, or the file's own; on another device than the CPU compared with the CPU's first. */
export async function openEngine(
  profile: EncoderProfile,
  reader: InputReader,
  options: EmbedderOptions,
): Promise<Engine> {
  const { adapter, device = 'cpu', precision } = options
  const open = (settings: EmbedderOptions): Promise<Engine> =>
    profile.kind === 'onnx' && adapter === undefined
      ? originalEngine(profile, reader, settings)
      : graphEngine(profile, reader, settings)
  const engine = await open(options)
  if (device === 'cpu') return engine
  const openCpu = (): Promise<Engine> => open({ ...options, device: 'cpu', precision: 'fp32', warn: () => {} })
  return checkedAgainstCpu(engine, device, openCpu, precision)
}

async function graphEngine(profile: EncoderProfile, reader: InputReader, options: EmbedderOptions): Promise<Engine> {
  const { adapter, threads, device = 'cpu', precision = 'fp32', share, warn } = options
  const graphWith = (update: LoraOptions['update']): Promise<EncoderGraph> =>
    encoderGraph(profile, adapter?.targets ?? [], reader.padId, {
      ...{ update, visuals: reader },
      ...(share === undefined ? {} : { share }),
    })
  const merged = await graphWith('merged')
  // updates of weights that stay in their file would be added in every run, and all sums be there at once
  const aside = adapter !== undefined && device === 'cpu' && leavesWeightsStored(merged.graph)
  const encoder = aside ? await graphWith('beside') : merged
  for (const note of encoder.notes) warn?.(`${profile.id}: ${note}.`)
  // the matrices do not change: as constants of the graph they are merged once, when the session is made
  const matrices = loraShapes(adapter?.targets ?? []).map(({ name, shape }): [string, Tensor] => [
    name,
    { dtype: 'float32', shape, data: adapter?.tensors.get(name) as Float32Array },
  ])
  const constant = new Set(matrices.map(([name]) => name))
  const graph = {
    ...encoder.graph,
    inputs: encoder.graph.inputs.filter((name) => !constant.has(name)),
    initializers: new Map([...encoder.graph.initializers, ...matrices]),
  }
  const session = await openSession(
    precision === 'fp32' ? graph : inHalfPrecision(graph, precision, { trainable: [] }),
    {
      ...(encoder.externalFolder === undefined ? {} : { externalFolder: encoder.externalFolder }),
      ...(threads === undefined ? {} : { threads }),
      device,
    },
  )
  return {
    batches: encoder.batches,
    computed: encoder.computed,
    async embed(sequences) {
      const { embeddings } = await session.run(encoder.feeds(sequences))
      return embeddings?.data as Float32Array
    },
    close: () => session.release(),
  }
}

async function originalEngine(
  profile: EncoderProfile,
  reader: InputReader,
  { threads, device, optimization }: EmbedderOptions,
): Promise<Engine> {
  const session = {
    ...(optimization === undefined ? {} : { optimization }),
    ...(threads === undefined ? {} : { threads }),
    ...(device === undefined ? {} : { device }),
  }
  const original = isInParts(profile)
    ? await openExportedLanguage(profile, reader, session)
    : await openOriginal(profile, reader.padId, session)
  return {
    batches: (sequences, budget, wanted = budget) =>
      original.mixesTexts
        ? sequences.map((_, i) => [i])
        : planBatches(
            sequences.map(({ ids }) => ids.length),
            { tokenBudget: Math.min(budget, wanted), packed: false },
          ),
    computed: (sequences) => sequences.reduce((sum, { ids }) => sum + ids.length, 0),
    embed: original.embed,
    close: original.close,
  }
}
