import { createHash } from 'node:crypto'
import { mkdir, rename, rm } from 'node:fs/promises'
import { dirname } from 'node:path'
import { readJsonLines } from '../data/index.ts'
import { InputError } from '../support/errors.ts'
import { fileError, openLineWriter, temporaryName } from '../support/files.ts'
import type { Progress } from '../support/progress.ts'
import type { DistillSettings } from './settings.ts'
import {
  type DatasetPart,
  datasetGroups,
  datasetParts,
  fileGroups,
  KINDS,
  type TextGroup,
  type TextKind,
} from './sources.ts'

export interface DistillText {
  kind: TextKind
  text: string
}

/** What a distillation learns from and is measured on; no text is in both. */
export interface TextSet {
  /** In the order of a seeded shuffle. */
  training: DistillText[]
  heldOut: DistillText[]
  /** Passages, items and questions that were left out because they share a sentence, a row or a question with what is excluded. */
  excluded: number
}

export interface CollectOptions {
  files: readonly string[]
  datasets: readonly DatasetPart[]
  /** Parts of data sets that are to stay unseen. */
  exclude: readonly DatasetPart[]
  settings: Pick<
    DistillSettings,
    'seed' | 'sentences' | 'passages' | 'nodes' | 'questions' | 'heldOutShare' | 'heldOutTexts'
  >
  onProgress?: Progress
  signal?: AbortSignal | undefined
}

/**
 * Collects the texts of files and data sets. Each text has a rank, drawn from its hash and the seed; of each kind those of the lowest
 * rank stay, as many as the settings say. So the same sources give the same texts whatever their order, in memory that is bounded by
 * these numbers.
 *
 * @throws InputError for a file that cannot be read, and where there is no text to learn from or none to measure on
 */
export async function collectTexts(options: CollectOptions): Promise<TextSet> {
  const { settings, onProgress = () => {}, signal } = options
  const seed = String(settings.seed)
  const unseen = new Set<number>()
  for (const part of options.exclude) {
    for await (const text of datasetParts(part)) {
      signal?.throwIfAborted()
      unseen.add(identity(text))
    }
  }

  const limits: Record<TextKind, number> = {
    ...{ sentence: settings.sentences, passage: settings.passages },
    ...{ node: settings.nodes, question: settings.questions },
  }
  const training = choices(limits)
  const heldOut = choices(
    Object.fromEntries(KINDS.map((kind) => [kind, settings.heldOutTexts])) as Record<TextKind, number>,
  )
  let excluded = 0
  let groups = 0
  for await (const { origin, texts, parts } of allGroups(options, seed)) {
    signal?.throwIfAborted()
    if (++groups % 1000 === 0) onProgress({ phase: 'reading texts', done: groups })
    if (parts.some((part) => unseen.has(identity(part)))) excluded++
    else {
      const side = share(`${seed}/held-out/${origin}`) < settings.heldOutShare ? heldOut : training
      for (const { kind, text } of texts) side.add(kind, text, share(`${seed}/rank/${text}`))
    }
  }
  const measured = heldOut.all()
  const measuredTexts = new Set(measured.map(({ text }) => text))
  const learned = training.all().filter(({ text }) => !measuredTexts.has(text))
  if (learned.length === 0) throw new InputError('There is no text to learn from in the files and data sets given.')
  if (measured.length === 0)
    throw new InputError(
      `There is no text to measure on: a share of ${settings.heldOutShare} of ${groups} passages, items and questions is none. Raise "heldOutShare" or give more texts.`,
    )
  return { training: learned, heldOut: measured, excluded }
}

async function* allGroups({ files, datasets }: CollectOptions, seed: string): AsyncGenerator<TextGroup> {
  for (const file of files) yield* fileGroups(file, `${seed}/passages`)
  for (const part of datasets) yield* datasetGroups(part)
}

/** Texts of the lowest ranks, at most so many of each kind. */
function choices(limits: Record<TextKind, number>) {
  const kept = new Map<TextKind, Map<number, string>>(KINDS.map((kind) => [kind, new Map()]))
  const cut = (kind: TextKind): void => {
    const ranked = [...kept.get(kind)!].sort(([a], [b]) => a - b)
    kept.set(kind, new Map(ranked.slice(0, limits[kind])))
  }
  return {
    add(kind: TextKind, text: string, rank: number): void {
      const texts = kept.get(kind)!
      if (!texts.has(rank)) texts.set(rank, detached(text))
      if (texts.size > 2 * limits[kind] + 1000) cut(kind)
    },
    /** All of them by rank. */
    all(): DistillText[] {
      for (const kind of KINDS) cut(kind)
      const ranked = KINDS.flatMap((kind) => [...kept.get(kind)!].map(([rank, text]) => ({ kind, text, rank })))
      return ranked.sort((a, b) => a.rank - b.rank).map(({ kind, text }) => ({ kind, text }))
    },
  }
}

/** The same text in memory of its own: a part of a string keeps the whole of it, here what was read of a file at once. */
function detached(text: string): string {
  return JSON.parse(JSON.stringify(text)) as string
}

/** A text's letters and digits alone, as a number by which two readings of one sentence are recognised as the same. */
function identity(text: string): number {
  return share(
    text
      .normalize('NFKD')
      .toLowerCase()
      .replace(/[^\p{L}\p{N}]+/gu, ''),
  )
}

/** The first 48 bits of SHA-256 as a number in [0, 1). */
function share(text: string): number {
  return createHash('sha256').update(text).digest().readUIntBE(0, 6) / 2 ** 48
}

/** Writes texts as JSON lines, atomically: `["node","Title\ncontent"]`. */
export async function writeTexts(path: string, texts: readonly DistillText[]): Promise<void> {
  const failed = (error: unknown): never => {
    throw fileError(error, 'cannot write the texts', path)
  }
  await mkdir(dirname(path), { recursive: true }).catch(failed)
  const temporary = temporaryName(path)
  const writer = await openLineWriter(temporary)
  try {
    for (const { kind, text } of texts) await writer.write(JSON.stringify([kind, text]))
    await writer.close()
    await rename(temporary, path)
  } catch (error) {
    await writer.abandon()
    await rm(temporary, { force: true }).catch(() => {})
    failed(error)
  }
}

/**
 * Reads what `writeTexts` wrote.
 *
 * @param expected how many of each kind there are
 * @throws InputError for a file that is missing, damaged or not that long
 */
export async function readTexts(path: string, expected: Readonly<Record<string, number>>): Promise<DistillText[]> {
  const texts: DistillText[] = []
  for await (const { value, line } of readJsonLines(path)) {
    const [kind, text] = Array.isArray(value) ? (value as unknown[]) : []
    if (!KINDS.includes(kind as TextKind) || typeof text !== 'string')
      throw new InputError(`A kind and a text were expected. ${BEGIN_AGAIN}`, { file: path, line })
    texts.push({ kind: kind as TextKind, text })
  }
  const found = countByKind(texts)
  if (KINDS.some((kind) => found[kind] !== expected[kind]))
    throw new InputError(`The file holds other texts than the distillation began with. ${BEGIN_AGAIN}`, { file: path })
  return texts
}

const BEGIN_AGAIN = 'It is damaged: begin the distillation again in another folder.'

/** How many texts there are of each kind. */
export function countByKind(texts: readonly DistillText[]): Record<string, number> {
  const counts: Record<string, number> = {}
  for (const { kind } of texts) counts[kind] = (counts[kind] ?? 0) + 1
  return counts
}
