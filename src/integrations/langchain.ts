/**
 * Refinement inside LangChain.js: a document compressor for its ContextualCompressionRetriever. Needs `@langchain/core`.
 *
 * @packageDocumentation
 */
import type { Callbacks } from '@langchain/core/callbacks/manager'
import { Document, type DocumentInterface } from '@langchain/core/documents'
import { BaseDocumentCompressor } from '@langchain/core/retrievers/document_compressors'
import { type Encoder, openEncoder } from '../encoder/index.ts'
import {
  checkFolderOptions,
  createRefiner,
  type FolderOptions,
  type Refinement,
  type Refiner,
  type RefinerOptions,
} from './refiner.ts'

export type { FolderOptions, RefinedRange, Refinement, RefinementFailure, RefinerOptions } from './refiner.ts'

/**
 * Cuts retrieved documents down to what bears on the question. Order, metadata and ids stay; the kept ranges, as offsets into the
 * document that came in, stand in its metadata under `canopy` ({@link Refinement}), and `loc.lines` of LangChain's splitters says which
 * lines are left. Documents without words, and whatever is no text, go on as they are. When refinement fails or takes longer than
 * `timeout`, all of them do, and `onError` is told.
 *
 * @example
 * const compressor = await CanopyCompressor.fromFolder('runs/quickstart/export', { titleKey: 'title', timeout: 2_000 })
 * const retriever = new ContextualCompressionRetriever({ baseRetriever, baseCompressor: compressor })
 */
export class CanopyCompressor extends BaseDocumentCompressor {
  readonly #refiner: Refiner
  /** The encoder, where it was opened here. */
  #opened: Encoder | undefined

  /** An encoder that is given stays its owner's to close. */
  constructor({ encoder, ...options }: RefinerOptions & { encoder: Pick<Encoder, 'refine'> }) {
    super()
    this.#refiner = createRefiner(encoder, options)
  }

  /**
   * Opens the encoder of a folder, as `openEncoder` does; `close()` closes it.
   *
   * @throws InputError for a folder that is no encoder; RangeError for options that there are none of
   */
  static async fromFolder(folder: string, given: FolderOptions = {}): Promise<CanopyCompressor> {
    checkFolderOptions(given)
    const { open, ...options } = given
    const encoder = await openEncoder(folder, open)
    const compressor = new CanopyCompressor({ ...options, encoder })
    compressor.#opened = encoder
    return compressor
  }

  /** @throws the reason of a signal, when that is aborted; never because refinement failed */
  override compressDocuments(
    documents: DocumentInterface[],
    query: string,
    _callbacks?: Callbacks,
    { signal }: { signal?: AbortSignal } = {},
  ): Promise<DocumentInterface[]> {
    const passage = (document: DocumentInterface) =>
      typeof document.pageContent === 'string'
        ? { text: document.pageContent, metadata: document.metadata ?? {} }
        : undefined
    return this.#refiner.refine(
      query,
      documents,
      passage,
      ({ id, metadata, pageContent }, _, { text, refinement, suffix }) =>
        new Document({
          pageContent: text,
          metadata: {
            ...metadata,
            ...lines(metadata, pageContent, refinement),
            [this.#refiner.metadataKey]: refinement,
          },
          ...(id !== undefined && { id: `${id}${suffix}` }),
        }),
      signal,
    )
  }

  /** Closes the encoder where the compressor opened it. */
  async close(): Promise<void> {
    await this.#opened?.close()
  }
}

/**
 * `loc.lines` of LangChain's text splitters, `from` the first line to the last, for what is left of a document: from the first kept
 * range to the last. Where it does not fit the document's own line breaks it stays as it is.
 */
function lines(
  metadata: Readonly<Record<string, unknown>>,
  text: string,
  { modality, ranges }: Refinement,
): { loc?: object } {
  const loc = metadata?.loc as { lines?: { from?: unknown; to?: unknown } } | null | undefined
  const { from, to } = loc?.lines ?? {}
  const [first, last] = [ranges[0], ranges.at(-1)]
  if (typeof from !== 'number' || typeof to !== 'number' || modality !== 'text') return {}
  if (first === undefined || last === undefined || to - from !== breaks(text)) return {}
  return {
    loc: {
      ...loc,
      lines: { from: from + breaks(text.slice(0, first.start)), to: from + breaks(text.slice(0, last.end)) },
    },
  }
}

const breaks = (text: string): number => text.split('\n').length - 1
