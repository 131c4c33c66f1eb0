/** The values that were used last, as many as a total size allows. */
export interface Lru<T> {
  get(key: string): T | undefined
  /** Keeps a value, and lets go of those unused for longest where it gets too much; one that is too much alone is not kept. */
  put(key: string, value: T): T
  clear(): void
}

/**
 * @param most of what `sizeOf` adds up to
 * @param sizeOf how much a value counts; 1 where absent
 */
export function lru<T>(most: number, sizeOf: (value: T) => number = () => 1): Lru<T> {
  // in the order of their last use
  const kept = new Map<string, T>()
  let size = 0
  const drop = (key: string): void => {
    const value = kept.get(key)
    if (value !== undefined) size -= sizeOf(value)
    kept.delete(key)
  }
  const put = (key: string, value: T): T => {
    drop(key)
    if (sizeOf(value) > most) return value
    kept.set(key, value)
    size += sizeOf(value)
    for (const oldest of kept.keys()) {
      if (size <= most) break
      drop(oldest)
    }
    return value
  }
  return {
    get(key) {
      const value = kept.get(key)
      return value === undefined ? undefined : put(key, value)
    },
    put,
    clear() {
      kept.clear()
      size = 0
    },
  }
}
