import type { Hierarchy, Item } from '../../hierarchy/index.ts'
import { checkQuestion, type RefinedItem } from '../../refine/index.ts'
import { InputError } from '../../support/errors.ts'
import type { Embedder, EmbedOptions } from '../embedding/embed.ts'
import type { CanopySettings } from '../folder/canopy.ts'
import type { Side } from '../folder/profile.ts'
import { encoderInput } from '../input/node-input.ts'
import { type AskedQuestion, type Memory, type PreparedItem, shapeOf, sizeOf } from './memory.ts'
import { type PackedItems, packRefined, squaresOf, unpackRefined } from './packed.ts'
import { contentKey, type RefineInput, readableHierarchy } from './refine-input.ts'

export type Encoders = Record<Side, Pick<Embedder, 'embed' | 'dimension' | 'reader' | 'profile'>>
export type RefineItemsSettings = Pick<CanopySettings, 'title' | 'tableFormat' | 'branching' | 'margin'>

export interface RefineItemsOptions extends EmbedOptions {
  /**
   * Remembers texts, tables and questions, of these encoders and settings only; its items must not be changed by anybody. What is
   * remembered changes no number.
   */
  memory?: Memory | undefined
}

/**
 * Refines items for a question, with the same segmentation, rendering, prompts, frames and batching as training. Scores are compared
 * inside an item only.
 *
 * @returns one result an item, in input order
 * @throws InputError for an empty question; for an item without text or with sentences that do not fit it, naming the item; for a
 *   picture or video that cannot be read, naming the file, or that the encoder does not read
 */
export async function refineItems(
  encoders: Encoders,
  settings: RefineItemsSettings,
  question: string,
  items: readonly RefineInput[],
  options: RefineItemsOptions = {},
): Promise<RefinedItem[]> {
  return unpackRefined(await refinePacked(encoders, settings, question, items, options))
}

/** {@link refineItems}, as its results go from thread to thread. */
export async function refinePacked(
  encoders: Encoders,
  settings: RefineItemsSettings,
  question: string,
  items: readonly RefineInput[],
  options: RefineItemsOptions = {},
): Promise<PackedItems> {
  checkQuestion(question)
  const { dimension } = encoders.node
  if (encoders.query.dimension !== dimension)
    throw new InputError(
      `The query encoder's embeddings have ${encoders.query.dimension} numbers, the node encoder's ${dimension}; they are no pair.`,
    )
  const prepare = await readItems(encoders, settings, items, options)
  const asked = await askQuestion(encoders, question, options)
  const prepared = await prepare()
  const { memory } = options
  return packRefined(
    prepared.map((item, i) => {
      const input = items[i]
      const { id, title } = typeof input === 'object' ? input : {}
      return { item, shape: shapeOf(item.leaves.length, settings.branching, memory), id, title }
    }),
    asked,
    settings,
  )
}

/** Items that are embedded together when they are only to be remembered: breaking it off loses no more. */
const PREPARED_AT_ONCE = 64

/**
 * Embeds items for questions to come: into a memory, and wherever the embedder keeps its embeddings.
 *
 * @throws InputError as {@link refineItems} does
 */
export async function prepareItems(
  encoders: Encoders,
  settings: RefineItemsSettings,
  items: readonly RefineInput[],
  options: RefineItemsOptions = {},
): Promise<void> {
  for (let first = 0; first < items.length; first += PREPARED_AT_ONCE) {
    const prepare = await readItems(encoders, settings, items.slice(first, first + PREPARED_AT_ONCE), options, first)
    await prepare()
  }
}

/**
 * Reads items as far as no encoder is needed, so that bad ones are told before anything is computed.
 *
 * @param firstPlace of the items among their likes, for messages
 * @returns what embeds them: the prepared items, in input order
 */
async function readItems(
  { node }: Encoders,
  settings: RefineItemsSettings,
  items: readonly RefineInput[],
  options: RefineItemsOptions,
  firstPlace = 0,
): Promise<() => Promise<PreparedItem[]>> {
  const { memory, signal } = options
  const { dimension } = node
  const encoder = { id: node.profile.id, multimodal: node.reader.multimodal }
  const keys = items.map((input) => (memory === undefined ? undefined : contentKey(input)))
  const prepared = keys.map((key) => (key === undefined ? undefined : memory?.items.get(key)))
  const missing: { place: number; tree: Hierarchy }[] = []
  for (const [place, input] of items.entries()) {
    if (prepared[place] !== undefined) continue
    const tree = await readableHierarchy(input, firstPlace + place, encoder, settings.branching, signal)
    missing.push({ place, tree })
  }
  return async () => {
    if (missing.length === 0) return prepared as PreparedItem[]
    // By items, so that what an item's regions score depends neither on the items beside it nor on what is remembered (where rows are
    // packed: see `groups`). Items of one region share their runs: nothing is decided there, and each by itself would be a run of few tokens.
    const several = missing.filter(({ tree }) => tree.nodes.length > 1)
    const single = missing.filter(({ tree }) => tree.nodes.length === 1)
    const groups = [...several.map(({ tree }) => tree.nodes.length), single.length]
    const computed = [...several, ...single]
    const inputs = computed.flatMap(({ tree }) =>
      tree.nodes.map((each) => encoderInput(tree, each, settings, undefined)),
    )
    const embedded = await node.embed(inputs, 'node', { ...options, groups })
    let first = 0
    for (const { place, tree } of computed) {
      const end = first + tree.nodes.length
      // a copy, for a part of the array would keep all of it
      const embeddings = embedded.embeddings.slice(first * dimension, end * dimension)
      const numbers = {
        embeddings,
        squares: squaresOf(embeddings, dimension),
        truncated: Uint8Array.from(embedded.truncated.slice(first, end), Number),
      }
      const item = { item: whatIsRendered(tree.item), leaves: tree.leaves, ...numbers }
      const key = keys[place]
      prepared[place] = { ...item, bytes: sizeOf(item, key) }
      if (key !== undefined) memory?.items.put(key, prepared[place])
      first = end
    }
    return prepared as PreparedItem[]
  }
}

/** An item without what no text of its regions is made of. */
function whatIsRendered(item: Item): Item {
  if (item.modality === 'text') return { id: item.id, modality: 'text', text: item.text }
  if (item.modality === 'table') return { id: item.id, modality: 'table', header: item.header, rows: item.rows }
  return item
}

async function askQuestion({ query }: Encoders, question: string, options: RefineItemsOptions): Promise<AskedQuestion> {
  const known = options.memory?.questions.get(question)
  if (known !== undefined) return known
  const { embeddings } = await query.embed([{ text: question }], 'query', options)
  const asked = { question, embedding: embeddings, square: squaresOf(embeddings, query.dimension)[0] as number }
  return options.memory?.questions.put(question, asked) ?? asked
}
