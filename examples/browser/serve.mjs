// Serves a page that refines a pasted passage in the browser with an exported text encoder: nothing leaves the visitor's machine.
//
//   node examples/browser/serve.mjs [exported folder] [--query-encoder <folder>] [--port <number>]
//   node examples/browser/serve.mjs [exported folder] --output <folder>
//
// The second writes the same site into a folder, which any web server can serve as it is. Threads need a server that sends the two
// Cross-Origin headers below. The query encoder is the one inside the exported folder (canopy export --bundle) unless it is named.
import { execFileSync } from 'node:child_process'
import { createReadStream } from 'node:fs'
import { copyFile, cp, mkdir, mkdtemp, readdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { basename, dirname, extname, join, relative, resolve, sep } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { InputError, readEncoderPair } from 'canopy-encoder'

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    'query-encoder': { type: 'string' },
    output: { type: 'string' },
    port: { type: 'string', default: '8080' },
  },
})
const folder = positionals[0] ?? 'runs/quickstart/export'

// What cannot be used is said in a sentence, without a stack.
process.on('uncaughtException', (error) => {
  console.error(error instanceof InputError ? `error: ${error.message}` : error)
  process.exit(1)
})

const PAGE = ['index.html', 'style.css', 'page.js', 'worker.js', 'encoder.js']
const TYPES = {
  ...{ '.html': 'text/html; charset=utf-8', '.css': 'text/css; charset=utf-8', '.json': 'application/json' },
  ...{ '.js': 'text/javascript', '.mjs': 'text/javascript', '.wasm': 'application/wasm', '.txt': 'text/plain' },
}

const own = dirname(fileURLToPath(import.meta.url))
const library = dirname(fileURLToPath(import.meta.resolve('canopy-encoder/web')))
const transformers = dirname(createRequire(join(library, 'web.js')).resolve('@huggingface/transformers'))
const onnxruntime = dirname(createRequire(join(transformers, 'any.js')).resolve('onnxruntime-web'))

if (values.output === undefined) {
  const site = await mkdtemp(join(tmpdir(), 'canopy-site-'))
  const clean = () => rm(site, { recursive: true, force: true })
  await writeSite(site).catch(async (error) => {
    await clean()
    throw error
  })
  const { port } = await serve(site, Number(values.port)).catch(async (error) => {
    await clean()
    throw error
  })
  console.log(`http://localhost:${port}/ refines with ${folder}. Ctrl+C ends it.`)
  for (const signal of ['SIGINT', 'SIGTERM']) process.once(signal, () => clean().then(() => process.exit(0)))
} else {
  const site = resolve(values.output)
  const there = await readdir(site).catch(() => [])
  if (there.length > 0 && !there.includes('site.json'))
    throw new InputError(`${site} is not empty and no site of this program. Choose another --output.`)
  // an earlier site is replaced when the new one is whole
  const fresh = await mkdtemp(`${site}.`)
  await writeSite(fresh).catch(async (error) => {
    await rm(fresh, { recursive: true, force: true })
    throw error
  })
  await rm(site, { recursive: true, force: true })
  await rename(fresh, site)
  console.log(`${site} is the site: serve it with any web server.`)
}

/** The page, its libraries and both encoders. */
async function writeSite(site) {
  const pair = await readEncoderPair(folder, { queryEncoder: values['query-encoder'] })
  const { encoder, query, settings } = pair
  if (encoder.kind !== 'onnx' || settings.files === undefined)
    throw new InputError(`${encoder.folder} is no exported encoder. Write one with "canopy export --bundle".`)
  if (encoder.architecture === 'qwen3_vl')
    throw new InputError(`${encoder.folder} reads pictures and is too large for a page; export a text encoder.`)
  await mkdir(join(site, 'lib', 'canopy'), { recursive: true })
  for (const name of PAGE) await copyFile(join(own, name), join(site, name))
  for (const file of await closure(join(library, 'web.js'))) {
    const to = join(site, 'lib', 'canopy', relative(library, file))
    await mkdir(dirname(to), { recursive: true })
    await copyFile(file, to)
  }
  await copyFile(join(transformers, 'transformers.min.js'), join(site, 'lib', 'transformers.min.js'))
  for (const build of ['ort-wasm-simd-threaded', 'ort-wasm-simd-threaded.asyncify'])
    for (const ending of ['mjs', 'wasm'])
      await copyFile(join(onnxruntime, `${build}.${ending}`), join(site, 'lib', `${build}.${ending}`))

  // f0 is copied where it is a graph; a checkpoint's graph is written by "canopy export" without an adapter
  const names = { node: 'encoder', query: query.fingerprint === encoder.fingerprint ? 'encoder' : 'query-encoder' }
  await copyEncoder(encoder.folder, join(site, names.node))
  if (names.query !== names.node && (await exported(query.folder)))
    await copyEncoder(query.folder, join(site, names.query))
  else if (names.query !== names.node) {
    const main = join(library, 'cli', 'main.js')
    const from = ['--encoder', query.folder, '--output', join(site, names.query), '--check-items', '0', '--json']
    execFileSync(process.execPath, [main, 'export', ...from], { stdio: ['ignore', 'ignore', 'inherit'] })
  }
  await writeFile(join(site, 'site.json'), JSON.stringify({ ...names, name: basename(encoder.folder) }))
}

/** An exported folder without the query encoder inside it. */
async function copyEncoder(from, to) {
  const files = await readdir(from)
  await mkdir(to, { recursive: true })
  for (const name of files)
    if (name !== 'query-encoder') await cp(join(from, name), join(to, name), { recursive: true, dereference: true })
}

async function exported(path) {
  const canopy = await readFile(join(path, 'canopy.json'), 'utf8').catch(() => '{}')
  return JSON.parse(canopy).files !== undefined
}

/** A module of the library and every file it imports; they import each other by relative paths, so a browser loads them as they are. */
async function closure(file, found = new Set()) {
  if (found.has(file)) return found
  found.add(file)
  const text = await readFile(file, 'utf8')
  for (const [, path] of text.matchAll(/(?:from|import)\s*['"](\.{1,2}\/[^'"]+)['"]/g))
    await closure(resolve(dirname(file), path), found)
  return found
}

/** A web server for the files of a folder, for this machine only. */
async function serve(site, port) {
  const server = createServer(async (request, response) => {
    const path = pathOf(request.url)
    const file = resolve(site, `.${path?.endsWith('/') ? `${path}index.html` : path}`)
    const info = path !== undefined && file.startsWith(site + sep) ? await stat(file).catch(() => undefined) : undefined
    if (!info?.isFile() || (request.method !== 'GET' && request.method !== 'HEAD')) {
      response.writeHead(404, { 'content-type': 'text/plain' }).end('not found')
      return
    }
    response.writeHead(200, {
      'content-type': TYPES[extname(file)] ?? 'application/octet-stream',
      'content-length': info.size,
      'cache-control': 'no-cache',
      // together they let a page share memory between threads
      'cross-origin-opener-policy': 'same-origin',
      'cross-origin-embedder-policy': 'require-corp',
      // no other host is asked for anything
      'content-security-policy':
        "default-src 'self'; script-src 'self' 'wasm-unsafe-eval' blob:; worker-src 'self' blob:; img-src 'self' data:",
    })
    if (request.method === 'HEAD') response.end()
    else
      createReadStream(file)
        .on('error', () => response.destroy())
        .pipe(response)
  })
  await new Promise((done, failed) => server.once('error', failed).listen(port, '127.0.0.1', done))
  return server.address()
}

/** The path that a request asks for; undefined where it is none, as of `//[`. */
function pathOf(url) {
  try {
    return decodeURIComponent(new URL(url, 'http://localhost').pathname)
  } catch {
    return undefined
  }
}
