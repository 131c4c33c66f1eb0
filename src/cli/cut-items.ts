import type { CutSummary, JsonlOptions } from '../data/index.ts'
import { UsageError } from '../support/errors.ts'
import type { Output } from './output.ts'

export interface CutFlags {
  maxItemTokens?: number | undefined
  encoder?: string | undefined
}

/** What `import` needs to cut long items: tokens are counted as the encoder counts them, its prompt included. */
export async function cutOptions(
  format: string,
  { maxItemTokens, encoder }: CutFlags,
  out: Output,
): Promise<Pick<JsonlOptions, 'maxItemTokens' | 'countTokens'>> {
  if (maxItemTokens === undefined) {
    if (encoder !== undefined)
      throw new UsageError('--encoder is there to cut items: give --max-item-tokens <n> with it.')
    return {}
  }
  if (format !== 'jsonl') {
    throw new UsageError(
      `--max-item-tokens cuts items of the format jsonl; those of ${format} are what its benchmark says.`,
    )
  }
  if (encoder === undefined) {
    throw new UsageError(
      '--max-item-tokens needs --encoder <folder>, whose tokenizer counts the tokens: encoders differ in what a token is.',
    )
  }
  const { locateEncoder, nodeTokenCounter, readEncoder } = await import('../encoder/index.ts')
  const { folder } = await locateEncoder(encoder, { onProgress: out.progress })
  const { maxLength, countTokens } = await nodeTokenCounter(await readEncoder(folder))
  if (maxItemTokens > maxLength) {
    out.warn(`the encoder takes ${maxLength} tokens: items of ${maxItemTokens} are cut off there all the same.`)
  }
  return { maxItemTokens, countTokens }
}

const PLACES_SHOWN = 5

export function printCut(cut: CutSummary, out: Output): void {
  out.line(`  ${cut.items} long items cut into ${cut.parts}`)
  if (cut.tooLong === 0) return
  out.line(
    `  ${cut.tooLong} × still more than ${cut.maxItemTokens} tokens: a sentence, row or chunk that is longer by itself`,
  )
  for (const place of cut.places.slice(0, PLACES_SHOWN)) out.line(`      ${place}`)
  if (cut.tooLong > PLACES_SHOWN) out.line(`      … and ${cut.tooLong - PLACES_SHOWN} more`)
}
