/** Budgets are looked for in steps of so many tokens. */
const STEP = 64
/** No more is looked for. */
const MOST = 2 ** 20

/**
 * The most tokens, a multiple of 64 or `most`, for which `need`, which grows with them, is no more than `memory`; 0 where not even 64
 * fit.
 *
 * @param need bytes
 * @param most tokens beyond which none are looked for
 */
export function largestThatFits(memory: number, need: (tokens: number) => number, most = MOST): number {
  const fits = (steps: number): boolean => need(Math.min(most, STEP * steps)) <= memory
  let [fitting, tooMany] = [0, Math.ceil(most / STEP) + 1]
  while (tooMany - fitting > 1) {
    const middle = (fitting + tooMany) >> 1
    if (fits(middle)) fitting = middle
    else tooMany = middle
  }
  return Math.min(most, STEP * fitting)
}
