// Where the gold of decision nodes lies in binary trees over sentences and rows: what a policy that never reads the question
// could use.

/** One line for each split and kind of item, and one for each split as a whole. */
export function balanceLines(questions, entries) {
  const entryOf = new Map(entries.map((entry) => [entry.item.id, entry]))
  const lines = []
  for (const split of new Set(questions.map((question) => question.split))) {
    const own = questions.filter((question) => question.split === split)
    const kinds = [...new Set(own.map(({ gold }) => entryOf.get(gold[0].item).item.modality))]
    for (const kind of kinds.length > 1 ? [...kinds, 'all'] : kinds) {
      const asked = own.filter(({ gold }) => kind === 'all' || entryOf.get(gold[0].item).item.modality === kind)
      lines.push(`${split}, ${kind}: ${summary(asked, entryOf)}`)
    }
  }
  return lines
}

function summary(questions, entryOf) {
  const items = new Set(questions.map(({ gold }) => gold[0].item)).size
  const cases = { left: 0, right: 0, both: 0, full: 0 }
  const thirds = [0, 0, 0]
  for (const { gold } of questions) {
    const isGold = goldParts(gold[0], entryOf.get(gold[0].item))
    if (isGold === undefined) continue
    countCases(isGold, cases)
    for (const [i, part] of isGold.entries()) if (part) thirds[Math.floor((3 * (i + 0.5)) / isGold.length)] += 1
  }
  const counted = `${items} items, ${questions.length} questions`
  const total = cases.left + cases.right + cases.both + cases.full
  if (total === 0) return counted
  const share = (n, of) => `${((100 * n) / of).toFixed(1)} %`
  const shares = Object.entries(cases).map(([name, n]) => `${name} ${n} (${share(n, total)})`)
  const leaves = thirds.reduce((a, b) => a + b)
  const spread = thirds.map((n) => share(n, leaves)).join(', ')
  return `${counted}, ${total} decision nodes: ${shares.join(', ')}; gold by thirds of the item ${spread}`
}

/** For each sentence or row whether it is gold; undefined for pictures and clips. */
function goldParts({ spans, rows }, { item, leaves }) {
  if (rows !== undefined) return leaves.map((_, row) => rows.includes(row))
  return spans && item.sentences.map(([start]) => spans.some((span) => span[0] === start))
}

function countCases(isGold, cases) {
  if (isGold.length === 1 || !isGold.includes(true)) return
  if (!isGold.includes(false)) {
    cases.full += 1
    return
  }
  const left = isGold.slice(0, Math.ceil(isGold.length / 2))
  const right = isGold.slice(left.length)
  cases[!right.includes(true) ? 'left' : !left.includes(true) ? 'right' : 'both'] += 1
  countCases(left, cases)
  countCases(right, cases)
}
