import { join } from 'node:path'
import {
  encoderInput,
  FEATURES_FOLDER,
  type InputReader,
  openReader,
  readEncoderPair,
  sequenceKey,
  UnreadableError,
} from '../encoder/index.ts'
import type { RenderOptions, TableFormatName } from '../hierarchy/index.ts'
import type { Device } from '../onnx/index.ts'
import type { GoldRow, GoldTokens, InspectedEncoder } from '../preferences/index.ts'
import type { Progress } from '../support/progress.ts'
import { type StatedFlags, statedFlags } from './flags.ts'

/** How nodes are made and, with an encoder, read. */
export interface Reading {
  branching: number
  encoder?: ReadingEncoder
}

interface ReadingEncoder {
  id: string
  reader: InputReader
  rendering: RenderOptions
}

export interface ReadingFlags extends StatedFlags {
  encoder?: string
  cache?: string
  threads?: number
  device?: Device
  branching?: number
  title?: boolean
  tableFormat?: TableFormatName
}

/** How nodes are made and read: as the flags say, else as the encoder was trained. Its reader has to be closed. */
export async function readingOf(flags: ReadingFlags): Promise<Reading> {
  if (flags.encoder === undefined) return { branching: flags.branching ?? 2 }
  const { encoder: profile, settings } = await readEncoderPair(flags.encoder, statedFlags(flags))
  const { threads, device, cache } = flags
  return {
    branching: flags.branching ?? settings.branching,
    encoder: {
      id: flags.encoder,
      reader: await openReader(profile, {
        ...(threads !== undefined && { threads }),
        ...(device !== undefined && { device }),
        ...(cache !== undefined && { cache: join(cache, FEATURES_FOLDER) }),
      }),
      rendering: { title: flags.title ?? settings.title, tableFormat: flags.tableFormat ?? settings.tableFormat },
    },
  }
}

export interface Looking {
  encoder: InspectedEncoder
  /** Items whose picture or video turned out to be unreadable, and why. */
  unreadable: { item: string; reason: string }[]
  /** Takes how far the walk over the gold is, and tells it on together with how far its present item is. */
  onProgress: Progress
}

/** Has an encoder's reader tokenise the nodes of items; of those that show something, that is where the time goes. */
export function inspected(
  { reader, rendering }: ReadingEncoder,
  folder: string,
  onProgress: Progress,
  signal: AbortSignal,
): Looking {
  const unreadable: Looking['unreadable'] = []
  let now = { phase: 'visual features', done: 0 }
  return {
    unreadable,
    onProgress(event) {
      now = reader.multimodal ? { ...event, phase: 'visual features' } : event
      onProgress(now)
    },
    encoder: {
      multimodal: reader.multimodal,
      async encode(hierarchy) {
        const { item, nodes } = hierarchy
        try {
          const inputs = nodes.map((node) => encoderInput(hierarchy, node, rendering, folder))
          const encoded = await reader.encode(inputs, 'node', {
            signal,
            onProgress: ({ done, total }) => onProgress({ ...now, note: `node ${done} of ${total}` }),
          })
          return encoded.map(({ sequence, truncated }) => ({
            sequence: Buffer.from(sequenceKey(sequence)).toString('latin1'),
            length: sequence.ids.length,
            truncated,
          }))
        } catch (error) {
          if (!(error instanceof UnreadableError)) throw error
          if (!unreadable.some((known) => known.item === item.id))
            unreadable.push({ item: item.id, reason: error.message })
          return undefined
        }
      },
    },
  }
}

export interface EncoderCount {
  encoder: string
  maxLength: number
  items: number
  nodes: number
  /** By modality, as `GoldTokens` has them. */
  sizes: GoldTokens['sizes']
  truncated: number
  truncatedRoots: number
  equalToParent: number
  droppedPairs: number
}

/** The tokens of all splits and benchmarks together. */
export function encoderCount({ id, reader }: ReadingEncoder, gold: readonly GoldRow[]): EncoderCount {
  const rows = gold.flatMap(({ tokens }) => tokens ?? [])
  const sum = (of: (tokens: GoldTokens) => number): number => rows.reduce((total, tokens) => total + of(tokens), 0)
  const sizeOf = (modality: keyof GoldTokens['sizes']): GoldTokens['sizes'][typeof modality] => ({
    nodes: sum(({ sizes }) => sizes[modality].nodes),
    tokens: sum(({ sizes }) => sizes[modality].tokens),
    longest: Math.max(0, ...rows.map(({ sizes }) => sizes[modality].longest)),
  })
  return {
    encoder: id,
    maxLength: reader.maxLength,
    items: sum(({ items }) => items),
    nodes: sum(({ nodes }) => nodes),
    sizes: { text: sizeOf('text'), table: sizeOf('table'), image: sizeOf('image'), video: sizeOf('video') },
    truncated: sum(({ truncatedNodes }) => truncatedNodes),
    truncatedRoots: sum(({ truncatedRoots }) => truncatedRoots),
    equalToParent: sum(({ equalToParent }) => equalToParent),
    droppedPairs: sum(({ droppedPairs }) => droppedPairs.total),
  }
}
