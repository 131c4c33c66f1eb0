import { createHash } from 'node:crypto'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { onTestFinished } from 'vitest'

export interface Served {
  body: Buffer
  headers?: Record<string, string>
}

export interface FileServer {
  url: string
  /** By path, as it is asked for. */
  files: Map<string, Served>
  /** `path [range]` of every request. */
  requests: string[]
  /** Called before a request is answered; true when it has answered itself. */
  intercept: ((request: IncomingMessage, response: ServerResponse, file: Served | undefined) => boolean) | undefined
  /** Answers every range with the whole file. */
  ignoreRanges: boolean
}

/** A server of files with strong ETags, ranges and If-Range. */
export async function fileServer(files: Record<string, Buffer> = {}): Promise<FileServer> {
  const state: FileServer = {
    ...{ url: '', requests: [], intercept: undefined, ignoreRanges: false },
    files: new Map(Object.entries(files).map(([path, body]) => [path, { body }])),
  }
  const server = createServer((request, response) => {
    const range = request.headers.range
    state.requests.push(`${request.url}${range === undefined ? '' : ` ${range}`}`)
    const file = state.files.get(request.url ?? '')
    if (state.intercept?.(request, response, file)) return
    if (file === undefined) {
      response.writeHead(404).end('no such file')
      return
    }
    sendFile(request, response, file, state.ignoreRanges)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  onTestFinished(
    () =>
      new Promise<void>((resolve) => {
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  )
  state.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  return state
}

export const etagOf = (body: Buffer): string => `"${createHash('md5').update(body).digest('hex')}"`

export function sendFile(
  request: IncomingMessage,
  response: ServerResponse,
  { body, headers = {} }: Served,
  ignoreRanges = false,
): void {
  const etag = headers.etag ?? etagOf(body)
  const condition = request.headers['if-range']
  const range =
    ignoreRanges || (condition !== undefined && condition !== etag)
      ? null
      : /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? '')
  const start = Number(range?.[1] ?? 0)
  const end = range?.[2] ? Number(range[2]) + 1 : body.length
  if (range !== null && start >= body.length) {
    response.writeHead(416, { 'content-range': `bytes */${body.length}` }).end()
    return
  }
  response.writeHead(range === null ? 200 : 206, {
    etag,
    'content-length': end - start,
    ...(range === null ? {} : { 'content-range': `bytes ${start}-${end - 1}/${body.length}` }),
    ...headers,
  })
  response.end(body.subarray(start, end))
}

/** Sends the first half of what was asked for, then breaks the connection. */
export function breakOff(request: IncomingMessage, response: ServerResponse, file: Served): void {
  const half = file.body.length / 2
  const from = Number(/^bytes=(\d+)-/.exec(request.headers.range ?? '')?.[1] ?? 0)
  response.writeHead(from > 0 ? 206 : 200, {
    etag: etagOf(file.body),
    'content-length': file.body.length - from,
    ...(from > 0 && { 'content-range': `bytes ${from}-${file.body.length - 1}/${file.body.length}` }),
  })
  response.write(file.body.subarray(from, from + half))
  setTimeout(() => response.destroy(), 100)
}
