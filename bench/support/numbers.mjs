// Numbers given on the command line.

/**
 * A flag's whole number.
 *
 * @param flags what parseArgs gives
 * @throws Error naming the flag for anything else, or less than `least`
 */
export function wholeNumber(flags, name, least = 1) {
  const value = Number(flags[name])
  if (flags[name].trim() === '' || !Number.isSafeInteger(value) || value < least)
    throw new Error(`--${name} must be a whole number of ${least} or more, not "${flags[name]}".`)
  return value
}
