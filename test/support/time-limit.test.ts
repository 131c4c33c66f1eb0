import { expect, it } from 'vitest'
import { InputError } from '../../src/support/errors.ts'
import { withinTime } from '../../src/support/time-limit.ts'

const late = (): Error => new InputError('too late')

it('gives back what a function returns or throws', () => {
  const value = { of: 'this realm' }
  expect(withinTime(1000, () => value, late)).toBe(value)
  const error = new RangeError('its own')
  const thrown = (): never => {
    throw error
  }
  expect(() => withinTime(1000, thrown, late)).toThrow(error)
})

it('ends a loop, and a regular expression, that takes too long', () => {
  expect(() =>
    withinTime(
      20,
      () => {
        for (;;);
      },
      late,
    ),
  ).toThrow('too late')
  const endless = (): boolean => /^(a+)+$/.test(`${'a'.repeat(60)}!`)
  expect(() => withinTime(20, endless, late)).toThrow('too late')
})
