import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { lru } from '../../src/support/lru.ts'

describe('values that were used last', () => {
  it('are as many as fit: what is dropped is what was unused for longest', () => {
    const kept = lru<string>(2)
    kept.put('a', 'A')
    kept.put('b', 'B')
    expect(kept.get('a')).toBe('A')
    expect(kept.put('c', 'C')).toBe('C')
    expect(['a', 'b', 'c'].map(kept.get)).toEqual(['A', undefined, 'C'])
    kept.clear()
    expect(kept.get('a')).toBeUndefined()
  })

  it('do not give way to one that is too much alone', () => {
    const kept = lru<number>(10, (value) => value)
    kept.put('a', 4)
    kept.put('b', 11)
    expect(['a', 'b'].map(kept.get)).toEqual([4, undefined])
  })

  it('never add up to more than is allowed, with the last one among them', () => {
    const keys = ['a', 'b', 'c', 'd']
    const steps = fc.array(fc.tuple(fc.constantFrom(...keys), fc.integer({ min: 1, max: 8 })), { minLength: 1 })
    fc.assert(
      fc.property(steps, (puts) => {
        const kept = lru<number>(10, (value) => value)
        for (const [key, value] of puts) kept.put(key, value)
        const [last, value] = puts.at(-1)!
        expect(kept.get(last)).toBe(value)
        const sum = keys.reduce((total, key) => total + (kept.get(key) ?? 0), 0)
        expect(sum).toBeLessThanOrEqual(10)
      }),
    )
  })
})
