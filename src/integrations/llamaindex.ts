/**
 * Refinement inside LlamaIndex.TS: a node postprocessor. Needs `@llamaindex/core`.
 *
 * @packageDocumentation
 */
import type { MessageContent } from '@llamaindex/core/llms'
import type { BaseNodePostprocessor } from '@llamaindex/core/postprocessor'
import { type BaseNode, type NodeWithScore, ObjectType, type TextNode } from '@llamaindex/core/schema'
import { extractText } from '@llamaindex/core/utils'
import { type Encoder, openEncoder } from '../encoder/index.ts'
import {
  checkFolderOptions,
  createRefiner,
  type FolderOptions,
  type Piece,
  type Refiner,
  type RefinerOptions,
} from './refiner.ts'

export type { FolderOptions, RefinedRange, Refinement, RefinementFailure, RefinerOptions } from './refiner.ts'

/**
 * Cuts retrieved nodes down to what bears on the question. Order, scores, ids, metadata and relationships stay; `startCharIdx` and
 * `endCharIdx` go from the first kept range to the last. The kept ranges, as offsets into the node that came in, stand in its metadata
 * under `canopy` (`Refinement`), which neither the language model nor an embedding reads. Nodes without words, and those that are no
 * text, go on as they are. When refinement fails or takes longer than `timeout`, all of them do, and `onError` is told.
 *
 * @example
 * const postprocessor = await CanopyPostprocessor.fromFolder('runs/quickstart/export', { timeout: 2_000 })
 * const engine = new RetrieverQueryEngine(retriever, synthesizer, [postprocessor])
 */
export class CanopyPostprocessor implements BaseNodePostprocessor {
  readonly #refiner: Refiner
  /** The encoder, where it was opened here. */
  #opened: Encoder | undefined

  /** An encoder that is given stays its owner's to close. */
  constructor({ encoder, ...options }: RefinerOptions & { encoder: Pick<Encoder, 'refine'> }) {
    this.#refiner = createRefiner(encoder, options)
  }

  /**
   * Opens the encoder of a folder, as `openEncoder` does; `close()` closes it.
   *
   * @throws InputError for a folder that is no encoder; RangeError for options that there are none of
   */
  static async fromFolder(folder: string, given: FolderOptions = {}): Promise<CanopyPostprocessor> {
    checkFolderOptions(given)
    const { open, ...options } = given
    const encoder = await openEncoder(folder, open)
    const postprocessor = new CanopyPostprocessor({ ...options, encoder })
    postprocessor.#opened = encoder
    return postprocessor
  }

  /** @throws the reason of a signal, when that is aborted; never because refinement failed */
  postprocessNodes(
    nodes: NodeWithScore[],
    query?: MessageContent,
    { signal }: { signal?: AbortSignal } = {},
  ): Promise<NodeWithScore[]> {
    return this.#refiner.refine(
      query == null ? '' : extractText(query),
      nodes,
      ({ node }) => (isText(node) ? { text: node.text, metadata: node.metadata ?? {} } : undefined),
      (scored, _, piece) => ({ ...scored, node: cut(scored.node as TextNode, piece, this.#refiner.metadataKey) }),
      signal,
    )
  }

  /** Closes the encoder where the postprocessor opened it. */
  async close(): Promise<void> {
    await this.#opened?.close()
  }
}

const TEXTS = [ObjectType.TEXT, ObjectType.DOCUMENT, ObjectType.INDEX]

// by its type, not its class: a program may have loaded the package's ESM and CommonJS forms
const isText = (node: BaseNode): node is TextNode =>
  TEXTS.includes(node.type) && 'text' in node && typeof node.text === 'string'

/** A copy of a node with what is left of it. */
function cut(node: TextNode, { text, refinement, suffix }: Piece, metadataKey: string): TextNode {
  const copy = node.clone() as TextNode
  copy.id_ = node.id_ + suffix
  copy.metadata = { ...copy.metadata, [metadataKey]: refinement }
  for (const keys of [copy.excludedLlmMetadataKeys, copy.excludedEmbedMetadataKeys])
    if (!keys.includes(metadataKey)) keys.push(metadataKey)
  // the constructor takes a start of 0 for none
  if (node.startCharIdx !== undefined) copy.startCharIdx = node.startCharIdx
  const { startCharIdx: start, endCharIdx: end } = node
  const [first, last] = [refinement.ranges[0], refinement.ranges.at(-1)]
  const fits = start === undefined ? end === node.text.length : end === undefined || end - start === node.text.length
  if (end !== undefined && fits && refinement.modality === 'text' && first !== undefined && last !== undefined) {
    copy.startCharIdx = (start ?? 0) + first.start
    copy.endCharIdx = (start ?? 0) + last.end
  }
  copy.setContent(text) // sets the hash, too
  return copy
}
