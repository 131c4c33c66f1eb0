/** Those of an object's properties that are given: options that were left out, or are undefined, are not there. */
export function given<T extends object, K extends keyof T>(
  options: T,
  names: readonly K[],
): { [P in K]?: Exclude<T[P], undefined> } {
  const found: { [P in K]?: T[P] } = {}
  for (const name of names) if (options[name] !== undefined) found[name] = options[name]
  return found as { [P in K]?: Exclude<T[P], undefined> }
}
