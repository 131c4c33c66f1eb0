import { InvalidArgumentError, Option } from 'commander'
import { TABLE_FORMAT_NAMES } from '../hierarchy/index.ts'

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

/** `--table-format`: how tables become text. */
export function tableFormatOption(standard: string): Option {
  return new Option('--table-format <name>', `how a table's header and rows become text (${standard})`).choices(
    TABLE_FORMAT_NAMES,
  )
}
