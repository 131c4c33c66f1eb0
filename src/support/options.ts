/**
 * Refuses options that there are none of: programs in JavaScript, and in TypeScript by way of a variable, are told by nobody else.
 *
 * @param known all names, and no others: a literal that `satisfies Record<keyof Options, true>`
 * @param whose whose options they are, for the message
 * @param hint what to do about a name, where something is known of it
 * @throws RangeError naming the option and the known one that is written most like it
 */
export function refuseUnknown(
  options: object,
  known: Readonly<Record<string, true>>,
  whose: string,
  hint: (name: string) => string | undefined = () => undefined,
): void {
  for (const [name, value] of Object.entries(options)) {
    if (Object.hasOwn(known, name) || value === undefined) continue
    const near = nearest(name, Object.keys(known))
    const help = hint(name) ?? (near === undefined ? '' : `Did you mean "${near}"?`)
    throw new RangeError(`${whose} has no option "${name}". ${help}`.trim())
  }
}

/** The name that takes the fewest changes, where those are at most a third of its letters. */
function nearest(name: string, names: readonly string[]): string | undefined {
  let found: { name: string; changes: number } | undefined
  for (const candidate of names) {
    const changes = changesBetween(name.toLowerCase(), candidate.toLowerCase())
    if (changes <= candidate.length / 3 && changes < (found?.changes ?? Number.POSITIVE_INFINITY))
      found = { name: candidate, changes }
  }
  return found?.name
}

/** Letters to put in, leave out or replace (Levenshtein distance). */
function changesBetween(a: string, b: string): number {
  // names of options are short; whatever is longer is like none of them
  if (a.length > 64) return Number.POSITIVE_INFINITY
  let row = Array.from({ length: b.length + 1 }, (_, j) => j)
  for (let i = 1; i <= a.length; i++) {
    const next = [i]
    for (let j = 1; j <= b.length; j++) {
      const replaced = (row[j - 1] as number) + (a[i - 1] === b[j - 1] ? 0 : 1)
      next.push(Math.min(replaced, (row[j] as number) + 1, (next[j - 1] as number) + 1))
    }
    row = next
  }
  return row[b.length] as number
}
