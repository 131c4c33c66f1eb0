// transformers.js in headless Chromium, over onnxruntime-web: `device` of the request is wasm or webgpu.
//
//   node bench/runtimes/chromium.mjs request.json
import { readFileSync } from 'node:fs'
import { resolve } from 'node:path'
import sparticuz from '@sparticuz/chromium'
import { chromium } from 'playwright-core'
import { inBatches, joined, request, writeAnswer } from './measure.mjs'
import { servePage } from './page-server.mjs'

const asked = request()
const { model, dtype, device, f0, threads, texts, long, questions, queries, dimension, pooling, normalize, prompts } =
  asked
const server = await servePage({ nodes: resolve(model), f0: resolve(f0) })
// not the package's own arguments: those switch the isolation off that threads in WebAssembly need
const args = ['--no-sandbox', '--no-zygote', '--enable-unsafe-swiftshader']
if (device === 'webgpu')
  args.push('--enable-unsafe-webgpu', '--use-webgpu-adapter=swiftshader', '--ignore-gpu-blocklist')
const browser = await chromium.launch({ executablePath: await sparticuz.executablePath(), args })
try {
  const page = await browser.newPage()
  const complaints = []
  page.on('pageerror', (error) => complaints.push(error.message))
  page.on('console', (message) => message.type() === 'error' && complaints.push(message.text()))
  const before = await rendererMemory()
  const importing = performance.now()
  await page.goto(server.url)
  await page.waitForFunction(() => globalThis.runtime !== undefined)
  const importMs = performance.now() - importing
  const version = await page.evaluate(() => globalThis.runtime.version)
  const isolated = await page.evaluate(() => globalThis.runtime.isolated)
  if (!isolated) throw new Error('The page is not isolated, so WebAssembly has no threads there.')
  const gpu = device === 'webgpu' ? await page.evaluate(() => globalThis.runtime.gpu()) : undefined
  if (device === 'webgpu' && gpu === null) throw new Error('Chromium finds no WebGPU adapter.')

  const load = (name, type, on) =>
    page.evaluate(([n, t, d, count]) => globalThis.runtime.load(n, t, d, count), [name, type, on, threads])
  const embed = (name, prompt, inputs) =>
    inBatches(inputs, dimension, async (batch) => {
      const prompted = batch.map((text) => prompt + text)
      const call = ([n, all, p, unit]) => globalThis.runtime.embed(n, all, p, unit)
      return Float32Array.from(await page.evaluate(call, [name, prompted, pooling, normalize]))
    })
  const opening = performance.now()
  await load('nodes', dtype, device).catch((error) => {
    throw new Error(`${error.message.split('\n')[0]} ${complaints.slice(-3).join(' ')}`.trim())
  })
  if (queries.length > 0) await load('f0', 'fp32', device)
  const loadMs = performance.now() - opening
  const loaded = await rendererMemory()

  const ask = async ({ question, texts: all }) => {
    await embed('f0', prompts.query, [question])
    await embed('nodes', prompts.node, all)
  }
  if (queries.length > 0) await ask(queries[0])
  const milliseconds = []
  for (const [i, query] of queries.entries()) {
    const began = performance.now()
    await ask(query)
    milliseconds.push(performance.now() - began)
    console.error(`query ${i + 1} of ${queries.length}`)
  }
  // the first batch of a shape compiles what computes it
  await embed('nodes', prompts.node, texts.slice(0, device === 'webgpu' ? 1 : 8))
  const began = performance.now()
  const nodes = await embed('nodes', prompts.node, texts)
  const seconds = (performance.now() - began) / 1000
  const longRows = long.length === 0 ? new Float32Array(0) : await embed('nodes', prompts.node, long)
  const asQuestions = questions.length === 0 ? new Float32Array(0) : await embed('f0', prompts.query, questions)
  const ended = await rendererMemory()
  await writeAnswer(asked.output, {
    result: {
      ...{ loadMs, importMs, seconds, milliseconds, gpu },
      versions: { 'transformers.js': version, Chromium: browser.version() },
      memory: { loaded: loaded.resident - before.resident, peak: ended.peak - before.resident },
    },
    nodes: joined(nodes, longRows),
    questions: asQuestions,
    dimension,
  })
} finally {
  await browser.close()
  await server.close()
}

/** Resident memory of the page's process, now and at its highest; of the largest of several. NaN where /proc is missing. */
async function rendererMemory() {
  const session = await browser.newBrowserCDPSession()
  const { processInfo } = await session.send('SystemInfo.getProcessInfo')
  await session.detach()
  const found = processInfo
    .filter(({ type }) => type === 'renderer' || (device === 'webgpu' && type === 'GPU'))
    .map(({ id }) => {
      try {
        const status = readFileSync(`/proc/${id}/status`, 'utf8')
        const bytes = (name) => 1024 * Number(new RegExp(`^${name}:\\s+(\\d+) kB`, 'm').exec(status)?.[1])
        return { resident: bytes('VmRSS'), peak: bytes('VmHWM') }
      } catch {
        return { resident: Number.NaN, peak: Number.NaN }
      }
    })
  return found.sort((a, b) => b.resident - a.resident)[0] ?? { resident: Number.NaN, peak: Number.NaN }
}
