import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { env, pipeline } from '@huggingface/transformers'
import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { canopySettings, openEmbedder, readAdapter, readEncoder } from '../../src/encoder/index.ts'
import { compare, TYPE_BOUNDS } from '../../src/export/closeness.ts'
import { EXPORT_TYPES, type ExportType, exportEncoder } from '../../src/export/index.ts'
import { transformersJsType, variantFile } from '../../src/export/variants.ts'
import { expected, tinyBert } from '../encoder/fixtures.ts'
import { startChromium } from '../report/chromium.ts'

interface PageServer {
  servePage(models: Record<string, string>): Promise<{ url: string; missing: string[]; close(): Promise<void> }>
}
interface PageRuntime {
  load(name: string, dtype: string, device: string, threads: number): Promise<void>
  embed(name: string, texts: string[], pooling: string, normalize: boolean): Promise<number[]>
}
declare global {
  /** In the page, see bench/runtimes/page.js. */
  var runtime: PageRuntime | undefined
}

const script = join(import.meta.dirname, '../../bench/runtimes/page-server.mjs')
const { servePage }: PageServer = await import(pathToFileURL(script).href)

/** transformers.js takes the closing [SEP] off over-long ones, and lower-cases a final sigma as JavaScript does: tokens differ there. */
const whole = expected('mean')
const texts = whole.texts.filter((text, i) => !whole.truncated[i] && !text.includes('Σ'))

let folder: string
/** With the prompt, as the model card says. */
let prompted: string[]
let dimension: number
/** By the trained graph, in rows without padding. */
let trained: Float32Array
/** By each written graph in this toolkit: what rounds alike, and may differ from the trained graph. */
const here = new Map<ExportType, Float32Array>()

beforeAll(async () => {
  folder = join(mkdtempSync(join(tmpdir(), 'canopy-runtimes-')), 'exported')
  const encoder = await readEncoder(tinyBert('mean'))
  dimension = encoder.dimension
  prompted = texts.map((text) => encoder.prompts.node + text)
  const adapter = await readAdapter(join(tinyBert('mean'), 'adapter'), encoder)
  await exportEncoder({
    ...{ encoder, adapter, queryEncoder: encoder, output: folder, version: '0', threads: 1, types: EXPORT_TYPES },
    settings: canopySettings(encoder, encoder, { title: true, tableFormat: 'markdown', branching: 2 }),
  })
  const embedded = async (...[profile, options]: Parameters<typeof openEmbedder>): Promise<Float32Array> => {
    const embedder = await openEmbedder(profile, { threads: 1, ...options })
    const { embeddings } = await embedder.embedTexts(texts, 'node')
    await embedder.close()
    return embeddings
  }
  trained = await embedded(encoder, { adapter })
  for (const type of EXPORT_TYPES)
    here.set(type, await embedded(await readEncoder(folder, { onnxFile: variantFile('model', type) })))
})
afterAll(() => rmSync(join(folder, '..'), { recursive: true }))

/** Another runtime gives what the trained graph does, within what the type costs, and what the same graph gives here. */
function expectClose(type: ExportType, rows: ArrayLike<number>): void {
  expect(rows).toHaveLength(texts.length * dimension)
  const found = Float32Array.from(rows)
  expect(compare(trained, found, dimension).minCosine).toBeGreaterThanOrEqual(TYPE_BOUNDS[type].minCosine)
  const { minCosine } = compare(here.get(type) as Float32Array, found, dimension)
  expect(minCosine).toBeGreaterThan(type === 'fp32' || type === 'fp16' ? 0.9999 : 0.99)
}

describe('the server of such folders', () => {
  it('gives files of these folders only', async () => {
    const server = await servePage({ exported: folder })
    onTestFinished(server.close)
    const status = async (path: string): Promise<number> => (await fetch(`${server.url}${path}`)).status
    expect(await status('models/exported/canopy.json')).toBe(200)
    for (const path of [
      'models/exported/..%2f..%2fetc',
      'models/other/canopy.json',
      'models/exported',
      'x/y',
      'models',
    ])
      expect(await status(path)).toBe(404)
  })
})

describe('an exported folder in transformers.js', () => {
  it.each(EXPORT_TYPES)('loads unchanged in Node as %s', async (type) => {
    const { allowRemoteModels } = env
    env.allowRemoteModels = false
    const extract = await pipeline('feature-extraction', folder, { dtype: transformersJsType(type) as 'fp32' })
    onTestFinished(async () => {
      env.allowRemoteModels = allowRemoteModels
      await extract.dispose()
    })
    const { data } = await extract(prompted, { pooling: 'mean', normalize: true })
    expectClose(type, data as Float32Array)
  })

  describe('in Chromium', () => {
    let browser: Browser | undefined
    beforeAll(async () => {
      browser = await startChromium()
    })
    afterAll(async () => {
      await browser?.close()
    })

    it.for(EXPORT_TYPES)('loads unchanged as %s, with nothing from the network', async (type, { skip }) => {
      if (browser === undefined) return skip('Chromium does not start here')
      const server = await servePage({ exported: folder })
      onTestFinished(server.close)
      const page = await browser.newPage()
      onTestFinished(() => page.close())
      const elsewhere: string[] = []
      page.on('request', (request) => {
        if (!/^(data|blob):/.test(request.url()) && !request.url().startsWith(server.url)) elsewhere.push(request.url())
      })
      await page.goto(server.url)
      await page.waitForFunction(() => globalThis.runtime !== undefined)
      await page.evaluate(
        (dtype) => (globalThis.runtime as PageRuntime).load('exported', dtype, 'wasm', 1),
        transformersJsType(type),
      )
      const rows = await page.evaluate(
        (all) => (globalThis.runtime as PageRuntime).embed('exported', all, 'mean', true),
        prompted,
      )
      expectClose(type, rows)
      expect(elsewhere).toEqual([])
      expect(server.missing).toEqual([])
    })
  })
})
