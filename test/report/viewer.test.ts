import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import type { Browser, Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it, type TestContext } from 'vitest'
import { evaluateScores } from '../../src/eval/index.ts'
import type { Item, Question } from '../../src/hierarchy/index.ts'
import { writeReport } from '../../src/report/index.ts'
import { createRandom } from '../../src/support/random.ts'
import { publishedCases } from '../hierarchy/published.ts'
import { sharedDir } from '../support/shared.ts'
import { openFile, startChromium } from './chromium.ts'
import { evaluatedWorld, HOSTILE, hostileWorld, writeRun } from './world.ts'

let browser: Browser | undefined
let folder: string
let hostile: string

beforeAll(async () => {
  browser = await startChromium()
  folder = mkdtempSync(join(tmpdir(), 'canopy-viewer-'))
  const { evaluation, dataset } = await evaluatedWorld(folder, hostileWorld())
  const run = writeRun(join(folder, 'run'), { dataset })
  hostile = (await writeReport({ folders: [run, evaluation], datasets: [dataset] })).output
})

afterAll(async () => {
  await browser?.close()
  rmSync(folder, { recursive: true, force: true })
})

/** Opens a report; the test is skipped where there is no browser. */
async function open(context: TestContext, file: string, options: { width?: number; dark?: boolean } = {}) {
  if (browser === undefined) context.skip('Chromium does not start here')
  const opened = await openFile(browser!, file, options)
  context.onTestFinished(() => opened.page.close())
  return opened
}

const states = (page: Page): Promise<(string | null)[]> =>
  page.locator('[role=treeitem]').evaluateAll((nodes) => nodes.map((node) => node.getAttribute('data-state')))
const step = (page: Page): Promise<string> => page.locator('.step').textContent().then(String)

describe('the report in a browser', () => {
  it('opens without a complaint and asks the network for nothing', async (context) => {
    const { page, complaints } = await open(context, hostile)
    await page.waitForTimeout(200)
    expect(complaints).toEqual([])
    expect(await page.title()).toContain('CANOPY report')
    expect(await page.locator('figure svg').count()).toBeGreaterThan(8)
  })

  it('shows hostile text as text, whatever is looked at', async (context) => {
    const { page, complaints } = await open(context, hostile)
    const options = page.locator('[role=option]')
    const seen: string[] = []
    for (let i = 0; i < (await options.count()); i++) {
      await options.nth(i).click()
      for (let tab = 0; tab < (await page.locator('[role=tab]').count()); tab++) {
        await page.locator('[role=tab]').nth(tab).click()
        await page.locator('[role=treeitem]').first().click()
        await page.keyboard.press('n')
        seen.push(String(await page.locator('.evidence').textContent()))
      }
    }
    const all = seen.join('\n')
    for (const text of HOSTILE.slice(0, 3)) expect(all).toContain(text)
    expect(await page.evaluate(() => (window as { hacked?: number }).hacked)).toBeUndefined()
    expect(await page.locator('.evidence :is(script, b, i, img, iframe)').count()).toBe(0)
    expect(complaints).toEqual([])
  })

  it('lets no script in that it does not hold, and no HTML be made of a string', async (context) => {
    const { page } = await open(context, hostile)
    const result = await page.evaluate(() => {
      const script = document.createElement('script')
      let refused = ''
      try {
        script.textContent = 'window.hacked = 5'
        document.body.append(script)
        document.body.insertAdjacentHTML('beforeend', '<b>x</b>')
      } catch (error) {
        refused = (error as Error).name
      }
      return { hacked: (window as { hacked?: number }).hacked, refused }
    })
    expect(result).toEqual({ hacked: undefined, refused: 'TypeError' })
  })

  it('is walked through by keyboard alone', async (context) => {
    const { page, complaints } = await open(context, hostile)
    await page.locator('#viewer-search').focus()
    await page.keyboard.type('otters asleep')
    expect(await page.locator('.count').textContent()).toBe('1 of 3 questions')
    while ((await page.evaluate(() => (document.activeElement as HTMLElement).dataset.focus)) !== 'start')
      await page.keyboard.press('Tab')
    await page.keyboard.press('Enter')
    expect(await step(page)).toMatch(/^Start: refinement begins at the root, sentences 1–4/)
    expect(await states(page)).toEqual(['waiting', 'open', 'open', 'open', 'open', 'open', 'open'])

    const visited: string[] = []
    for (let i = 0; i < 10 && (await page.locator('[data-focus=end]').getAttribute('aria-disabled')) !== 'true'; i++) {
      await page.keyboard.press('n')
      visited.push(await step(page))
      expect(await page.locator('.node.current').count()).toBe(1)
    }
    expect(visited[0]).toMatch(/^Sentences 1–4, score 0\.\d{3}/)
    expect(visited.at(-1)).toMatch(/kept/)
    expect(await page.locator('.counter').textContent()).toBe(`step ${visited.length} of ${visited.length}`)
    const outcome = await states(page)
    expect(outcome).not.toContain('open')
    expect(outcome).not.toContain('waiting')
    expect(outcome).toContain('kept')
    await page.keyboard.press('p')
    await page.keyboard.press('1')
    expect(await states(page)).toEqual(outcome)
    await page.keyboard.press('n')
    expect(await step(page)).toMatch(/^Start/)

    // The focus stays where it was when the encoder changes.
    const pressed = () => page.locator('.encoders [aria-pressed=true]').textContent()
    expect(await pressed()).toBe('fine-tuned')
    await page.keyboard.press('f')
    expect(await pressed()).toBe('frozen')
    expect(await page.evaluate(() => (document.activeElement as HTMLElement).dataset.focus)).toBe('start')
    expect(complaints).toEqual([])
  })

  it('plays refinement to its end and stops there', async (context) => {
    const { page } = await open(context, hostile)
    await page.locator('[data-focus=play]').click()
    expect(await step(page)).toMatch(/^Start/)
    expect(await page.locator('[data-focus=play]').textContent()).toBe('Pause')
    await page.locator('[data-focus=play]', { hasText: 'Play' }).waitFor({ timeout: 20_000 })
    expect(await states(page)).not.toContain('waiting')
  })

  it('has a tree with the keys and the words of a tree', async (context) => {
    const { page } = await open(context, hostile)
    await page.locator('[role=option]', { hasText: 'otters do asleep' }).click()
    const tree = page.getByRole('tree')
    await tree.getByRole('treeitem').first().focus()
    const focused = () => page.evaluate(() => document.activeElement!.getAttribute('aria-label')!)
    const walk = async (key: string): Promise<string> => {
      await page.keyboard.press(key)
      return (await focused()).split(',')[0]!
    }
    expect(await focused()).toMatch(
      /^Sentences 1–4, score 0\.\d+, the root, gold in part, decision (right|wrong), cut by the encoder/,
    )
    expect(await walk('ArrowRight')).toBe('Sentences 1–2')
    expect(await walk('ArrowDown')).toBe('Sentence 1')
    expect(await walk('ArrowDown')).toBe('Sentence 2')
    expect(await focused()).toMatch(/gold, .*They hold hands when they sleep\.$/)
    expect(await walk('ArrowLeft')).toBe('Sentences 1–2')
    expect(await walk('End')).toBe('Sentence 4')
    expect(await walk('Home')).toBe('Sentences 1–4')
    await page.keyboard.press('Enter')
    expect(await page.locator('.counter').textContent()).toMatch(/^step 1 of/)
    const roving = await tree
      .getByRole('treeitem')
      .evaluateAll((nodes) => nodes.filter((node) => (node as HTMLElement).tabIndex === 0).length)
    expect(roving).toBe(1)
    const outline = await page.evaluate(
      () => getComputedStyle(document.activeElement!.querySelector('.box')!).outlineStyle,
    )
    expect(outline).toBe('solid')
  })

  it('names every control, announces steps, and uses ids once', async (context) => {
    const { page } = await open(context, hostile)
    const faults = await page.evaluate(() => {
      const found: string[] = []
      const ids = [...document.querySelectorAll('[id]')].map(({ id }) => id)
      for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) found.push(`id ${id} twice`)
      for (const control of document.querySelectorAll(
        'button, input, select, [role=treeitem], [role=option], [role=region]',
      )) {
        const label = control.getAttribute('aria-label') ?? control.textContent ?? ''
        const labelled = 'labels' in control && (control as HTMLInputElement).labels!.length > 0
        if (label.trim() === '' && !labelled) found.push(`no name: ${control.outerHTML.slice(0, 80)}`)
      }
      for (const image of document.querySelectorAll('img:not([alt]), svg:not([role]):not([aria-hidden])'))
        found.push(`no alternative: ${image.outerHTML.slice(0, 80)}`)
      for (const name of ['aria-controls', 'aria-labelledby', 'aria-activedescendant', 'for']) {
        for (const element of document.querySelectorAll(`[${name}]`)) {
          if (document.getElementById(element.getAttribute(name)!) === null) found.push(`${name} leads nowhere`)
        }
      }
      const levels = [...document.querySelectorAll('h1, h2, h3, h4')].map(({ tagName }) => Number(tagName[1]))
      for (const [i, level] of levels.entries())
        if (level > (levels[i - 1] ?? 0) + 1) found.push(`heading ${i} skips a level`)
      return found
    })
    expect(faults).toEqual([])
    expect(await page.locator('html').getAttribute('lang')).toBe('en')
    expect(await page.locator('.step').getAttribute('aria-live')).toBe('polite')
  })

  it.each([
    [400, false],
    [400, true],
    [1600, false],
    [1600, true],
  ])('fits a width of %i (dark: %s) without scrolling sideways, and can be read', async (width, dark) => {
    if (browser === undefined) return
    const { page } = await openFile(browser, hostile, { width, dark })
    try {
      for (let i = 0; i < 3; i++) {
        await page.locator('[role=option]').nth(i).click()
        for (let tab = 0; tab < (await page.locator('[role=tab]').count()); tab++) {
          await page.locator('[role=tab]').nth(tab).click()
          expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(width)
        }
      }
      expect(await lowContrast(page)).toEqual([])
    } finally {
      await page.close()
    }
  })

  it('shows tables as tables beside their tree, row by row, with the header in sight', async (context) => {
    const { page } = await open(context, hostile)
    await page.locator('[role=option]').first().click()
    await page.locator('[role=tab]').nth(1).click()
    await page.waitForTimeout(100)
    expect(await page.locator('.beside table thead th').count()).toBe(4)
    expect(
      await page
        .locator('.beside thead th')
        .first()
        .evaluate((th) => getComputedStyle(th).position),
    ).toBe('sticky')
    const offsets = await page.evaluate(() => {
      const rows = [...document.querySelectorAll('.beside tbody tr')].map((row) => row.getBoundingClientRect())
      const leaves = [...document.querySelectorAll('.beside .leaf')].map((leaf) => leaf.getBoundingClientRect())
      return rows.map((row, i) => Math.abs(row.top - leaves[i]!.top) + Math.abs(row.height - leaves[i]!.height))
    })
    expect(offsets).toHaveLength(3)
    for (const offset of offsets) expect(offset).toBeLessThan(1.5)
  })

  it('prints the figures, the tables and the item that is shown', async (context) => {
    const { page } = await open(context, hostile)
    await page.emulateMedia({ media: 'print' })
    const visible = (selector: string) => page.locator(selector).first().isVisible()
    expect(await visible('figure svg')).toBe(true)
    expect(await visible('.item')).toBe(true)
    for (const hidden of ['.list', '.player', 'nav']) expect(await visible(hidden)).toBe(false)
  })

  it('opens quickly with 500 questions of ten items', async (context) => {
    if (browser === undefined) context.skip('Chromium does not start here')
    const { evaluation, dataset } = await evaluatedWorld(folder, manyQuestions(500), 'many')
    const { output, questions, bytes } = await writeReport({
      folders: [evaluation],
      datasets: [dataset],
      output: join(folder, 'many.html'),
    })
    expect(questions).toBe(500)
    const times: number[] = []
    for (let i = 0; i < 3; i++) {
      const { page } = await openFile(browser!, output)
      times.push(
        await page.evaluate(
          () => (performance.getEntriesByType('navigation')[0] as PerformanceNavigationTiming).loadEventEnd,
        ),
      )
      expect(await page.locator('[role=option]').count()).toBe(500)
      expect(await page.locator('[role=treeitem]').count()).toBeGreaterThan(2)
      await page.close()
    }
    console.log(
      `500 questions, ${(bytes / 1e6).toFixed(1)} MB: opened in ${times.map((time) => Math.round(time)).join(', ')} ms`,
    )
    expect(Math.min(...times)).toBeLessThan(3000)
  })

  it('opens the published cases with their outcome', async (context) => {
    const shared = sharedDir()
    if (shared === undefined) return context.skip('the shared data are not there')
    const place = join(folder, 'published')
    const script = resolve(import.meta.dirname, '../../bench/published-cases.mjs')
    execFileSync(process.execPath, [script, join(shared, 'data/canopy_cases/cases.json'), place])
    const dataset = join(place, 'dataset')
    const evaluation = join(place, 'eval')
    await evaluateScores({
      datasets: [dataset],
      split: 'published',
      output: evaluation,
      scores: [join(place, 'scores.jsonl')],
      resamples: 20,
    })
    const { output } = await writeReport({ folders: [evaluation], datasets: [dataset] })
    const { page, complaints } = await open(context, output)
    const sent = new Map<string, number[]>()
    for (let i = 0; i < (await page.locator('[role=option]').count()); i++) {
      await page.locator('[role=option]').nth(i).click()
      for (let tab = 0; tab < (await page.locator('[role=tab]').count()); tab++) {
        await page.locator('[role=tab]').nth(tab).click()
        const leaves = await page
          .locator('.leaf')
          .evaluateAll((nodes) => nodes.map((node) => node.getAttribute('data-state')!))
        sent.set(
          String(await page.locator('.item-title strong').textContent()),
          leaves.flatMap((state, leaf) => (state === 'kept' || state === 'within' ? [leaf] : [])),
        )
      }
    }
    expect(Object.fromEntries(sent)).toEqual(Object.fromEntries(publishedCases().map((one) => [one.title, one.sent])))
    expect(complaints).toEqual([])
  })
})

/** Questions with two gold items and eight others, of the size that HotpotQA's have. */
function manyQuestions(count: number): { items: Item[]; questions: Question[] } {
  const random = createRandom('many')
  const items: Item[] = []
  const questions: Question[] = []
  const sentence = (): string =>
    `${Array.from({ length: 18 }, (_, i) => `${i === 0 ? 'Word' : 'word'}${random.int(5000)}`).join(' ')}.`
  for (let q = 0; q < count; q++) {
    const ids = Array.from({ length: 10 }, (_, i) => `${q}-${i}`)
    for (const id of ids) {
      const sentences = Array.from({ length: 2 + random.int(5) }, sentence)
      items.push({ id, modality: 'text', title: `Title of ${id}`, text: sentences.join(' ') })
    }
    questions.push({
      id: `q${q}`,
      benchmark: q % 2 === 0 ? 'even' : 'odd',
      split: 'dev',
      question: sentence(),
      answers: [`word${q}`],
      gold: ids.slice(0, 2).map((item) => ({ item, spans: [[0, 10]] })),
      retrieved: ids,
    })
  }
  return { items, questions }
}

/** Texts of the page whose contrast to what lies behind them is under 4.5 : 1 (WCAG AA). */
function lowContrast(page: Page): Promise<string[]> {
  return page.evaluate(() => {
    const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true })!
    const rgba = (color: string): number[] => {
      canvas.clearRect(0, 0, 1, 1)
      canvas.fillStyle = color
      canvas.fillRect(0, 0, 1, 1)
      return [...canvas.getImageData(0, 0, 1, 1).data]
    }
    const luminance = ([r, g, b]: number[]): number => {
      const [x, y, z] = [r!, g!, b!].map((c) =>
        c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4,
      )
      return 0.2126 * x! + 0.7152 * y! + 0.0722 * z!
    }
    const behind = (element: Element | null): number[] => {
      for (let e = element; e !== null; e = e.parentElement) {
        const color = rgba(getComputedStyle(e).backgroundColor)
        if (color[3] === 255) return color
      }
      return [255, 255, 255, 255]
    }
    const found = new Set<string>()
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
    for (let node = walker.nextNode(); node !== null; node = walker.nextNode()) {
      const element = node.parentElement!
      if (
        node.textContent!.trim() === '' ||
        !element.checkVisibility() ||
        element.closest('script, style, svg, [aria-disabled=true]') !== null
      )
        continue
      const [a, b] = [luminance(rgba(getComputedStyle(element).color)), luminance(behind(element))]
      const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)
      if (ratio < 4.5)
        found.add(`${ratio.toFixed(2)}: ${element.className || element.tagName} "${node.textContent!.slice(0, 30)}"`)
    }
    return [...found]
  })
}
