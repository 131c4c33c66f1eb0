// What the runtimes are compared on: whole items of real questions with all their nodes, and questions of ten items for the waiting
// time; what the trained graph gives for them; and the decisions that a runtime's own embeddings lead to.
import { openDataset } from '../../dist/data/index.js'
import { openEmbedder } from '../../dist/encoder/index.js'
import { accuracyOf, quantile } from '../../dist/eval/index.js'
import { buildHierarchy, goldLeaves, readsAsText, renderNode } from '../../dist/hierarchy/index.js'
import { refinementCases } from '../support/texts.mjs'

/**
 * Instances (a question and one of its items, with gold that a decision can be right or wrong about) of the datasets in turn, until
 * they have `nodes` distinct texts within the encoder's limit. Texts over the limit stand apart in `long`.
 *
 * @param fits whether a text is within the limit
 * @returns `{ texts, long, questions, instances }`; an instance's `rows` index texts, then long ones; its `question` questions
 */
export async function chooseNodes(datasets, split, { nodes, settings, fits }) {
  const [texts, long, questions, instances] = [new Map(), new Map(), new Map(), []]
  const place = (map, key) => map.get(key) ?? map.set(key, map.size).get(key)
  const opened = []
  for (const folder of datasets) {
    const dataset = await openDataset(folder)
    opened.push({ dataset, asked: dataset.questions(split)[Symbol.asyncIterator]() })
  }
  let left = opened.length
  while (texts.size < nodes && left > 0) {
    left = 0
    for (const { dataset, asked } of opened) {
      if (texts.size >= nodes) break
      const { done, value } = await asked.next()
      if (done) continue
      left++
      const { question } = value
      for (const entry of question.gold) {
        const item = await dataset.item(entry.item)
        if (!readsAsText(item) || texts.size >= nodes) continue
        const hierarchy = buildHierarchy(item, settings.branching)
        const { gold } = goldLeaves(hierarchy, entry)
        if (new Set(gold).size < 2) continue
        const places = hierarchy.nodes.map((node) => {
          const text = renderNode(hierarchy, node, settings)
          return fits(text) ? { map: texts, at: place(texts, text) } : { map: long, at: place(long, text) }
        })
        const at = place(questions, question.question)
        instances.push({ benchmark: question.benchmark, question: at, nodes: hierarchy.nodes, gold, places })
      }
    }
  }
  for (const { dataset } of opened) await dataset.close()
  for (const instance of instances)
    instance.rows = instance.places.map(({ map, at }) => (map === texts ? at : texts.size + at))
  return { texts: [...texts.keys()], long: [...long.keys()], questions: [...questions.keys()], instances }
}

/** Questions with ten items each, and the texts of all nodes of these. */
export async function chooseQueries(folder, split, { queries, settings, random }) {
  const cases = await refinementCases(folder, split, { questions: queries, count: 10, random })
  return cases.map(({ question, items }) => ({
    question,
    items,
    texts: items.flatMap((item) => {
      const hierarchy = buildHierarchy(item, settings.branching)
      return hierarchy.nodes.map((node) => renderNode(hierarchy, node, settings))
    }),
  }))
}

/** What the trained graph, in rows without padding, and f0 give. */
export async function trainedEmbeddings(pair, { texts, long, questions }, threads) {
  const embed = async (profile, inputs, side, adapter) => {
    const embedder = await openEmbedder(profile, { threads, ...(adapter === undefined ? {} : { adapter }) })
    const { embeddings } = await embedder.embedTexts(inputs, side)
    await embedder.close()
    return embeddings
  }
  return {
    nodes: await embed(pair.encoder, [...texts, ...long], 'node', pair.adapter),
    questions: await embed(pair.query, questions, 'query'),
  }
}

/** Share of decisions that are right by the cosine of a runtime's own embeddings of questions and nodes. */
export function decisionAccuracy({ instances }, { nodes, questions }, dimension) {
  const trees = instances.map(({ benchmark, nodes: tree, gold, rows, question }) => ({
    ...{ benchmark, nodes: tree, gold },
    scores: rows.map((row) => cosine(questions, question, nodes, row, dimension)),
  }))
  const { decisions, decisionAccuracy } = accuracyOf(trees)
  return { decisions, decisionAccuracy }
}

/** Smallest and mean cosine of rows [from, to) of two matrices; NaN for no rows. */
export function cosines(a, b, dimension, from, to) {
  const all = Array.from({ length: to - from }, (_, i) => cosine(a, from + i, b, from + i, dimension))
  return {
    // not Math.min alone: a NaN has to show
    min: all.some(Number.isNaN) || all.length === 0 ? Number.NaN : Math.min(...all),
    mean: all.reduce((sum, value) => sum + value, 0) / all.length,
  }
}

function cosine(a, i, b, j, width) {
  let [ab, aa, bb] = [0, 0, 0]
  for (let k = 0; k < width; k++) {
    const [x, y] = [a[i * width + k], b[j * width + k]]
    ab += x * y
    aa += x * x
    bb += y * y
  }
  return ab / Math.sqrt(aa * bb)
}

export const quantiles = (milliseconds) => {
  if (milliseconds.length === 0) return { p50: Number.NaN, p95: Number.NaN }
  const sorted = Float64Array.from(milliseconds).sort()
  return { p50: quantile(sorted, 0.5), p95: quantile(sorted, 0.95) }
}
