import sparticuz from '@sparticuz/chromium'
import { type Browser, chromium, type Page } from 'playwright-core'

/**
 * A headless Chromium; undefined where none starts on this platform, and tests that need it are skipped. On Linux x64, for which
 * the package has a browser, that is an error in continuous integration.
 *
 * @param options.isolate with the web's rules between origins, which the package's own settings switch off
 */
export async function startChromium({ isolate = false } = {}): Promise<Browser | undefined> {
  try {
    // In a single process, the first page that closes takes the browser with it.
    const unwanted = [
      '--single-process',
      ...(isolate ? ['--disable-web-security', '--disable-site-isolation-trials'] : []),
    ]
    const args = sparticuz.args.filter((arg) => !unwanted.includes(arg))
    return await chromium.launch({ executablePath: await sparticuz.executablePath(), args })
  } catch (error) {
    if (process.env.CI !== undefined && process.platform === 'linux' && process.arch === 'x64') throw error
    console.warn(`Chromium does not start here, so tests in it are skipped: ${(error as Error).message.split('\n')[0]}`)
    return undefined
  }
}

/** A page that has opened a file, and everything that it complained of or asked the network for since. */
export async function openFile(
  browser: Browser,
  file: string,
  { width = 1600, dark = false }: { width?: number; dark?: boolean } = {},
): Promise<{ page: Page; complaints: string[] }> {
  const page = await browser.newPage({ viewport: { width, height: 1000 }, colorScheme: dark ? 'dark' : 'light' })
  const complaints: string[] = []
  page.on('console', (message) => complaints.push(`${message.type()}: ${message.text()}`))
  page.on('pageerror', (error) => complaints.push(`error: ${error.message}`))
  page.on('dialog', (dialog) => {
    complaints.push(`dialog: ${dialog.message()}`)
    return dialog.dismiss()
  })
  page.on('request', (request) => {
    if (!/^(file|data):/.test(request.url())) complaints.push(`request: ${request.url()}`)
  })
  await page.goto(`file://${file}`)
  return { page, complaints }
}
