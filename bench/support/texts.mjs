// Texts of a dataset by what they are: single sentences, whole passages, whole tables, regions inside either, and questions.
import { namedItems, openDataset } from '../../dist/data/index.js'
import { buildHierarchy, extentOf, readsAsText, renderNode } from '../../dist/hierarchy/index.js'

export const KINDS = ['sentences', 'passages', 'tables', 'regions', 'questions']

/**
 * The distinct texts of a split, from the items that its questions name. Sentences stand alone; passages, tables and regions (every
 * node between the root and the leaves) as an encoder reads them, title and column header included. Pictures and videos are left out.
 *
 * @returns kind -> texts, in the order of the dataset
 */
export async function textsByKind(folder, split) {
  const kinds = Object.fromEntries(KINDS.map((kind) => [kind, new Set()]))
  const dataset = await openDataset(folder)
  const named = new Set()
  for await (const { question } of dataset.questions(split)) {
    kinds.questions.add(question.question)
    for (const id of namedItems(question)) named.add(id)
  }
  for await (const { item } of dataset.items()) {
    if (!named.has(item.id) || !readsAsText(item)) continue
    const hierarchy = buildHierarchy(item, 2)
    for (const node of hierarchy.nodes) {
      const text = renderNode(hierarchy, node, { title: true, tableFormat: 'markdown' })
      if (node === hierarchy.root) kinds[item.modality === 'table' ? 'tables' : 'passages'].add(text)
      else if (node.children.length > 0) kinds.regions.add(text)
      else if (item.modality === 'text') kinds.sentences.add(item.text.slice(...extentOf(hierarchy, node)).trim())
    }
  }
  await dataset.close()
  return Object.fromEntries(KINDS.map((kind) => [kind, [...kinds[kind]]]))
}

/** Questions of a split, each with `count` items to refine: those it names first, then others that the split names, at random. */
export async function refinementCases(folder, split, { questions, count, random }) {
  const dataset = await openDataset(folder)
  const asked = []
  const named = new Set()
  for await (const { question } of dataset.questions(split)) {
    asked.push({ question: question.question, ids: namedItems(question) })
    for (const id of namedItems(question)) named.add(id)
  }
  const items = new Map()
  for await (const { item } of dataset.items()) if (named.has(item.id) && readsAsText(item)) items.set(item.id, item)
  await dataset.close()
  random.shuffle(asked)
  const others = [...items.keys()]
  return asked.slice(0, questions).map(({ question, ids }) => {
    random.shuffle(others)
    const chosen = [...new Set([...ids, ...others])].filter((id) => items.has(id)).slice(0, count)
    return { question, items: chosen.map((id) => items.get(id)) }
  })
}
