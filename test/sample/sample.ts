import { join, resolve } from 'node:path'
import { openDataset } from '../../src/data/index.ts'
import { buildHierarchy, goldLeaves, type Hierarchy, type Item, type Question } from '../../src/hierarchy/index.ts'

export const root = resolve(import.meta.dirname, '../..')
export const folder = join(root, 'datasets', 'sample')

/** A question and the gold item it is asked about. */
export interface Instance {
  question: Question
  hierarchy: Hierarchy
  /** [leaves]. */
  gold: boolean[]
}

export interface Sample {
  instances: Instance[]
  /** Every item that a question names, by its id. */
  items: Map<string, Item>
  /** The instances of a split, of one kind of items or of all. */
  of(split: string, modality?: Item['modality']): Instance[]
}

/** Reads datasets/sample whole. */
export async function readSample(): Promise<Sample> {
  const instances: Instance[] = []
  const items = new Map<string, Item>()
  const dataset = await openDataset(folder)
  try {
    for await (const { question } of dataset.questions()) {
      for (const id of question.retrieved ?? []) items.set(id, await dataset.item(id))
      for (const entry of question.gold) {
        const hierarchy = buildHierarchy(await dataset.item(entry.item))
        instances.push({ question, hierarchy, gold: goldLeaves(hierarchy, entry).gold })
      }
    }
  } finally {
    await dataset.close()
  }
  const of = (split: string, modality?: Item['modality']): Instance[] =>
    instances.filter(
      ({ question, hierarchy }) =>
        question.split === split && (modality === undefined || hierarchy.item.modality === modality),
    )
  return { instances, items, of }
}
