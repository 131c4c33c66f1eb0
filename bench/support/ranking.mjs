// Ranking a pool of texts for a question, and how well two sets of similarities agree in order.

/**
 * BM25 over texts in lower-case words (runs of letters and digits), with idf = ln(1 + (N − df + ½)/(df + ½)), never negative.
 * Source: Robertson & Zaragoza (2009), The Probabilistic Relevance Framework: BM25 and Beyond, 3.2; the idf as Lucene has it.
 *
 * @returns a function from a question to its scores, float64 [texts]
 */
export function bm25(texts, { k1 = 1.2, b = 0.75 } = {}) {
  const documents = texts.map(words)
  const meanLength = documents.reduce((sum, { length }) => sum + length, 0) / documents.length
  const postings = new Map()
  for (const [document, list] of documents.entries())
    for (const word of list) {
      const counts = postings.get(word) ?? new Map()
      postings.set(word, counts)
      counts.set(document, (counts.get(document) ?? 0) + 1)
    }
  return (question) => {
    const scores = new Float64Array(documents.length)
    // a word that the question repeats counts as often as it stands there
    for (const word of words(question)) {
      const counts = postings.get(word)
      if (counts === undefined) continue
      const idf = Math.log(1 + (documents.length - counts.size + 0.5) / (counts.size + 0.5))
      for (const [document, tf] of counts) {
        const length = documents[document].length / meanLength
        scores[document] += (idf * tf * (k1 + 1)) / (tf + k1 * (1 - b + b * length))
      }
    }
    return scores
  }
}

const words = (text) => text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? []

/**
 * The place, from 1, of one member when scores are put in descending order; the earlier of equal ones comes first.
 *
 * @throws RangeError for a score that is NaN: it is below none, and would come first
 */
export function rankAmong(scores, member) {
  let rank = 1
  for (const [other, score] of scores.entries()) {
    if (Number.isNaN(score)) throw new RangeError(`The score of text ${other} is not a number.`)
    if (score > scores[member] || (score === scores[member] && other < member)) rank++
  }
  return rank
}

/** Spearman's ρ: the correlation of the ranks, equal values sharing the mean of theirs. */
export function spearman(a, b) {
  return correlation(ranks(a), ranks(b))
}

function ranks(values) {
  const order = Uint32Array.from(values.keys()).sort((i, j) => values[i] - values[j])
  const out = new Float64Array(values.length)
  for (let start = 0; start < order.length; ) {
    let end = start + 1
    while (end < order.length && values[order[end]] === values[order[start]]) end++
    for (let n = start; n < end; n++) out[order[n]] = (start + end - 1) / 2
    start = end
  }
  return out
}

function correlation(a, b) {
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length
  const [meanA, meanB] = [mean(a), mean(b)]
  let [ab, aa, bb] = [0, 0, 0]
  for (let i = 0; i < a.length; i++) {
    const [x, y] = [a[i] - meanA, b[i] - meanB]
    ab += x * y
    aa += x * x
    bb += y * y
  }
  return ab / Math.sqrt(aa * bb)
}

/** Rows of [n, width] at length 1. */
export function unitRows(rows, width) {
  const out = Float32Array.from(rows)
  for (let start = 0; start < out.length; start += width) {
    const row = out.subarray(start, start + width)
    const norm = Math.sqrt(row.reduce((sum, value) => sum + value * value, 0))
    for (let k = 0; k < width; k++) row[k] /= Math.max(norm, 1e-12)
  }
  return out
}

/** Product of row `i` of a [_, width] and row `j` of b [_, width]. */
export function product(a, i, b, j, width) {
  let sum = 0
  for (let k = 0; k < width; k++) sum += a[i * width + k] * b[j * width + k]
  return sum
}
