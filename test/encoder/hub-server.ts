import { createHash } from 'node:crypto'
import { readdirSync, readFileSync, statSync } from 'node:fs'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join, relative, sep } from 'node:path'
import { onTestFinished } from 'vitest'

export const COMMIT = '0123456789abcdef0123456789abcdef01234567'

export interface HubServer {
  url: string
  /** Files of the one repository, by path; change them to change what is served. */
  files: Map<string, Buffer>
  /** `METHOD path [range]` of every request, in order. */
  requests: string[]
  /** The authorisation header of every request, '' for none. */
  tokens: string[]
  /** Announced instead of the true one: hash by path. */
  hashes: Map<string, string>
  /** Paths whose body stops halfway; the connection is destroyed when the promise is fulfilled. */
  broken: Map<string, () => Promise<void>>
  /** Answer every range request with the whole file. */
  ignoreRanges: boolean
  /** More entries in the listing. */
  extra: unknown[]
  /** Instead of COMMIT, what a revision is. */
  commit: string
  /** Entries a page of the listing; the link to the next page starts with this origin, its own by default. */
  nextOrigin: string | undefined
  close(): Promise<void>
}

/** The parts of the Hugging Face hub that a download needs, serving one repository `org/tiny` out of a folder. */
export async function hubServer(folder: string): Promise<HubServer> {
  const files = new Map<string, Buffer>()
  for (const entry of readdirSync(folder, { recursive: true, encoding: 'utf8' }))
    if (statSync(join(folder, entry)).isFile())
      files.set(relative(folder, join(folder, entry)).split(sep).join('/'), readFileSync(join(folder, entry)))

  const server = createServer((request, response) => {
    const range = request.headers.range
    hub.requests.push(`${request.method} ${request.url}${range === undefined ? '' : ` ${range}`}`)
    hub.tokens.push(request.headers.authorization ?? '')
    answer(hub, request, response).catch(() => response.destroy())
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const close = (): Promise<void> =>
    new Promise((resolve) => {
      server.close(() => resolve())
      server.closeAllConnections()
    })
  onTestFinished(close)
  const hub: HubServer = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    files,
    requests: [],
    tokens: [],
    hashes: new Map(),
    broken: new Map(),
    ignoreRanges: false,
    extra: [],
    commit: COMMIT,
    nextOrigin: undefined,
    close,
  }
  return hub
}

/** Weights lie in LFS, everything else in Git. */
export const inLfs = (path: string): boolean => /\.(safetensors|onnx|onnx_data)$/.test(path)

export function hashOf(path: string, content: Buffer): string {
  return inLfs(path)
    ? createHash('sha256').update(content).digest('hex')
    : createHash('sha1').update(`blob ${content.length}\0`).update(content).digest('hex')
}

const PAGE = 4

async function answer(hub: HubServer, request: IncomingMessage, response: ServerResponse): Promise<void> {
  const url = new URL(request.url as string, hub.url)
  const json = (status: number, value: unknown, headers = {}): void => {
    response.writeHead(status, { 'content-type': 'application/json', ...headers }).end(JSON.stringify(value))
  }
  const info = /^\/api\/models\/org\/tiny\/revision\/(.+)$/.exec(url.pathname)
  if (info !== null) {
    const revision = decodeURIComponent(info[1] as string)
    if (!['main', 'refs/pr/1', COMMIT].includes(revision)) return json(404, { error: 'Invalid rev id' })
    return json(200, { _id: '1', id: 'org/tiny', sha: hub.commit, lastModified: '2024-01-01T00:00:00Z' })
  }
  if (url.pathname === `/api/models/org/tiny/tree/${COMMIT}`) {
    const entries = [...hub.files].map(([path, content]) => {
      const hash = hub.hashes.get(path) ?? hashOf(path, content)
      const lfs = { oid: hash, size: content.length, pointerSize: 130 }
      const entry = { type: 'file', path, size: content.length }
      return inLfs(path) ? { ...entry, oid: 'f'.repeat(40), lfs } : { ...entry, oid: hash }
    })
    const all = [{ type: 'directory', path: '1_Pooling', size: 0, oid: 'e'.repeat(40) }, ...entries, ...hub.extra]
    const from = Number(url.searchParams.get('cursor') ?? 0)
    const next = `<${hub.nextOrigin ?? hub.url}${url.pathname}?cursor=${from + PAGE}>; rel="next"`
    return json(200, all.slice(from, from + PAGE), from + PAGE < all.length ? { link: next } : {})
  }
  const resolved = new RegExp(`^/org/tiny/resolve/${COMMIT}/(.+)$`).exec(url.pathname)
  const path = decodeURIComponent((resolved ?? /^\/storage\/(.+)$/.exec(url.pathname))?.[1] ?? '')
  const content = hub.files.get(path)
  if (content === undefined) return json(404, { error: 'Repository not found' })
  // what lies in LFS is stored on another host
  if (resolved !== null && inLfs(path)) {
    const { port } = new URL(hub.url)
    response.writeHead(302, { location: `http://localhost:${port}/storage/${path}` }).end()
    return
  }
  const range = hub.ignoreRanges ? null : /^bytes=(\d+)-(\d+)$/.exec(request.headers.range ?? '')
  const [start, end] = range === null ? [0, content.length] : [Number(range[1]), Number(range[2]) + 1]
  const body = content.subarray(start, end)
  response.writeHead(range === null ? 200 : 206, {
    'content-length': body.length,
    ...(range === null ? {} : { 'content-range': `bytes ${start}-${end - 1}/${content.length}` }),
  })
  const broken = hub.broken.get(path)
  if (broken === undefined) {
    response.end(body)
    return
  }
  hub.broken.delete(path)
  response.write(body.subarray(0, Math.ceil(body.length / 2)))
  await broken()
  response.destroy()
}
