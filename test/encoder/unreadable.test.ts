import { describe, expect, it } from 'vitest'
import { beyondSkipping, UnreadableError } from '../../src/encoder/index.ts'
import { MissingToolError } from '../../src/media/index.ts'

describe('an error that is no file’s', () => {
  it('says that --on-error skip does not cover a program that is missing', () => {
    const missing = new MissingToolError('The program "ffprobe" was not found.')
    const told = beyondSkipping(missing, 'skip')
    expect(told).toBeInstanceOf(MissingToolError)
    expect((told as Error).message).toMatch(
      /^The program "ffprobe" was not found\. No video is at fault, so that --on-error skip/,
    )
    expect(beyondSkipping(missing, 'stop')).toBe(missing)
    const other = new UnreadableError('damaged')
    expect(beyondSkipping(other, 'skip')).toBe(other)
  })
})
