import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { cpSync, existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { createInterface } from 'node:readline'
import { pathToFileURL } from 'node:url'
import { promisify } from 'node:util'
import type { Browser, Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { canopySettings, type Encoder, type RefinedItem, readEncoder } from '../../src/encoder/index.ts'
import { exportEncoder } from '../../src/export/index.ts'
import { startChromium } from '../report/chromium.ts'

const ROOT = resolve(import.meta.dirname, '../..')
const ENTRY = join(ROOT, 'dist', 'index.js')
const SERVE = join(ROOT, 'examples', 'browser', 'serve.mjs')

const FERRY =
  'The ferry to Sorn leaves at six. It carries the post, two cows at most, and whoever has a ticket. The captain, Ida Brandt, ' +
  'bought it with the money from her first novel. The engine was rebuilt twice. In winter a sledge crosses the ice instead. ' +
  'Passengers then pay by weight, and children ride free. In 1987 a storm kept the ferry away for nineteen days.'
const PASSAGES = [
  { question: 'How did the captain pay for the boat?', item: { text: FERRY } },
  { question: 'What about winter?', item: { title: 'The ferry to Sorn', text: FERRY } },
  // more tokens than the encoder reads, in several nodes
  { question: 'Who keeps the light?', item: { text: `${FERRY} ${'A light burns on the pier. '.repeat(40)}` } },
  // the same sentences again and again: equal token sequences tie exactly, and ties descend
  { question: 'What burns?', item: { title: 'Pier', text: 'A light burns on the pier. '.repeat(9).trim() } },
  {
    question: 'Was ist mit ΣΊΣΥΦΟΣ?',
    item: { text: '  Ünïcode “quotes”. 雨が降った。晴れた。 👩‍👩‍👧 ran. ΣΊΣΥΦΟΣ pushes.\n\nThe end.  ' },
  },
  {
    question: '<b>What</b> runs?',
    item: { text: '<img src=x onerror=alert(1)> is text. <script>alert(2)</script> runs not. & so on.' },
  },
]

let chromium: Browser | undefined
let library: typeof import('../../src/index.ts')
let folder: string
let encoder: Encoder
let server: ChildProcess
let address: string
/** What openEncoder makes of {@link PASSAGES}. */
let expected: RefinedItem[]

/** canopy-mini, frozen, with prompts, 64 tokens and a margin, exported with its query encoder inside. */
async function exportSmall(to: string): Promise<void> {
  const base = join(folder, 'mini')
  cpSync(join(ROOT, 'models', 'canopy-mini'), base, { recursive: true })
  writeFileSync(join(base, 'sentence_bert_config.json'), JSON.stringify({ max_seq_length: 64, do_lower_case: false }))
  writeFileSync(
    join(base, 'config_sentence_transformers.json'),
    JSON.stringify({ prompts: { query: 'query: ', document: 'passage: ' }, default_prompt_name: null }),
  )
  const mini = await readEncoder(base)
  const settings = canopySettings(mini, mini, { title: true, tableFormat: 'markdown', branching: 3 })
  await exportEncoder({
    ...{ encoder: mini, adapter: undefined, queryEncoder: mini, settings, output: to },
    ...{ version: '0', threads: 1, bundle: true },
  })
  const file = join(to, 'canopy.json')
  writeFileSync(file, JSON.stringify({ ...JSON.parse(readFileSync(file, 'utf8')), margin: 0.01 }))
}

/** Starts the example's server and waits for its address. */
async function serve(args: string[]): Promise<{ process: ChildProcess; address: string }> {
  const process_ = spawn(process.execPath, [SERVE, ...args, '--port', '0'], { stdio: ['ignore', 'pipe', 'inherit'] })
  for await (const line of createInterface({ input: process_.stdout })) {
    const [url] = /http:\/\/\S+\//.exec(line) ?? []
    if (url !== undefined) return { process: process_, address: url }
  }
  throw new Error('The server ended before it served.')
}

async function openPage(width = 1200): Promise<{ page: Page; complaints: string[] }> {
  const page = await (chromium as Browser).newPage({ viewport: { width, height: 900 } })
  onTestFinished(() => page.close())
  const complaints: string[] = []
  page.on('pageerror', (error) => complaints.push(`error: ${error.message}`))
  page.on('console', (message) => {
    if (message.type() === 'error') complaints.push(`console: ${message.text()}`)
  })
  page.on('dialog', (dialog) => {
    complaints.push(`dialog: ${dialog.message()}`)
    return dialog.dismiss()
  })
  page.on('request', (request) => {
    if (!request.url().startsWith(address) && !/^(blob|data):/.test(request.url()))
      complaints.push(`request: ${request.url()}`)
  })
  return { page, complaints }
}

const keptLeaves = ({ kept }: RefinedItem): number[] =>
  kept.flatMap(({ from, to }) => Array.from({ length: to - from }, (_, i) => from + i))

beforeAll(async () => {
  chromium = await startChromium({ isolate: true })
  if (chromium === undefined) return
  if (!existsSync(ENTRY))
    throw new Error(`${ENTRY} is missing: the page serves the compiled package. Run "npm run build".`)
  library = await import(pathToFileURL(ENTRY).href)
  folder = mkdtempSync(join(tmpdir(), 'canopy-page-'))
  const exported = join(folder, 'export')
  await exportSmall(exported)
  ;({ process: server, address } = await serve([exported]))
  encoder = await library.openEncoder(exported, { threads: 1 })
  expected = []
  for (const { question, item } of PASSAGES) expected.push(...(await encoder.refine(question, [item])))
})
afterAll(async () => {
  await encoder?.close()
  server?.kill()
  await chromium?.close()
  if (folder !== undefined) rmSync(folder, { recursive: true, force: true })
})

describe('the example page', () => {
  it('scores and keeps in Chromium what openEncoder does in Node', async (test) => {
    if (chromium === undefined) return test.skip('Chromium does not start here')
    const { page, complaints } = await openPage()
    await page.goto(`${address}?device=wasm`)
    const found = (await page.evaluate(
      `import('/encoder.js').then(async ({ openWebEncoder }) => {
        const encoder = await openWebEncoder(location.origin + '/', 'wasm', () => {})
        const found = []
        for (const { question, item } of ${JSON.stringify(PASSAGES)}) found.push(await encoder.refine(question, item))
        return found
      })`,
    )) as RefinedItem[]
    expect(found).toHaveLength(PASSAGES.length)
    for (const [i, there] of expected.entries()) {
      const here = found[i] as RefinedItem
      expect(here.nodes.map(({ score: _, ...node }) => node)).toEqual(there.nodes.map(({ score: _, ...node }) => node))
      for (const [n, { score }] of there.nodes.entries()) expect(here.nodes[n]?.score).toBeCloseTo(score, 5)
      const range = ({ from, to, start, end, text }: RefinedItem['kept'][number]) => ({ from, to, start, end, text })
      expect(here.kept.map(range)).toEqual(there.kept.map(range))
    }
    // the passages show what they are there for
    expect(expected[2]?.nodes.filter(({ truncated }) => truncated).length).toBeGreaterThan(2)
    expect(
      expected.some(({ kept, leaves }) => kept.length > 1 || (kept[0]?.to ?? 0) - (kept[0]?.from ?? 0) < leaves),
    ).toBe(true)
    expect(complaints).toEqual([])
  })

  it('marks the kept sentences of a pasted passage, and shows scores, tokens and time', async (test) => {
    if (chromium === undefined) return test.skip('Chromium does not start here')
    const { page, complaints } = await openPage(390)
    await page.goto(`${address}?device=wasm`)
    await page.locator('#result').waitFor()
    for (const [i, { question, item }] of PASSAGES.entries()) {
      const title = 'title' in item ? item.title : ''
      await page.getByLabel('Title').fill(title)
      await page.getByLabel('Passage').fill(item.text)
      await page.getByLabel('Question').fill(question)
      await page.evaluate(() =>
        (globalThis as { document?: { getElementById(id: string): { replaceChildren(): void } } }).document
          ?.getElementById('figures')
          .replaceChildren(),
      )
      await page.getByRole('button', { name: 'Refine', exact: true }).click()
      await page.locator('#figures div').first().waitFor()
      const there = expected[i] as RefinedItem
      const marked = await page
        .locator('mark')
        .evaluateAll((marks) => marks.map((mark) => Number(mark.getAttribute('data-leaf'))))
      expect(marked).toEqual(keptLeaves(there))
      expect(await page.locator('#passage').textContent()).toBe(item.text)
      const figures = await page.locator('#figures').textContent()
      expect(figures).toContain(`${marked.length} of ${there.leaves}`)
      expect(figures).toContain(`Regions scored${there.nodes.length}`)
      expect(figures).toMatch(/Time[\d.]+ ms/)
      const root = await page.locator('#decisions td').first().textContent()
      expect(Number(root)).toBeCloseTo(there.nodes[0]?.score as number, 3)
      expect(await page.locator('#cut').isVisible()).toBe(there.nodes.some(({ truncated }) => truncated))
    }
    expect(await page.evaluate('document.documentElement.scrollWidth')).toBe(390)
    expect(await page.locator('#load').isVisible()).toBe(false)
    expect(complaints).toEqual([])
  })

  it('says what is missing, and goes on', async (test) => {
    if (chromium === undefined) return test.skip('Chromium does not start here')
    const { page, complaints } = await openPage()
    await page.goto(`${address}?device=wasm`)
    await page.locator('#result').waitFor()
    await page.getByLabel('Passage').fill('  ')
    await page.getByRole('button', { name: 'Refine', exact: true }).click()
    expect(await page.getByRole('alert').textContent()).toBe('Paste a passage first.')
    expect(await page.getByLabel('Passage').getAttribute('aria-invalid')).toBe('true')
    expect(await page.getByLabel('Question').getAttribute('aria-invalid')).toBe('false')
    await page.getByRole('button', { name: 'a clock tower' }).click()
    await page.getByText('Old Martha').last().waitFor()
    expect(await page.getByRole('alert').count()).toBe(0)
    expect(complaints).toEqual([])
  })

  it('marks the passage that was computed, and leaves whoever types meanwhile where they are', async (test) => {
    if (chromium === undefined) return test.skip('Chromium does not start here')
    const { page, complaints } = await openPage()
    await page.goto(`${address}?device=wasm`)
    await page.getByLabel('Question').focus()
    await page.locator('#result').waitFor()
    expect(await page.evaluate('document.activeElement.id')).toBe('question')

    await page.getByLabel('Passage').fill(FERRY)
    await page.evaluate(`
      document.getElementById('figures').replaceChildren()
      document.getElementById('form').requestSubmit()
      document.getElementById('text').value = 'Something else.'
    `)
    await page.locator('#figures div').first().waitFor()
    expect(await page.locator('#passage').textContent()).toBe(FERRY)
    expect(await page.evaluate('document.activeElement.id')).toBe('result-heading')
    expect(complaints).toEqual([])
  })

  it('names the file of the encoder that cannot be loaded', async (test) => {
    if (chromium === undefined) return test.skip('Chromium does not start here')
    const { page } = await openPage()
    await page.route('**/encoder/canopy.json', (route) => route.fulfill({ status: 404 }))
    await page.goto(`${address}?device=wasm`)
    const said = await page.getByRole('alert').textContent()
    expect(said).toMatch(/cannot be opened: \/encoder\/canopy\.json is not there \(404\)/)
    expect(await page.getByRole('button', { name: 'Refine', exact: true }).isDisabled()).toBe(true)
  })

  it('never makes markup of text', () => {
    for (const name of ['page.js', 'worker.js', 'encoder.js'])
      expect(readFileSync(join(ROOT, 'examples', 'browser', name), 'utf8')).not.toMatch(
        /innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(/,
      )
  })
})

describe('examples/browser/serve.mjs', () => {
  const run = (args: string[]): Promise<{ stdout: string; stderr: string; code?: number }> =>
    promisify(execFile)(process.execPath, [SERVE, ...args]).catch((error: { stdout: string; stderr: string }) => error)

  it('writes a site that any server can serve, and replaces it only when the new one is whole', async (test) => {
    if (chromium === undefined) return test.skip('Chromium does not start here')
    const site = join(folder, 'site')
    const { stdout } = await run([join(folder, 'export'), '--output', site])
    expect(stdout).toContain(`${site} is the site`)
    expect(readdirSync(site)).toEqual(
      expect.arrayContaining(['index.html', 'lib', 'encoder', 'query-encoder', 'site.json']),
    )
    expect(existsSync(join(site, 'query-encoder', 'onnx', 'model.onnx'))).toBe(true)
    const { stderr } = await run([join(folder, 'mini'), '--output', site])
    expect(stderr).toMatch(/^error: .*is no exported encoder/)
    expect(existsSync(join(site, 'index.html'))).toBe(true)
    expect(readdirSync(folder).filter((name) => name.startsWith('site.'))).toEqual([])
  })

  it('leaves a folder alone that is no site', async (test) => {
    if (chromium === undefined) return test.skip('Chromium does not start here')
    const other = join(folder, 'other')
    mkdirSync(other)
    writeFileSync(join(other, 'notes.txt'), 'mine')
    expect((await run([join(folder, 'export'), '--output', other])).stderr).toMatch(/^error: .*no site of this program/)
    expect(readFileSync(join(other, 'notes.txt'), 'utf8')).toBe('mine')
  })

  it('serves nothing outside the site', async (test) => {
    if (chromium === undefined) return test.skip('Chromium does not start here')
    for (const path of ['%2e%2e/%2e%2e/etc/passwd', '..%2f..%2fetc%2fpasswd', '%', '/[', 'lib', 'missing.js'])
      expect((await fetch(`${address}${path}`)).status, path).toBe(404)
    const { headers } = await fetch(address)
    expect(headers.get('cross-origin-embedder-policy')).toBe('require-corp')
    expect(headers.get('content-security-policy')).toContain("default-src 'self'")
  })
})
