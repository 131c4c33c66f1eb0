import { createHash } from 'node:crypto'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { onTestFinished } from 'vitest'
import { hashOf, inLfs } from './hub-server.ts'

export const WRITER = 'hf_theWriter'
export const READER = 'hf_theReader'

type Files = Map<string, Buffer>

export interface Repository {
  private: boolean
  /** Branch -> commit. */
  branches: Map<string, string>
  commits: Map<string, Files>
}

export interface Seen {
  method: string
  path: string
  authorization: string
  /** Host it was sent to, with port. */
  host: string
}

export interface UploadServer {
  url: string
  repositories: Map<string, Repository>
  /** Large files that have arrived, by SHA-256. */
  objects: Files
  seen: Seen[]
  /** Bytes of a part of a large file, where larger ones go in parts; undefined for one request a file. */
  partBytes: number | undefined
  /** Called with every request and its body before it is answered; true when it has answered itself. */
  intercept:
    | ((request: IncomingMessage, response: ServerResponse, path: string) => boolean | Promise<boolean>)
    | undefined
  /** What is kept of a file in place of what was sent. */
  keep: (path: string, content: Buffer) => Buffer
  /** Makes a commit on a branch of its own accord. */
  commit(id: string, branch: string, change: (files: Files) => void): string
  /** The files of a branch. */
  files(id: string, branch?: string): Files
  close(): Promise<void>
}

/**
 * The parts of the Hugging Face hub that making a repository, uploading in one commit and downloading need. Large files are kept under
 * another host name, as the real one does, and sent there with a signature in the address.
 */
export async function uploadServer(): Promise<UploadServer> {
  const server = createServer((request, response) => {
    const url = new URL(request.url as string, hub.url)
    const path = decodeURIComponent(url.pathname)
    hub.seen.push({
      method: request.method as string,
      path,
      authorization: request.headers.authorization ?? '',
      host: request.headers.host ?? '',
    })
    Promise.resolve(hub.intercept?.(request, response, path) ?? false)
      .then(async (answered) => {
        if (!answered) await answer(hub, request, response, url)
      })
      .catch(() => response.destroy())
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const close = (): Promise<void> =>
    new Promise((resolve) => {
      server.close(() => resolve())
      server.closeAllConnections()
    })
  onTestFinished(close)
  const hub: UploadServer = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    repositories: new Map(),
    objects: new Map(),
    seen: [],
    partBytes: undefined,
    intercept: undefined,
    keep: (_, content) => content,
    commit(id, branch, change) {
      const repository = hub.repositories.get(id) as Repository
      const files = new Map(repository.commits.get(repository.branches.get(branch) as string))
      change(files)
      const oid = createHash('sha1').update(`${id} ${branch} ${repository.commits.size}`).digest('hex')
      repository.commits.set(oid, files)
      repository.branches.set(branch, oid)
      return oid
    },
    files: (id, branch = 'main') => {
      const repository = hub.repositories.get(id) as Repository
      return repository.commits.get(repository.branches.get(branch) as string) as Files
    },
    close,
  }
  return hub
}

export function makeRepository(hub: UploadServer, id: string, secret = false): void {
  hub.repositories.set(id, { private: secret, branches: new Map(), commits: new Map() })
  hub.commit(id, 'main', (files) => files.set('.gitattributes', Buffer.from('*.onnx filter=lfs\n')))
}

export async function bodyOf(request: IncomingMessage): Promise<Buffer> {
  const chunks: Buffer[] = []
  for await (const chunk of request) chunks.push(chunk as Buffer)
  return Buffer.concat(chunks)
}

const STORED = /^\/storage\/([0-9a-f]{64})(?:\/(\d+))?$/
/** Parts of a file that have arrived, by hash and number. */
const parts = new WeakMap<UploadServer, Map<string, Buffer>>()

async function answer(hub: UploadServer, request: IncomingMessage, response: ServerResponse, url: URL): Promise<void> {
  const json = (status: number, value: unknown): void => {
    response.writeHead(status, { 'content-type': 'application/json; charset=utf-8' }).end(JSON.stringify(value))
  }
  const path = decodeURIComponent(url.pathname)
  const stored = STORED.exec(path)
  if (stored !== null) return storage(hub, request, response, url, stored[1] as string, stored[2])

  const token = /^Bearer (.+)$/.exec(request.headers.authorization ?? '')?.[1]
  if (token !== undefined && token !== WRITER && token !== READER)
    return json(401, { error: 'Invalid credentials in Authorization header' })
  const writes = request.method === 'POST'
  if (writes && token !== WRITER)
    return json(403, { error: `You don't have the rights to write, ${token} is read-only` })

  if (path === '/api/repos/create') {
    const { name, organization, visibility, type } = JSON.parse((await bodyOf(request)).toString()) as Record<
      string,
      string
    >
    const id = `${organization}/${name}`
    if (type !== 'model') return json(400, { error: 'only models here' })
    if (organization === 'closed') return json(403, { error: 'You are not a member of closed' })
    if (hub.repositories.has(id)) return json(409, { error: 'You already created this model repo' })
    makeRepository(hub, id, visibility === 'private')
    return json(200, { url: `${hub.url}/${id}`, id })
  }
  const [, id = '', rest = ''] =
    /^\/api\/models\/([^/]+\/[^/]+)\/(.*)$/.exec(path) ??
    /^\/([^/]+\/[^/]+)\.git\/(info\/lfs\/objects\/batch)$/.exec(path) ??
    /^\/([^/]+\/[^/]+)\/(resolve\/.*)$/.exec(path) ??
    []
  const repository = hub.repositories.get(id)
  if (repository === undefined || (repository.private && token === undefined))
    return json(token === undefined ? 401 : 404, { error: 'Repository not found' })
  const [verb, ...words] = rest.split('/')
  const commitOf = (revision: string): string | undefined =>
    repository.branches.get(revision === 'HEAD' ? 'main' : revision) ??
    (repository.commits.has(revision) ? revision : undefined)

  switch (verb) {
    case 'revision': {
      const sha = commitOf(words.join('/'))
      if (sha === undefined) return json(404, { error: `Invalid rev id: ${words.join('/')}` })
      return json(200, { _id: '1', id, sha, private: repository.private, lastModified: '2024-01-01T00:00:00Z' })
    }
    case 'branch': {
      repository.branches.set(words.join('/'), repository.branches.get('main') as string)
      await bodyOf(request)
      return json(200, {})
    }
    case 'tree': {
      const sha = commitOf(words.join('/'))
      if (sha === undefined) return json(404, { error: 'Invalid rev id' })
      const entries = [...(repository.commits.get(sha) as Files)].map(([file, content]) => {
        const hash = hashOf(file, content)
        const entry = { type: 'file', path: file, size: content.length }
        const lfs = { oid: hash, size: content.length, pointerSize: 130 }
        return inLfs(file) ? { ...entry, oid: 'f'.repeat(40), lfs } : { ...entry, oid: hash }
      })
      return json(200, entries)
    }
    case 'preupload': {
      const { files } = JSON.parse((await bodyOf(request)).toString()) as { files: { path: string }[] }
      return json(200, {
        files: files.map(({ path: file }) => ({ path: file, uploadMode: inLfs(file) ? 'lfs' : 'regular' })),
      })
    }
    case 'info':
      return lfsBatch(hub, request, json)
    case 'commit':
      return commit(hub, request, json, id, words.join('/'))
    case 'resolve': {
      const [revision = '', ...file] = words
      const content = repository.commits.get(commitOf(revision) ?? '')?.get(file.join('/'))
      if (content === undefined) return json(404, { error: 'Entry not found' })
      response.writeHead(200, { 'content-length': content.length }).end(content)
      return
    }
    default:
      return json(404, { error: 'Not here' })
  }
}

async function lfsBatch(
  hub: UploadServer,
  request: IncomingMessage,
  json: (status: number, value: unknown) => void,
): Promise<void> {
  const { operation, transfers, objects } = JSON.parse((await bodyOf(request)).toString()) as {
    operation: string
    transfers: string[]
    objects: { oid: string; size: number }[]
  }
  if (operation !== 'upload' || transfers.includes('xet')) return json(400, { error: 'plain uploads only' })
  const at = `http://localhost:${new URL(hub.url).port}/storage`
  return json(200, {
    transfer: 'basic',
    objects: objects.map(({ oid, size }) => {
      if (hub.objects.has(oid)) return { oid, size }
      if (hub.partBytes === undefined || size <= hub.partBytes)
        return { oid, size, actions: { upload: { href: `${at}/${oid}?signature=theSecret` } } }
      const header: Record<string, string> = { chunk_size: String(hub.partBytes) }
      for (let part = 1; part <= Math.ceil(size / hub.partBytes); part++)
        header[String(part).padStart(5, '0')] = `${at}/${oid}/${part}?signature=theSecret`
      return { oid, size, actions: { upload: { href: `${at}/${oid}?signature=theSecret`, header } } }
    }),
  })
}

async function storage(
  hub: UploadServer,
  request: IncomingMessage,
  response: ServerResponse,
  url: URL,
  oid: string,
  part: string | undefined,
): Promise<void> {
  const body = await bodyOf(request)
  const known = parts.get(hub) ?? new Map<string, Buffer>()
  parts.set(hub, known)
  const refuse = (status: number, text: string): void => void response.writeHead(status).end(text)
  if (url.searchParams.get('signature') !== 'theSecret') return refuse(403, 'SignatureDoesNotMatch')
  // as S3 does, which takes no body of unknown length
  if (request.method === 'PUT' && request.headers['content-length'] === undefined)
    return refuse(411, 'MissingContentLength')
  if (part !== undefined) {
    known.set(`${oid}/${part}`, body)
    response.writeHead(200, { etag: `"${part}-${body.length}"` }).end()
    return
  }
  let content = body
  if (request.method === 'POST') {
    const { parts: listed } = JSON.parse(body.toString()) as { parts: { partNumber: number; etag: string }[] }
    const all = listed.map(({ partNumber, etag }) => {
      const arrived = known.get(`${oid}/${partNumber}`)
      return arrived !== undefined && etag === `"${partNumber}-${arrived.length}"` ? arrived : undefined
    })
    if (all.includes(undefined)) return refuse(400, 'InvalidPart')
    content = Buffer.concat(all as Buffer[])
  }
  if (createHash('sha256').update(content).digest('hex') !== oid) return refuse(400, 'BadDigest')
  hub.objects.set(oid, content)
  response.writeHead(200).end()
}

interface Line {
  key: string
  value: { path: string; content: string; encoding: string; oid: string; size: number; parentCommit?: string }
}

async function commit(
  hub: UploadServer,
  request: IncomingMessage,
  json: (status: number, value: unknown) => void,
  id: string,
  branch: string,
): Promise<void> {
  if (request.headers['content-type'] !== 'application/x-ndjson') return json(400, { error: 'NDJSON is expected' })
  const [header, ...operations] = (await bodyOf(request))
    .toString()
    .split('\n')
    .map((line) => JSON.parse(line) as Line)
  const head = hub.repositories.get(id)?.branches.get(branch)
  if (head === undefined) return json(404, { error: `Invalid rev id: ${branch}` })
  if (header?.value.parentCommit !== undefined && header.value.parentCommit !== head)
    return json(412, { error: 'A commit has happened since. Please refresh and try again.' })
  for (const { key, value } of operations)
    if (key === 'lfsFile' && hub.objects.get(value.oid)?.length !== value.size)
      return json(400, {
        error: `Your push was rejected because an LFS pointer pointed to a file that does not exist: ${value.path}`,
      })
  const oid = hub.commit(id, branch, (files) => {
    for (const { key, value } of operations) {
      if (key === 'deletedFile') files.delete(value.path)
      if (key === 'lfsFile') files.set(value.path, hub.keep(value.path, hub.objects.get(value.oid) as Buffer))
      if (key === 'file') files.set(value.path, hub.keep(value.path, Buffer.from(value.content, 'base64')))
    }
  })
  return json(200, { success: true, commitOid: oid, commitUrl: `${hub.url}/${id}/commit/${oid}`, hookOutput: '' })
}
