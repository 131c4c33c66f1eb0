// The questions of an entry with their gold, checked against the parts of the item that the gold names.

import { createHash } from 'node:crypto'

const RETRIEVED = 4
/** Words of an answer that carry no content: they need not occur in the gold parts. */
const FUNCTION_WORDS = new Set(
  'a against an and are at be but by each from has in is it not of on one only or so that the then they to was who with yes'.split(
    ' ',
  ),
)

/**
 * @throws Error naming the question when its gold parts do not say every word of its answer, or one of them says none
 */
export function makeQuestion({ subject, split, item, leaves, locate, always = '' }, { q, answer, gold }, benchmark) {
  const fail = (message) => {
    throw new Error(`"${q}" (${item.title}): ${message}`)
  }
  const evidence = gold.map((leaf) => leaves[leaf] ?? fail(`the item has no part ${leaf}`))
  if (gold.some((leaf, i) => i > 0 && leaf <= gold[i - 1])) fail('its gold is not in ascending order')
  const words = wordsOf(answer).filter((word) => !FUNCTION_WORDS.has(word))
  const missing = words.filter((word) => ![always, ...evidence].some((part) => wordsOf(part).includes(word)))
  if (missing.length > 0) fail(`the gold parts do not say "${missing.join(' ')}"`)
  for (const part of evidence) {
    if (!words.some((word) => wordsOf(part).includes(word))) fail(`no part of the answer is in "${part}"`)
  }
  const entry = { item: item.id, ...locate(gold) }
  return { id: '', benchmark, split, question: q, answers: [answer], source: subject, gold: [entry] }
}

/**
 * Gives questions their ids, and what a retriever might return: the gold item, the subject's other ones, and others of the split,
 * in some order.
 */
export function numberQuestions(questions, entries) {
  const seen = new Map()
  for (const question of questions) {
    const name = `${question.split}-${question.source}`
    const number = (seen.get(name) ?? 0) + 1
    seen.set(name, number)
    question.id = `${name}-${number}`
    const rank = (id) => createHash('sha256').update(`${question.id} ${id}`).digest('hex')
    const byRank = (a, b) => (rank(a) < rank(b) ? -1 : 1)
    const [gold] = question.gold
    const own = entries.filter(({ split, item }) => split === question.split && item.id !== gold.item)
    const near = own.filter(({ subject }) => subject === question.source)
    const far = own.filter(({ subject }) => subject !== question.source)
    const others = [near, far].flatMap((part) => part.map(({ item }) => item.id).sort(byRank))
    question.retrieved = [gold.item, ...others.slice(0, RETRIEVED - 1)].sort(byRank)
  }
}

function wordsOf(text) {
  return text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? []
}
