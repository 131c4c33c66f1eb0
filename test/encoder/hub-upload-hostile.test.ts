import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import type { ServerResponse } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { inspect } from 'node:util'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest'
import {
  canopySettings,
  locateEncoder,
  readEncoder,
  type Uploaded,
  type UploadOptions,
  uploadFolder,
} from '../../src/encoder/index.ts'
import { exportEncoder } from '../../src/export/index.ts'
import { InputError } from '../../src/support/errors.ts'
import { temporaryFolder } from '../support/temporary.ts'
import { tinyBert } from './fixtures.ts'
import { makeRepository, type UploadServer, uploadServer, WRITER } from './hub-upload-server.ts'

const ID = 'org/nodes'
const ESCAPE = '\u001b'
/** What no message may hold: the token, and what a terminal obeys. */
const UNFIT = new RegExp(`theWriter|${ESCAPE}`)

let made: string
beforeAll(async () => {
  made = join(mkdtempSync(join(tmpdir(), 'canopy-upload-')), 'export')
  const encoder = await readEncoder(tinyBert('mean'))
  await exportEncoder({
    ...{ encoder, queryEncoder: encoder, output: made, version: '0', threads: 1 },
    settings: canopySettings(encoder, encoder, { title: true, tableFormat: 'markdown', branching: 2 }),
    types: ['fp32'],
  })
})
afterAll(() => rmSync(join(made, '..'), { recursive: true }))

beforeEach(() => {
  for (const name of ['HF_HUB_OFFLINE', 'HF_TOKEN', 'HF_ENDPOINT', 'HF_HUB_CACHE', 'HF_HOME'])
    vi.stubEnv(name, undefined)
})
afterEach(() => {
  vi.unstubAllEnvs()
})

function exported(): string {
  const folder = join(temporaryFolder(), 'export')
  cpSync(made, folder, { recursive: true })
  return folder
}

const upload = (hub: UploadServer, options: Partial<UploadOptions> = {}, folder = made): Promise<Uploaded> =>
  uploadFolder(folder, { repo: ID, hubUrl: hub.url, accessToken: WRITER, pauseMs: 1, ...options })

const errorOf = (promise: Promise<unknown>): Promise<InputError> =>
  promise.then(
    () => expect.unreachable(),
    (error: InputError) => {
      expect(error).toBeInstanceOf(InputError)
      return error
    },
  )

/** A hub whose listings are answered otherwise. */
async function hubWith(respond: (response: ServerResponse, path: string) => void): Promise<UploadServer> {
  const hub = await uploadServer()
  makeRepository(hub, ID)
  hub.intercept = (_, response, path) => {
    if (!path.includes('/tree/')) return false
    respond(response, path)
    return true
  }
  return hub
}

describe('what a hub answers', { timeout: 30_000 }, () => {
  const JSON_TYPE = { 'content-type': 'application/json' }

  it('without an end is not read to its end', async () => {
    let sent = 0
    const hub = await hubWith((response) => {
      response.writeHead(200, JSON_TYPE)
      const chunk = ' '.repeat(1 << 20)
      const more = (): void => {
        while (!response.destroyed && sent < 1 << 29) {
          sent += chunk.length
          if (!response.write(chunk)) return void response.once('drain', more)
        }
        response.end('[]')
      }
      more()
    })
    const { message } = await errorOf(upload(hub))
    expect(message).toMatch(/answers with more than 64 MiB/)
    expect(sent).toBeLessThan(1 << 28)
    const download = locateEncoder(ID, { hubUrl: hub.url, cacheDir: temporaryFolder(), accessToken: WRITER })
    expect((await errorOf(download)).message).toMatch(/answers with more than 64 MiB/)
  })

  it('that breaks off is asked for again', async () => {
    let times = 0
    const hub = await hubWith((response) => {
      times++
      response.writeHead(200, { ...JSON_TYPE, 'content-length': 100 })
      response.write('[')
      setTimeout(() => response.destroy(), 20)
    })
    expect((await errorOf(upload(hub, { attempts: 3 }))).message).toMatch(
      /cannot be reached \(.*\)\. Nothing was committed/,
    )
    expect(times).toBe(3)
  })

  it('as page after page without an end is given up', async () => {
    const hub = await hubWith((response, path) => {
      response.writeHead(200, { ...JSON_TYPE, link: `<${hub.url}${path}?cursor=1>; rel="next"` }).end('[]')
    })
    expect((await errorOf(upload(hub))).message).toMatch(/gives no proper list of the files of org\/nodes/)
    expect(hub.seen.length).toBeLessThan(300)
  })

  it('is printed without the token that it repeats, and without what a terminal obeys', async () => {
    const hub = await hubWith((response) => void response.writeHead(200, JSON_TYPE).end(`${WRITER}${ESCAPE}[31m`))
    const error = await errorOf(upload(hub))
    expect(inspect(error, { depth: 10, showHidden: true })).not.toMatch(UNFIT)
    expect(error.message).toContain('is not what a Hugging Face hub does')
    const cacheDir = temporaryFolder()
    const download = () => errorOf(locateEncoder(ID, { hubUrl: hub.url, cacheDir, accessToken: WRITER }))
    expect((await download()).message).toMatch(/is no Hugging Face hub/)
    expect((await download()).message).not.toMatch(UNFIT)
    hub.intercept = (_, response) => {
      response.writeHead(403, JSON_TYPE).end(JSON.stringify({ error: `no ${WRITER} ${ESCAPE}[31m` }))
      return true
    }
    expect((await download()).message).toMatch(/answer 403: no/)
    expect((await download()).message).not.toMatch(UNFIT)
  })
})

describe('an access token', () => {
  it.each([`${WRITER}\nhf_another`, `${WRITER} `.repeat(2), `${WRITER}…`])(
    '%j is none, and is not repeated',
    async (token) => {
      const hub = await uploadServer()
      const error = await errorOf(upload(hub, { accessToken: token }))
      expect(error.message).toMatch(/The access token \(HF_TOKEN, --token-file\) is none of Hugging Face/)
      expect(inspect(error, { depth: 10, showHidden: true })).not.toMatch(/theWriter/)
      expect(hub.seen).toEqual([])
    },
  )

  it('may have blanks around it, as a file of secrets leaves them', async () => {
    const hub = await uploadServer()
    vi.stubEnv('HF_TOKEN', ` ${WRITER}\n`)
    expect((await uploadFolder(made, { repo: ID, hubUrl: hub.url })).created).toBe(true)
  })
})

describe('a file that is changed after it was looked at', () => {
  it('is not committed', async () => {
    const hub = await uploadServer()
    makeRepository(hub, ID)
    const folder = exported()
    hub.intercept = (_, __, path) => {
      if (path.includes('/preupload/')) {
        const file = join(folder, 'README.md')
        writeFileSync(file, readFileSync(file, 'utf8').replace('e', 'a'))
      }
      return false
    }
    const { message } = await errorOf(upload(hub, {}, folder))
    expect(message).toMatch(/README\.md: The file changed while .*nothing was committed/i)
    expect([...hub.files(ID).keys()]).toEqual(['.gitattributes'])
  })
})
