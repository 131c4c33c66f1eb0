// A local web server with transformers.js as a page loads it, ONNX Runtime's WebAssembly files from node_modules, and model folders.
// Nothing is fetched from anywhere else. Also what the tests of exported folders in Chromium use.
import { createReadStream, existsSync, statSync } from 'node:fs'
import { createServer } from 'node:http'
import { extname, join, resolve, sep } from 'node:path'

const modules = resolve(import.meta.dirname, '../../node_modules')

const PAGE = `<!doctype html>
<meta charset="utf-8">
<link rel="icon" href="data:,">
<script type="importmap">${JSON.stringify({
  imports: {
    '@huggingface/transformers': '/transformers/transformers.web.js',
    'onnxruntime-common': '/onnxruntime-common/index.js',
    'onnxruntime-web/webgpu': '/onnxruntime-web/ort.webgpu.bundle.min.mjs',
  },
})}</script>
<script type="module" src="/page.js"></script>`

const types = {
  '.js': 'text/javascript',
  '.mjs': 'text/javascript',
  '.wasm': 'application/wasm',
  '.json': 'application/json',
}

/**
 * Serves `/` (a page with `globalThis.runtime`, see page.js), and `/models/<name>/` for every folder of `models`.
 *
 * @returns `{ url, missing, close }`; `missing` collects the paths that were asked for and are not there
 */
export async function servePage(models) {
  const folders = {
    transformers: join(modules, '@huggingface/transformers/dist'),
    'onnxruntime-common': join(modules, 'onnxruntime-common/dist/esm'),
    'onnxruntime-web': join(modules, 'onnxruntime-web/dist'),
  }
  const missing = []
  const server = createServer((request, response) => {
    const path = decodeURIComponent(new URL(request.url, 'http://localhost').pathname)
    const isolated = {
      // what a page needs for threads in WebAssembly
      'cross-origin-opener-policy': 'same-origin',
      'cross-origin-embedder-policy': 'require-corp',
    }
    if (path === '/') return response.writeHead(200, { 'content-type': 'text/html', ...isolated }).end(PAGE)
    const file = path === '/page.js' ? join(import.meta.dirname, 'page.js') : fileOf(path)
    if (file === undefined || !existsSync(file) || !statSync(file).isFile()) {
      missing.push(path)
      return response.writeHead(404, isolated).end()
    }
    response.writeHead(200, {
      'content-type': types[extname(file)] ?? 'application/octet-stream',
      'content-length': statSync(file).size,
      'cache-control': 'no-store',
      ...isolated,
    })
    createReadStream(file).pipe(response)
  })
  const fileOf = (path) => {
    const [, first, ...rest] = path.split('/')
    const root = first === 'models' ? models[rest.shift()] : folders[first]
    if (root === undefined) return undefined
    const full = resolve(root, rest.join('/'))
    return full.startsWith(resolve(root) + sep) ? full : undefined
  }
  await new Promise((done) => server.listen(0, '127.0.0.1', done))
  return {
    url: `http://127.0.0.1:${server.address().port}/`,
    missing,
    close: () =>
      new Promise((done) => {
        server.close(done)
        server.closeAllConnections()
      }),
  }
}
