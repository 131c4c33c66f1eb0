import seedrandom from 'seedrandom'

/** A source of repeatable random numbers: the same seed gives the same sequence on every machine. */
export interface Random {
  /** Uniform in [0, 1). */
  next(): number
  /** A whole number, uniform in [0, n). */
  int(n: number): number
  /** Standard normal. */
  normal(): number
  /** The same array, shuffled in place (Fisher-Yates). */
  shuffle<T>(array: T[]): T[]
}

/** A generator for `seed` (ARC4 through `seedrandom`). Give each use its own seed, e.g. `${seed}/order`. */
export function createRandom(seed: string): Random {
  const generator = seedrandom(seed)
  const next = (): number => generator()
  const int = (n: number): number => {
    if (!Number.isSafeInteger(n) || n < 1) throw new RangeError(`int(n) needs a whole n of 1 or more, not ${n}`)
    return Math.floor(next() * n)
  }
  let spare: number | undefined
  return {
    next,
    int,
    // Box-Muller: r·cos φ and r·sin φ are independent and normal for r = sqrt(-2 ln u), u in (0, 1]
    normal() {
      if (spare !== undefined) {
        const value = spare
        spare = undefined
        return value
      }
      const radius = Math.sqrt(-2 * Math.log(1 - next()))
      const angle = 2 * Math.PI * next()
      spare = radius * Math.sin(angle)
      return radius * Math.cos(angle)
    },
    shuffle(array) {
      for (let i = array.length - 1; i > 0; i--) {
        const j = int(i + 1)
        ;[array[i], array[j]] = [array[j]!, array[i]!]
      }
      return array
    },
  }
}
