import { describe, expect, it } from 'vitest'
import { openEncoder } from '../../src/encoder/index.ts'
import { receivedError, sentError } from '../../src/encoder/serve/messages.ts'
import { CanopyCompressor } from '../../src/integrations/langchain.ts'
import { CanopyPostprocessor } from '../../src/integrations/llamaindex.ts'
import { InputError } from '../../src/support/errors.ts'
import { refuseUnknown } from '../../src/support/options.ts'

describe('options that there are none of', () => {
  it('are refused by name, with the one that is written most like it', () => {
    const known = { cache: true, cacheBytes: true, margin: true } as const
    const refuse = (options: object) => () => refuseUnknown(options, known, 'It')
    expect(refuse({ cache: 'x', margin: 0, other: undefined })).not.toThrow()
    expect(refuse({ cach: 'x' })).toThrow(new RangeError('It has no option "cach". Did you mean "cache"?'))
    expect(refuse({ cachebytes: 1 })).toThrow('Did you mean "cacheBytes"?')
    expect(refuse({ toString: 1 })).toThrow(new RangeError('It has no option "toString".'))
    expect(refuse({ ['m'.repeat(1e6)]: 1 })).toThrow(/has no option "m+"\.$/)
  })

  it('are refused by openEncoder, before anything is opened', async () => {
    await expect(openEncoder('none', { cach: 'x' } as never)).rejects.toThrow(
      new RangeError('openEncoder has no option "cach". Did you mean "cache"?'),
    )
    await expect(openEncoder('none', { timeout: 5 } as never)).rejects.toThrow(
      /^openEncoder has no option "timeout"\.$/,
    )
  })

  it('are refused by the frameworks, with what to do about those of openEncoder', async () => {
    for (const { fromFolder } of [
      { fromFolder: CanopyCompressor.fromFolder.bind(CanopyCompressor) },
      { fromFolder: CanopyPostprocessor.fromFolder.bind(CanopyPostprocessor) },
    ]) {
      await expect(fromFolder('none', { margin: 0.1 } as never)).rejects.toThrow(
        new RangeError('fromFolder has no option "margin". It is one of openEncoder: give it as open: { margin }.'),
      )
      await expect(fromFolder('none', { titelKey: 'title' } as never)).rejects.toThrow('Did you mean "titleKey"?')
      await expect(fromFolder('none', { open: { margn: 1 } } as never)).rejects.toThrow('Did you mean "margin"?')
    }
    const encoder = { refine: async () => [] }
    expect(() => new CanopyCompressor({ encoder, margin: 0.1 } as never)).toThrow('open the encoder with it')
    expect(() => new CanopyPostprocessor({ encoder, seperator: ' ' } as never)).toThrow('Did you mean "separator"?')
  })
})

describe("an error of the encoder's thread", () => {
  const sent = (error: unknown): Error => receivedError(structuredClone(sentError(error)))

  it('keeps its class, or its name, its code and its cause', () => {
    const range = sent(new RangeError('too far', { cause: new TypeError('no number') }))
    expect(range).toBeInstanceOf(RangeError)
    expect(range.message).toBe('too far')
    expect(range.cause).toBeInstanceOf(TypeError)
    const database = Object.assign(new Error('no table'), { code: '42P01', name: 'DatabaseError' })
    expect(sent(database)).toMatchObject({ message: 'no table', code: '42P01', name: 'DatabaseError' })
    const input = sent(new InputError('is bad', { file: 'a', line: 3 }, database))
    expect(input).toBeInstanceOf(InputError)
    expect(input).toMatchObject({ message: 'a:3: is bad', file: 'a', line: 3, cause: { code: '42P01' } })
  })

  it('ends, whatever its causes are', () => {
    const loop = new Error('loop') as Error & { cause?: unknown }
    loop.cause = loop
    expect(sent(loop)).toMatchObject({ message: 'loop', cause: { message: 'loop' } })
    expect(sent('a word').message).toBe('a word')
    expect(sent(Object.assign(new Error('odd'), { name: 5, cause: () => {} })).message).toBe('odd')
  })
})
