/**
 * Disjoint sets over 0, 1, 2, … (union-find with path halving). Questions that share a gold item, directly or through
 * others, end in one set: its members share a `source`.
 */
export interface DisjointSets {
  /** The representative of the set of `element`. */
  find(element: number): number
  /** Makes one set of the two. */
  union(a: number, b: number): void
}

export function createDisjointSets(): DisjointSets {
  let parent = new Int32Array(0)
  const reserve = (element: number): void => {
    if (element < parent.length) return
    const larger = new Int32Array(Math.max(element + 1, parent.length * 2, 1024))
    larger.set(parent)
    for (let i = parent.length; i < larger.length; i++) larger[i] = i
    parent = larger
  }
  const find = (element: number): number => {
    reserve(element)
    let at = element
    while (parent[at] !== at) {
      parent[at] = parent[parent[at]!]!
      at = parent[at]!
    }
    return at
  }
  return {
    find,
    union(a, b) {
      const [first, second] = [find(a), find(b)]
      // the smaller number represents: the set's first member, whatever the order of the unions
      parent[Math.max(first, second)] = Math.min(first, second)
    },
  }
}
