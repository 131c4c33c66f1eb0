import { createHash } from 'node:crypto'
import { existsSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { type Download, type DownloadOptions, download } from '../../src/support/download.ts'
import { InputError } from '../../src/support/errors.ts'
import { breakOff, etagOf, type FileServer, fileServer } from './file-server.ts'
import { temporaryFolder } from './temporary.ts'

const body = Buffer.from(Array.from({ length: 200_000 }, (_, i) => (i * 31 + (i >> 8)) & 0xff))
const sha256 = createHash('sha256').update(body).digest('hex')
const quick: DownloadOptions = { pauseMs: 1 }

interface Case {
  server: FileServer
  path: string
  get(what?: Partial<Download>, options?: DownloadOptions): Promise<string>
  fails(what?: Partial<Download>, options?: DownloadOptions): Promise<string>
}

async function setUp(): Promise<Case> {
  const server = await fileServer({ '/f': body })
  const path = join(temporaryFolder(), 'sub', 'f')
  const get: Case['get'] = (what, options) =>
    download({ url: `${server.url}/f`, name: 'f of it', ...what }, path, { ...quick, ...options })
  return {
    ...{ server, path, get },
    async fails(what, options) {
      const error = await get(what, options).catch((thrown: unknown) => thrown)
      expect(error).toBeInstanceOf(InputError)
      expect(existsSync(path)).toBe(false)
      return (error as InputError).message
    },
  }
}

describe('a download', () => {
  it('stores the bytes, tells how many there are, and leaves nothing beside', async () => {
    const { path, get } = await setUp()
    const told: [number, number | undefined][] = []
    expect(await get({}, { onBytes: (bytes, total) => told.push([bytes, total]) })).toBe(sha256)
    expect(readFileSync(path).equals(body)).toBe(true)
    expect(told.at(-1)).toEqual([body.length, body.length])
    expect(readdirSync(join(path, '..'))).toEqual(['f'])
  })

  it('goes on from where the connection broke, by itself', async () => {
    const { server, path, get } = await setUp()
    let breaks = 2
    server.intercept = (request, response, file) => {
      if (breaks-- <= 0) return false
      breakOff(request, response, file!)
      return true
    }
    expect(await get()).toBe(sha256)
    expect(server.requests[0]).toBe('/f')
    expect(server.requests.slice(1).every((request) => /^\/f bytes=[1-9]\d*-$/.test(request))).toBe(true)
    expect(readFileSync(path).equals(body)).toBe(true)
  })

  it('goes on in another run, after it was given up', async () => {
    const { server, path, get, fails } = await setUp()
    server.intercept = (request, response, file) => {
      breakOff(request, response, file!)
      return true
    }
    expect(await fails({}, { attempts: 1 })).toMatch(
      /The download of f of it broke off at \d+ bytes .*go on from there/,
    )
    const kept = statSync(`${path}.incomplete`).size
    expect(kept).toBeGreaterThan(0)
    server.intercept = undefined
    server.requests.length = 0
    expect(await get()).toBe(sha256)
    expect(server.requests).toEqual([`/f bytes=${kept}-`])
  })

  it('starts again where the file has changed meanwhile', async () => {
    const { server, path, get, fails } = await setUp()
    server.intercept = (request, response, file) => {
      breakOff(request, response, file!)
      return true
    }
    await fails({}, { attempts: 1 })
    server.intercept = undefined
    const other = Buffer.from(body.map((byte) => byte ^ 0x55))
    server.files.set('/f', { body: other })
    await get()
    expect(readFileSync(path).equals(other)).toBe(true)
  })

  it('starts again where the server knows no ranges, and where nothing shows what the beginning is of', async () => {
    const { server, path, get } = await setUp()
    await get()
    writeFileSync(`${path}.incomplete`, body.subarray(0, 1000))
    server.requests.length = 0
    await get()
    expect(server.requests).toEqual(['/f'])
    writeFileSync(`${path}.incomplete`, body.subarray(0, 1000))
    writeFileSync(`${path}.incomplete.json`, JSON.stringify({ url: `${server.url}/f`, etag: etagOf(body) }))
    server.ignoreRanges = true
    await get()
    expect(readFileSync(path).equals(body)).toBe(true)
  })

  it('with all its bytes there asks for no more than that', async () => {
    const { server, path, get } = await setUp()
    await get()
    writeFileSync(`${path}.incomplete`, body)
    writeFileSync(`${path}.incomplete.json`, JSON.stringify({ url: `${server.url}/f`, etag: etagOf(body) }))
    server.requests.length = 0
    expect(await get()).toBe(sha256)
    expect(server.requests).toEqual([`/f bytes=${body.length}-`])
  })

  it('waits for a busy server as long as it says, and gives up after some tries', async () => {
    const { server, get } = await setUp()
    let busy = 2
    server.intercept = (_, response) => {
      if (busy-- <= 0) return false
      response.writeHead(503, { 'retry-after': '0' }).end()
      return true
    }
    expect(await get()).toBe(sha256)
    const again = await setUp()
    again.server.intercept = (_, response) => {
      response.writeHead(503).end()
      return true
    }
    expect(await again.fails({}, { attempts: 3 })).toContain('the server answered 503')
    expect(again.server.requests).toHaveLength(3)
  })

  it('follows redirections, and sends what is secret to its own host only', async () => {
    const { server, get } = await setUp()
    const seen: string[] = []
    const { port } = new URL(server.url)
    server.intercept = (request, response) => {
      seen.push(`${request.headers.host?.split(':')[0]} ${request.url} ${request.headers.authorization ?? '-'}`)
      if (request.url !== '/start') return false
      response.writeHead(302, { location: `http://localhost:${port}/f` }).end()
      return true
    }
    expect(await get({ url: `${server.url}/start`, headers: { authorization: 'Bearer x' } })).toBe(sha256)
    expect(seen).toEqual(['127.0.0.1 /start Bearer x', 'localhost /f -'])
  })

  it('is right when it has the hash that is asked for, or that the server announces on the way', async () => {
    const { server, get } = await setUp()
    expect(await get({ digest: { algorithm: 'sha256', hex: sha256 } })).toBe(sha256)
    server.intercept = (request, response) => {
      if (request.url !== '/hub') return false
      response.writeHead(302, { location: '/f', 'x-linked-etag': `"${'a'.repeat(64)}"` }).end()
      return true
    }
    const other = await setUp()
    other.server.intercept = server.intercept
    const message = await other.fails({ url: `${other.server.url}/hub` })
    expect(message).toContain(
      `The bytes of f of it are not those that the server announced (the SHA-256 should be aaaa`,
    )
    expect(readdirSync(join(other.path, '..'))).toEqual([])
  })

  it('ends at once when it is stopped', async () => {
    const { server, get } = await setUp()
    const controller = new AbortController()
    server.intercept = (_, response) => {
      response.writeHead(200, { 'content-length': body.length })
      response.write(body.subarray(0, 10))
      setTimeout(() => controller.abort(), 50)
      return true
    }
    await expect(get({}, { signal: controller.signal })).rejects.toMatchObject({ name: 'AbortError' })
  })

  it('does not wait for ever for a server that says nothing', async () => {
    const { server, fails } = await setUp()
    server.intercept = (request, response) => {
      if (request.url === '/f' && server.requests.length % 2 === 0) return true
      response.writeHead(200, { 'content-length': body.length })
      response.write(body.subarray(0, 10))
      return true
    }
    expect(await fails({}, { silenceMs: 60, attempts: 2 })).toMatch(/nothing arrived for 0.06|no answer in 0.06/)
  })
})

describe('a download is refused', () => {
  it.each([404, 410, 403, 400])('when the answer is %i', async (status) => {
    const { server, fails } = await setUp()
    server.intercept = (_, response) => {
      response.writeHead(status).end()
      return true
    }
    expect(await fails()).toContain(`answered ${status}`)
    expect(server.requests).toHaveLength(1)
  })

  it('when its bytes have another hash, and nothing is kept', async () => {
    const { server, path, fails } = await setUp()
    const message = await fails({ digest: { algorithm: 'sha256', hex: 'b'.repeat(64) } })
    expect(message).toContain('the SHA-256 should be bbbb')
    expect(readdirSync(join(path, '..'))).toEqual([])
    expect(server.requests).toHaveLength(1)
  })

  it.each(['999999999999999', '5'])('when the length announced is %s and another is known', async (length) => {
    const { server, fails } = await setUp()
    server.intercept = (_, response) => {
      response.writeHead(200, { 'content-length': length })
      response.write('abcde')
      response.destroy()
      return true
    }
    expect(await fails({ size: body.length }, { attempts: 1 })).toMatch(/announces \d+ bytes|broke off/)
  })

  it('when the disk has no room for what is announced', async () => {
    const { server, fails } = await setUp()
    server.intercept = (_, response) => {
      response.writeHead(200, { 'content-length': '999999999999999' })
      response.write('abc')
      return true
    }
    expect(await fails()).toMatch(/needs 999999999999999 more bytes/)
  })

  it('when it is sent on for ever, or to no web address', async () => {
    const { server, fails } = await setUp()
    let location = '/f'
    server.intercept = (_, response) => {
      response.writeHead(302, { location }).end()
      return true
    }
    expect(await fails()).toContain('leads on and on')
    location = 'file:///etc/passwd'
    expect(await fails()).toContain('is no address that can be fetched')
  })

  it('when another part of the file is sent than was asked for', async () => {
    const { server, path, get } = await setUp()
    await get()
    writeFileSync(`${path}.incomplete`, body.subarray(0, 1000))
    writeFileSync(`${path}.incomplete.json`, JSON.stringify({ url: `${server.url}/f`, etag: etagOf(body) }))
    let lies = 1
    server.intercept = (_, response) => {
      if (lies-- <= 0) return false
      response.writeHead(206, { 'content-range': `bytes 5-9/${body.length}` }).end('abcde')
      return true
    }
    expect(await get()).toBe(sha256)
    expect(readFileSync(path).equals(body)).toBe(true)
  })
})
