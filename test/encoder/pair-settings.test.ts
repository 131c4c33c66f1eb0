import { cpSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import {
  CANOPY_FILE,
  canopySettings,
  openPair,
  readAdapter,
  readEncoder,
  readEncoderPair,
  type StatedSettings,
  settingsDrift,
  writeAdapter,
} from '../../src/encoder/index.ts'
import { temporaryFolder } from '../support/temporary.ts'
import { tinyQwen3 } from './qwen3-known.ts'

const checkpoint = tinyQwen3('qwen3-vl')
const STATED: StatedSettings = { dimensions: 32, instructions: { query: 'Find the page that answers.' } }

/** An adapter with the canopy.json of an encoder that was trained with these settings. */
async function trainedWith(stated: StatedSettings): Promise<string> {
  const profile = await readEncoder(checkpoint, stated)
  const folder = join(temporaryFolder(), 'adapter')
  await writeAdapter(folder, await readAdapter(join(checkpoint, 'adapter'), profile), profile)
  const settings = canopySettings(profile, profile, { title: true, tableFormat: 'markdown', branching: 2 })
  writeFileSync(join(folder, CANOPY_FILE), JSON.stringify(settings))
  return folder
}

describe('instructions and dimensions', () => {
  it('are those that the node encoder was trained with, for both sides', async () => {
    const adapter = await trainedWith(STATED)
    for (const options of [{}, STATED]) {
      const { encoder, query, settings } = await readEncoderPair(checkpoint, { adapter, ...options })
      expect(settings).toMatchObject(STATED)
      for (const { dimension, prompts } of [encoder, query])
        expect({ dimension, prompts }).toEqual({
          dimension: 32,
          prompts: { query: 'Find the page that answers.', node: "Represent the user's input." },
        })
    }
  })

  it('cannot be stated otherwise afterwards', async () => {
    const adapter = await trainedWith(STATED)
    await expect(readEncoderPair(checkpoint, { adapter, dimensions: 16 })).rejects.toThrow(
      /canopy\.json: .*trained with embeddings of 32 numbers, not 16\. Leave/,
    )
    await expect(readEncoderPair(checkpoint, { adapter, instructions: { query: 'Find.' } })).rejects.toThrow(
      /trained with the instruction "Find the page that answers\." for a query, not "Find\."/,
    )
    const plain = await trainedWith({})
    await expect(readEncoderPair(checkpoint, { adapter: plain, dimensions: 16 })).rejects.toThrow(/not 16/)
  })

  it('may be stated as the encoder’s own files have them', async () => {
    const own = { dimensions: 64, instructions: { node: "Represent the user's input." } }
    const { settings, encoder } = await readEncoderPair(checkpoint, { adapter: await trainedWith({}), ...own })
    expect(encoder.dimension).toBe(64)
    expect(settings.dimensions).toBeUndefined()
  })

  it('give both encoders’ embeddings one length, or an error', async () => {
    const shorter = join(temporaryFolder(), 'shorter')
    cpSync(tinyQwen3('qwen3'), shorter, { recursive: true })
    writeFileSync(join(shorter, 'config_sentence_transformers.json'), JSON.stringify({ truncate_dim: 16 }))
    const folder = tinyQwen3('qwen3')
    await expect(readEncoderPair(folder, { queryEncoder: shorter })).rejects.toThrow(
      /query encoder's embeddings have 16 numbers, the node encoder's 64.*--dimensions/,
    )
    const { query } = await readEncoderPair(folder, { queryEncoder: shorter, dimensions: 16 })
    expect(query.dimension).toBe(16)
  })

  it('are of both encoders where nothing was trained', async () => {
    const { encoder, query } = await readEncoderPair(checkpoint, STATED)
    expect([encoder.dimension, query.dimension]).toEqual([32, 32])
    expect(encoder.fingerprint).toBe(query.fingerprint)
  })
})

describe('canopy.json of an encoder of pictures', () => {
  it('records how pictures become pixels, and tells of another way', async () => {
    const profile = await readEncoder(checkpoint)
    const settings = canopySettings(profile, profile, { title: true, tableFormat: 'markdown', branching: 2 })
    expect(settingsDrift(settings)).toEqual([])
    expect(settingsDrift({ ...settings, pixels: 'pixels/0' })).toEqual([
      `pictures were made pixels by version pixels/0, now ${settings.pixels}`,
    ])
    const text = await readEncoder(tinyQwen3('qwen3'))
    expect(canopySettings(text, text, settings)).not.toHaveProperty('pixels')
  })
})

describe('a pair that differs in an adapter', () => {
  it('reads inputs with one reader', async () => {
    const pair = await readEncoderPair(checkpoint, { adapter: await trainedWith({}) })
    const { query, node, close } = await openPair(pair, { threads: 1 })
    expect(query.reader).toBe(node.reader)
    expect(query.fingerprint).not.toBe(node.fingerprint)
    await close()
  })
})
