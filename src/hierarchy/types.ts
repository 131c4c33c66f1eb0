/** A node of an item's hierarchy: the contiguous leaves `[from, to)`. Nodes hold ranges, never copies of text. */
export interface TreeNode {
  from: number
  to: number
  children: TreeNode[]
}

/** Offsets are UTF-16 code units into `text`. */
export interface TextItem {
  id: string
  modality: 'text'
  title?: string
  text: string
  sentences?: [number, number][]
}

export interface TableItem {
  id: string
  modality: 'table'
  title?: string
  caption?: string
  header: string[]
  rows: string[][]
}

export interface ImageItem {
  id: string
  modality: 'image'
  title?: string
  /** Path relative to the dataset folder. */
  image: string
}

export interface VideoItem {
  id: string
  modality: 'video'
  title?: string
  /** Path relative to the dataset folder. */
  video?: string
  /** Seconds on the source video's clock. */
  start: number
  end: number
}

/** One retrieved unit. */
export type Item = TextItem | TableItem | ImageItem | VideoItem

/** Where the evidence lies in one item; exactly one of the location fields is present. */
export type GoldEntry =
  | { item: string; spans: ([number, number] | [number, number, string])[] }
  | { item: string; quotes: string[] }
  | { item: string; rows: number[] }
  | { item: string; times: [number, number][] }
  | { item: string; whole: true }

export interface Question {
  id: string
  benchmark: string
  split: string
  question: string
  answers: string[]
  /** What questions of one origin share; validation splits and bootstrap clusters never separate it. */
  source?: string
  /**
   * Marks questions of a kind that results show apart, as a benchmark of its own (`benchmark:variant`) outside pooled figures;
   * OTT-QA's whose evidence was traced to several rows, for one.
   */
  variant?: string
  gold: GoldEntry[]
  /** Items a retriever returned for the question, gold or not. */
  retrieved?: string[]
}
