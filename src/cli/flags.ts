import { InvalidArgumentError } from 'commander'

/** Reads a flag's value as a whole number of at least `least`. */
export function whole(least: number): (value: string) => number {
  return (value) => {
    const n = Number(value)
    if (value.trim() === '' || !Number.isSafeInteger(n) || n < least)
      throw new InvalidArgumentError(`A whole number, at least ${least}, was expected.`)
    return n
  }
}

/** Reads a flag's value as a number. */
export function number(value: string): number {
  const n = Number(value)
  if (value.trim() === '' || !Number.isFinite(n)) throw new InvalidArgumentError('A number was expected.')
  return n
}
