/**
 * What the page holds for its evidence viewer: plain JSON, written by the report and read in the browser. Texts stand there
 * once, however many questions name them.
 */
export interface ViewerData {
  evaluations: { name: string }[]
  items: ViewerItem[]
  questions: ViewerQuestion[]
}

/** The content of an item, by leaf. */
export type ViewerItem = { id: string; title?: string } & (
  | { modality: 'text'; leaves: string[] }
  | { modality: 'table'; caption?: string; header: string[]; rows: string[][] }
  | { modality: 'image'; path: string; picture?: Thumbnail }
  /** `segments`: whole milliseconds on the source video's clock. */
  | { modality: 'video'; path?: string; segments: [number, number][]; frames?: (Thumbnail | null)[] }
)

/** A picture inside the page. */
export interface Thumbnail {
  /** A `data:` address. */
  src: string
  width: number
  height: number
}

export interface ViewerQuestion {
  /** Place among the evaluations. */
  evaluation: number
  /** The name under which results count it. */
  benchmark: string
  id: string
  question: string
  answers: string[]
  /** Gold items first. */
  items: ViewerInstance[]
}

export const VIEWER_ENCODERS = ['fine-tuned', 'frozen'] as const
export type ViewerEncoder = (typeof VIEWER_ENCODERS)[number]

/** An item as one question sees it. */
export interface ViewerInstance {
  /** Place among the items. */
  item: number
  role: 'gold' | 'other'
  branching: number
  /** Leaves that hold evidence. */
  gold: number[]
  /** Nodes, in pre-order, that the encoder saw only the beginning of. */
  truncated?: number[]
  /** Decision nodes, as places in pre-order. */
  decisions: number[]
  /** Those of them at which refinement does not do what gold asks. */
  wrong: Partial<Record<ViewerEncoder, number[]>>
  /** Tokens of the leaves, and of what the item repeats in front of every node. */
  leafTokens: number[]
  headerTokens: number
  /** [nodes] in pre-order, rounded so that no comparison of a node with its parent changes. */
  scores: Partial<Record<ViewerEncoder, number[]>>
}

/** Number of leaves of an item. */
export function leafCount(item: ViewerItem): number {
  switch (item.modality) {
    case 'text':
      return item.leaves.length
    case 'table':
      return item.rows.length
    case 'video':
      return item.segments.length
    case 'image':
      return 1
  }
}
