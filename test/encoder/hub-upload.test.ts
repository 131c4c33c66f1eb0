import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, truncateSync, writeFileSync } from 'node:fs'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { inspect } from 'node:util'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest'
import { uploadFetch } from '../../src/encoder/hub/upload-request.ts'
import {
  canopySettings,
  openPair,
  readAdapter,
  readEncoder,
  readEncoderPair,
  refineItems,
  type Uploaded,
  type UploadOptions,
  uploadFolder,
} from '../../src/encoder/index.ts'
import { exportEncoder } from '../../src/export/index.ts'
import { InputError } from '../../src/support/errors.ts'
import { snapshot, temporaryFolder } from '../support/temporary.ts'
import { tinyBert } from './fixtures.ts'
import { makeRepository, READER, type UploadServer, uploadServer, WRITER } from './hub-upload-server.ts'

const ID = 'org/nodes'
/** What lies in LFS of the export. */
const LARGE = ['onnx/model.onnx', 'onnx/model_int8.onnx', 'query-encoder/model.safetensors']

let made: string
beforeAll(async () => {
  made = join(mkdtempSync(join(tmpdir(), 'canopy-upload-')), 'export')
  const encoder = await readEncoder(tinyBert('mean'))
  await exportEncoder({
    ...{ encoder, queryEncoder: encoder, output: made, bundle: true, version: '0', threads: 1 },
    adapter: await readAdapter(join(tinyBert('mean'), 'adapter'), encoder),
    settings: canopySettings(encoder, encoder, { title: true, tableFormat: 'markdown', branching: 2 }),
    types: ['fp32', 'int8'],
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

/** A copy of the export, to be changed. */
function exported(): string {
  const folder = join(temporaryFolder(), 'export')
  cpSync(made, folder, { recursive: true })
  return folder
}

const upload = (hub: UploadServer, folder: string, options: Partial<UploadOptions> = {}): Promise<Uploaded> =>
  uploadFolder(folder, { repo: ID, hubUrl: hub.url, accessToken: WRITER, pauseMs: 1, ...options })

async function failure(promise: Promise<unknown>): Promise<InputError> {
  const error = await promise.then(
    () => undefined,
    (e: unknown) => e,
  )
  expect(error).toBeInstanceOf(InputError)
  // neither the token nor an address that lets its bearer write, wherever one looks
  expect(inspect(error, { depth: 10, showHidden: true })).not.toMatch(/hf_the|theSecret/)
  return error as InputError
}

const requests = (hub: UploadServer, method: string, path: RegExp): number =>
  hub.seen.filter((seen) => seen.method === method && path.test(seen.path)).length
const puts = (hub: UploadServer): number => requests(hub, 'PUT', /^\/storage/)

/** What a folder's files are, by path. */
async function contents(folder: string): Promise<Record<string, string>> {
  const files = Object.entries(await snapshot(folder))
  return Object.fromEntries(
    files.map(([file, content]) => [file.slice(folder.length + 1).replaceAll('\\', '/'), content]),
  )
}

/** What the hub has of a branch, without what it adds itself. */
const kept = (hub: UploadServer, branch = 'main'): Record<string, string> =>
  Object.fromEntries(
    [...hub.files(ID, branch)]
      .filter(([path]) => path !== '.gitattributes')
      .map(([path, content]) => [path, content.toString('base64')]),
  )

async function refined(name: string, options: { hubUrl?: string; cacheDir?: string; accessToken?: string } = {}) {
  const pair = await readEncoderPair(name, options)
  const encoders = await openPair(pair, { threads: 1 })
  try {
    const items = [
      'The ferry left at dawn. It carried salt. The mill stood still.',
      { title: 'Mill', text: 'Oats. Rye. Wheat.' },
    ]
    return await refineItems(encoders, pair.settings, 'What did the ferry carry?', items)
  } finally {
    await encoders.close()
  }
}

describe('an exported encoder', () => {
  it('goes up in one commit to a repository that is made for it, and refines the same after a download', async () => {
    const hub = await uploadServer()
    const folder = exported()
    mkdirSync(join(folder, '.git'))
    writeFileSync(join(folder, '.git', 'config'), 'secret')
    writeFileSync(join(folder, '.env'), 'SECRET=1')
    symlinkSync('README.md', join(folder, 'ABOUT.md'))
    const bytes: number[] = []
    const done = await upload(hub, folder, {
      private: true,
      message: 'The first one',
      onProgress: ({ phase, done: count, total }) => {
        if (phase === `uploading ${ID}`) {
          bytes.push(count)
          expect(count).toBeLessThanOrEqual(total as number)
        }
      },
    })
    const local = await contents(folder)
    delete local['.git/config']
    delete local['.env']
    local['ABOUT.md'] = local['README.md'] as string
    expect(kept(hub)).toEqual(local)
    expect(done).toMatchObject({ repo: ID, revision: 'main', created: true, kind: 'encoder', others: [], deleted: [] })
    expect(done.committed).toEqual(Object.keys(local).sort())
    expect(done.hidden.sort()).toEqual(['.env', '.git'])
    expect(done.commit).toBe(hub.repositories.get(ID)?.branches.get('main'))
    expect(hub.repositories.get(ID)?.private).toBe(true)
    expect(requests(hub, 'POST', /\/commit\//)).toBe(1)
    expect(puts(hub)).toBe(LARGE.length)
    expect(done.bytesSent).toBe(LARGE.reduce((sum, path) => sum + readFileSync(join(folder, path)).length, 0))
    expect([...bytes].sort((a, b) => a - b)).toEqual(bytes)
    expect(bytes.at(-1)).toBe(done.bytesSent)
    // the token goes to the hub, and to no storage
    for (const { authorization, host, path } of hub.seen)
      expect([path, authorization]).toEqual([path, host.startsWith('localhost') ? '' : `Bearer ${WRITER}`])

    const download = { hubUrl: hub.url, cacheDir: temporaryFolder(), accessToken: READER }
    expect(await refined(ID, download)).toEqual(await refined(folder))
  })

  it('goes up again only where it differs', async () => {
    const hub = await uploadServer()
    const folder = exported()
    const { commit } = await upload(hub, folder)
    expect(await upload(hub, folder)).toMatchObject({ commit, committed: [], bytesSent: 0, created: false })
    expect(requests(hub, 'POST', /\/commit\//)).toBe(1)
    writeFileSync(join(folder, 'README.md'), 'Another text.')
    const again = await upload(hub, folder)
    expect(again).toMatchObject({ committed: ['README.md'], bytesSent: 0 })
    expect(again.commit).not.toBe(commit)
    expect(hub.files(ID).get('README.md')?.toString()).toBe('Another text.')
    expect(puts(hub)).toBe(LARGE.length)
  })

  it('goes up in parts where the hub wants that', async () => {
    const hub = await uploadServer()
    hub.partBytes = 10_000
    const folder = exported()
    const { bytesSent } = await upload(hub, folder)
    expect(kept(hub)).toEqual(await contents(folder))
    const sizes = LARGE.map((path) => readFileSync(join(folder, path)).length)
    expect(puts(hub)).toBe(sizes.reduce((sum, size) => sum + Math.ceil(size / 10_000), 0))
    expect(bytesSent).toBe(sizes.reduce((sum, size) => sum + size, 0))
  })

  it('goes to a branch that is made for it', async () => {
    const hub = await uploadServer()
    makeRepository(hub, ID)
    const folder = exported()
    await upload(hub, folder, { revision: 'release/1' })
    expect(kept(hub)).toEqual({})
    expect(kept(hub, 'release/1')).toEqual(await contents(folder))
    const { message } = await failure(upload(hub, folder, { revision: 'other', create: false }))
    expect(message).toContain(`${ID} has no branch other on ${hub.url}`)
    for (const revision of ['../x', 'a'.repeat(40), ''])
      expect((await failure(upload(hub, folder, { revision }))).message).toContain('is no branch')
  })

  it('may delete what else the repository holds, and says what it leaves', async () => {
    const hub = await uploadServer()
    makeRepository(hub, ID)
    hub.commit(ID, 'main', (files) => files.set('notes.txt', Buffer.from('old')))
    const folder = exported()
    expect((await upload(hub, folder)).others).toEqual(['notes.txt'])
    expect(await upload(hub, folder, { prune: true })).toMatchObject({
      deleted: ['notes.txt'],
      others: [],
      committed: [],
    })
    expect(kept(hub)).toEqual(await contents(folder))
    expect(hub.files(ID).has('.gitattributes')).toBe(true)
  })

  it.each(['model.safetensors', 'adapter_config.json'])(
    'does not go beside %s, which would be opened',
    async (path) => {
      const hub = await uploadServer()
      makeRepository(hub, ID)
      hub.commit(ID, 'main', (files) => files.set(path, Buffer.from('old')))
      const { message } = await failure(upload(hub, exported()))
      expect(message).toContain(
        `The repository holds "${path}", which would be opened together with the folder's files`,
      )
      expect(requests(hub, 'POST', /./)).toBe(0)
    },
  )

  it('does not become public where --private was asked for', async () => {
    const hub = await uploadServer()
    makeRepository(hub, ID)
    expect((await failure(upload(hub, exported(), { private: true }))).message).toContain('is public, and --private')
    expect(kept(hub)).toEqual({})
  })
})

describe('an adapter', () => {
  it('goes up as PEFT reads it', async () => {
    const hub = await uploadServer()
    const done = await upload(hub, join(tinyBert('mean'), 'adapter'))
    expect(done).toMatchObject({ kind: 'adapter', created: true })
    expect(kept(hub)).toEqual(await contents(join(tinyBert('mean'), 'adapter')))
  })

  it('goes up with a file that is read in pieces', async () => {
    const hub = await uploadServer()
    const folder = join(temporaryFolder(), 'adapter')
    cpSync(join(tinyBert('mean'), 'adapter'), folder, { recursive: true })
    const large = Buffer.alloc(12_000_001, 'a file of many pieces, which is not kept in memory. ')
    writeFileSync(join(folder, 'large.onnx'), large)
    const steps: number[] = []
    await upload(hub, folder, { onProgress: ({ phase, done }) => phase.startsWith('uploading') && steps.push(done) })
    expect(hub.files(ID).get('large.onnx')?.equals(large)).toBe(true)
    expect(new Set(steps).size).toBeGreaterThan(10)
  })

  it('is refused without its tensors', async () => {
    const hub = await uploadServer()
    const folder = temporaryFolder()
    cpSync(join(tinyBert('mean'), 'adapter'), folder, { recursive: true })
    rmSync(join(folder, 'adapter_model.safetensors'))
    expect((await failure(upload(hub, folder))).message).toContain('the adapter is not whole')
    expect(hub.seen).toEqual([])
  })
})

describe('an upload that breaks off', () => {
  it('while a large file is sent leaves the repository as it was, and goes on with what has not arrived', async () => {
    const hub = await uploadServer()
    const folder = exported()
    let started = 0
    hub.intercept = async (request, _, path) => {
      if (request.method !== 'PUT' || !path.startsWith('/storage/')) return false
      started++
      if (started === 1) return false
      // not before the first file is there
      while (hub.objects.size === 0) await new Promise((resolve) => setTimeout(resolve, 5))
      request.once('data', () => request.socket.destroy())
      return true
    }
    const { message } = await failure(upload(hub, folder))
    expect(message).toMatch(
      /^Sending (onnx|query-encoder)\/[\w.]+ to org\/nodes broke off \(\w+\)\. Nothing was committed/,
    )
    expect(message).toContain('Run the same command again')
    expect(kept(hub)).toEqual({})
    expect(hub.objects.size).toBe(1)
    expect(requests(hub, 'POST', /\/commit\//)).toBe(0)

    hub.intercept = undefined
    hub.seen.length = 0
    const done = await upload(hub, folder)
    expect(done.created).toBe(false)
    expect(puts(hub)).toBe(LARGE.length - 1)
    expect(kept(hub)).toEqual(await contents(folder))
  })

  it('for a passing reason is tried again', async () => {
    const hub = await uploadServer()
    const folder = exported()
    let trouble = 0
    hub.intercept = (request, response) => {
      if (request.method !== 'PUT' || ++trouble > 2) return false
      if (trouble === 1) response.writeHead(503).end()
      else request.socket.destroy()
      return true
    }
    await upload(hub, folder)
    expect(kept(hub)).toEqual(await contents(folder))
    expect(trouble).toBe(2 + LARGE.length)
  })

  it('when the answer to the commit is lost looks whether it was made', async () => {
    const hub = await uploadServer()
    const folder = exported()
    hub.intercept = (request, response, path) => {
      if (request.method === 'POST' && path.includes('/commit/')) {
        response.end = (() => request.socket.destroy()) as unknown as typeof response.end
      }
      return false
    }
    const { commit } = await upload(hub, folder)
    expect(commit).toBe(hub.repositories.get(ID)?.branches.get('main'))
    expect(kept(hub)).toEqual(await contents(folder))
    expect(requests(hub, 'POST', /\/commit\//)).toBe(1)
  })

  it('with the commit itself says that it is not known, and is not repeated by itself', async () => {
    const hub = await uploadServer()
    const folder = exported()
    hub.intercept = (request, _, path) => {
      if (!path.includes('/commit/')) return false
      request.socket.destroy()
      return true
    }
    expect((await failure(upload(hub, folder))).message).toContain(
      'Whether the files were committed to org/nodes (main) is not known',
    )
    expect(kept(hub)).toEqual({})
    expect(requests(hub, 'POST', /\/commit\//)).toBe(1)
  })

  it.each([
    ['before it is hashed', /\/preupload\//],
    ['before it is sent', /\/objects\/batch$/],
  ])('because a file became shorter, or went, %s', async (_, when) => {
    for (const spoil of [(file: string) => truncateSync(file, 1000), rmSync]) {
      const hub = await uploadServer()
      const folder = exported()
      const file = join(folder, 'onnx/model.onnx')
      hub.intercept = (request, __, path) => {
        if (request.method === 'POST' && when.test(path)) spoil(file)
        return false
      }
      expect((await failure(upload(hub, folder))).message.replaceAll('\\', '/')).toMatch(
        /onnx\/model\.onnx: (The file became shorter|cannot read the file: no such file)/,
      )
      expect(kept(hub)).toEqual({})
    }
  })

  it('by a signal says what is there', async () => {
    const hub = await uploadServer()
    const controller = new AbortController()
    hub.intercept = (request) => {
      if (request.method !== 'PUT') return false
      controller.abort()
      return true
    }
    const error = await upload(hub, exported(), { signal: controller.signal }).then(
      () => undefined,
      (e: Error) => e,
    )
    expect(error?.name).toBe('AbortError')
    expect(error?.message).toContain('The upload to org/nodes was stopped. Nothing was committed')
    expect(kept(hub)).toEqual({})
  })
})

describe('a hub', () => {
  it('that has other bytes afterwards is told', async () => {
    const hub = await uploadServer()
    hub.keep = (path, content) => (path === 'onnx/model.onnx' ? Buffer.from(content).fill(0, 100, 101) : content)
    const { message } = await failure(upload(hub, exported()))
    expect(message).toContain('The hub has other bytes than the folder in the commit')
    expect(message).toContain('onnx/model.onnx')
    expect(message).not.toContain('model_int8')
  })

  it('on which something else was committed meanwhile refuses, and keeps that', async () => {
    const hub = await uploadServer()
    makeRepository(hub, ID)
    const folder = exported()
    hub.intercept = (request, _, path) => {
      if (request.method === 'POST' && path.includes('/preupload/'))
        hub.commit(ID, 'main', (files) => files.set('notes.txt', Buffer.from('mine')))
      return false
    }
    expect((await failure(upload(hub, folder))).message).toContain(
      'Something else changed org/nodes (main) while this upload ran',
    )
    expect(Object.keys(kept(hub))).toEqual(['notes.txt'])
    hub.intercept = undefined
    expect((await upload(hub, folder)).others).toEqual(['notes.txt'])
  })

  const refusals: [string, number, RegExp, string][] = [
    ['a commit', 500, /\/commit\//, 'has trouble (answer 500: no …'],
    ['a commit', 413, /\/commit\//, 'does not take that many bytes at once'],
    ['a commit', 409, /\/commit\//, 'Something else changed'],
    ['a commit', 403, /\/commit\//, 'may not write to org/nodes'],
    ['a commit', 422, /\/commit\//, 'refuses the upload'],
    ['a large file', 403, /^\/storage\//, 'The storage of'],
    ['a large file', 413, /^\/storage\//, 'The file is too large for it'],
    ['a large file', 500, /^\/storage\//, 'The storage of'],
    ['the first question', 429, /\/revision\//, 'asks to wait'],
    ['the first question', 307, /\/revision\//, 'may have been renamed'],
    ['the listing', 502, /\/tree\//, 'has trouble'],
  ]
  it.each(refusals)('that refuses %s with %i leaves nothing behind', async (_, status, where, text) => {
    const hub = await uploadServer()
    makeRepository(hub, ID)
    hub.intercept = (request, response, path) => {
      if (!where.test(path)) return false
      request.resume()
      const location = status === 307 ? { location: `${hub.url}/elsewhere` } : {}
      response
        .writeHead(status, { 'content-type': 'application/json', ...location })
        .end(JSON.stringify({ error: `no ${WRITER} ${hub.url}/x?signature=theSecret \u001b[31m` }))
      return true
    }
    const { message } = await failure(upload(hub, exported(), { attempts: 2 }))
    expect(message).toContain(text)
    expect(message).not.toContain('\u001b')
    expect(kept(hub)).toEqual({})
  })

  it('that takes another token, or one that may not write, says so', async () => {
    const hub = await uploadServer()
    const folder = exported()
    expect((await failure(upload(hub, folder, { accessToken: 'hf_theOther' }))).message).toContain(
      'does not accept the access token (answer 401',
    )
    expect((await failure(upload(hub, folder, { accessToken: READER }))).message).toContain(
      `The access token may not create ${ID}`,
    )
    makeRepository(hub, ID)
    expect((await failure(upload(hub, folder, { accessToken: READER }))).message).toContain(
      `The access token may not write to ${ID}`,
    )
    expect((await failure(upload(hub, folder, { repo: 'closed/nodes' }))).message).toContain(
      'may not create closed/nodes',
    )
    expect((await failure(upload(hub, folder, { accessToken: 'secret-of-another-kind' }))).message).not.toContain(
      'secret-of',
    )
    vi.stubEnv('HF_TOKEN', WRITER)
    expect((await uploadFolder(folder, { repo: ID, hubUrl: hub.url })).committed).not.toEqual([])
  })

  it('is not asked without a token, nor offline', async () => {
    const hub = await uploadServer()
    const folder = exported()
    const { message } = await failure(uploadFolder(folder, { repo: ID, hubUrl: hub.url }))
    expect(message).toContain('An upload needs an access token')
    vi.stubEnv('HF_HUB_OFFLINE', '1')
    expect((await failure(upload(hub, folder))).message).toContain('HF_HUB_OFFLINE')
    for (const repo of ['nodes', 'org/nodes/x', '../nodes', 'org/..'])
      expect((await failure(upload(hub, folder, { repo }))).message).toContain('is no name of a repository')
    const withPassword = hub.url.replace('http://', 'http://me:theSecret@')
    expect((await failure(upload(hub, folder, { hubUrl: withPassword }))).message).toContain('a password in it')
    expect(hub.seen).toEqual([])
  })

  it('without the repository is an error where none is to be made', async () => {
    const hub = await uploadServer()
    expect((await failure(upload(hub, exported(), { create: false }))).message).toContain(`There is no model ${ID}`)
    expect(hub.repositories.size).toBe(0)
  })

  it('that is not there, or is none, is named', async () => {
    const hub = await uploadServer()
    const folder = exported()
    const answers: Record<string, (request: IncomingMessage, response: ServerResponse) => void> = {
      page: (_, response) => void response.writeHead(200, { 'content-type': 'text/html' }).end('<html>Log in</html>'),
      nothing: (_, response) => void response.writeHead(200, { 'content-type': 'application/json' }).end('{}'),
    }
    for (const respond of Object.values(answers)) {
      hub.intercept = (request, response) => {
        respond(request, response)
        return true
      }
      expect((await failure(upload(hub, folder))).message).toMatch(/no|not what a Hugging Face hub does/)
    }
    await hub.close()
    const { message } = await failure(upload(hub, folder))
    expect(message).toContain(`${hub.url} cannot be reached (ECONNREFUSED). Nothing was committed`)
  })

  it('whose listing goes on at another host is not followed there', async () => {
    const hub = await uploadServer()
    makeRepository(hub, ID)
    const other = `http://localhost:${new URL(hub.url).port}`
    hub.intercept = (_, response, path) => {
      if (!path.includes('/tree/')) return false
      response
        .writeHead(200, { 'content-type': 'application/json', link: `<${other}${path}?cursor=1>; rel="next"` })
        .end('[]')
      return true
    }
    expect((await failure(upload(hub, exported()))).message).toContain(`sends its caller on to ${other}`)
    expect(hub.seen.filter(({ host }) => host.startsWith('localhost'))).toEqual([])
  })

  it('that is encrypted gets nothing sent to where it is not', async () => {
    const { fetch, failed } = uploadFetch({
      ...{ hubUrl: 'https://hub.invalid', accessToken: WRITER, attempts: 1, pauseMs: 1, onBytes: () => {} },
      signal: new AbortController().signal,
    })
    await expect(fetch('http://storage.invalid/x', { method: 'PUT', body: 'x' })).rejects.toThrow('not encrypted')
    await expect(failed).rejects.toThrow('not encrypted')
  })
})

describe('a folder that is not whole', () => {
  const faults: [string, (folder: string) => void, RegExp][] = [
    ['without tokenizer', (f) => rmSync(join(f, 'tokenizer.json')), /No tokenizer\.json/],
    [
      'without a graph',
      (f) => rmSync(join(f, 'onnx/model_int8.onnx')),
      /lists "onnx\/model_int8\.onnx", which is not in the folder/,
    ],
    ['with other weights', (f) => writeFileSync(join(f, 'onnx/model.onnx'), 'x'), /not the one that was exported/],
    ['with a graph of its own', (f) => writeFileSync(join(f, 'onnx/model_q4.onnx'), 'x'), /no part of the export/],
    ['with weights of its own', (f) => writeFileSync(join(f, 'model.safetensors'), 'x'), /no part of the export/],
    ['without canopy.json', (f) => rmSync(join(f, 'canopy.json')), /neither an exported encoder .* nor a LoRA adapter/],
    ['with another canopy.json', (f) => writeFileSync(join(f, 'canopy.json'), '{}'), /canopy\.json/],
    [
      'with another query encoder',
      (f) => {
        rmSync(join(f, 'query-encoder'), { recursive: true })
        cpSync(tinyBert('cls'), join(f, 'query-encoder'), { recursive: true })
      },
      /trained with the query encoder/,
    ],
    [
      'with a link out of it',
      (f) => symlinkSync('/etc/hosts', join(f, 'hosts')),
      /a link out of the folder, to \/etc\/hosts/,
    ],
    [
      'with a link to a folder',
      (f) => symlinkSync('onnx', join(f, 'graphs')),
      /a link to something that is not uploaded/,
    ],
    ['with a broken link', (f) => symlinkSync('nowhere', join(f, 'link')), /cannot follow the link/],
    ['that does not exist', (f) => rmSync(f, { recursive: true }), /no such file or folder/],
  ]
  it.each(faults)('%s: nothing is asked of the hub', async (_, spoil, text) => {
    const hub = await uploadServer()
    const folder = exported()
    spoil(folder)
    expect((await failure(upload(hub, folder))).message).toMatch(text)
    expect(hub.seen).toEqual([])
  })
})
