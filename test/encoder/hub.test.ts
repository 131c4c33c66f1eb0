import {
  cpSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  realpathSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { encoderFiles, missingFiles } from '../../src/encoder/hub/files.ts'
import {
  locateConfiguration,
  locateEncoder,
  openEmbedder,
  openWeights,
  plainEncoder,
  readEncoder,
  readEncoderPair,
} from '../../src/encoder/index.ts'
import { encodeModel, openSafetensors, type Tensor, writeSafetensors } from '../../src/onnx/index.ts'
import { InputError } from '../../src/support/errors.ts'
import { temporaryFolder } from '../support/temporary.ts'
import { expected, largestDifference, tinyBert } from './fixtures.ts'
import { COMMIT, type HubServer, hashOf, hubServer } from './hub-server.ts'
import { tinyQwen3 } from './qwen3-known.ts'

/** What a download takes of the fixture: no expectations of tests, no adapter. */
const NEEDED = [
  '1_Pooling/config.json',
  'config.json',
  'config_sentence_transformers.json',
  'model.safetensors',
  'modules.json',
  'sentence_bert_config.json',
  'tokenizer.json',
  'tokenizer_config.json',
]

const snapshotOf = (cache: string): string => join(cache, 'models--org--tiny', 'snapshots', COMMIT)

function filesBelow(folder: string): string[] {
  const names = readdirSync(folder, { recursive: true, encoding: 'utf8' })
  return names.filter((name) => statSync(join(folder, name)).isFile()).sort()
}

async function failure(promise: Promise<unknown>): Promise<InputError> {
  const error = await promise.then(
    () => undefined,
    (e: unknown) => e,
  )
  expect(error).toBeInstanceOf(InputError)
  return error as InputError
}

async function expectEmbeddings(folder: string): Promise<void> {
  const embedder = await openEmbedder(await readEncoder(folder), { threads: 1 })
  try {
    const { embeddings } = await embedder.embedTexts(expected('mean').texts, 'node')
    expect(largestDifference(embeddings, expected('mean').embeddings)).toBeLessThan(1e-5)
  } finally {
    await embedder.close()
  }
}

/** The cache as Python's library leaves it: blobs, links and a reference. */
function pythonCache(cache: string, paths: string[], from = tinyBert('mean')): void {
  const repository = join(cache, 'models--org--tiny')
  for (const path of paths) {
    const content = readFileSync(join(from, path))
    const blob = join(repository, 'blobs', hashOf(path, content))
    const link = join(snapshotOf(cache), path)
    mkdirSync(dirname(blob), { recursive: true })
    mkdirSync(dirname(link), { recursive: true })
    writeFileSync(blob, content)
    symlinkSync(relative(dirname(link), blob), link)
  }
  mkdirSync(join(repository, 'refs'), { recursive: true })
  writeFileSync(join(repository, 'refs', 'main'), COMMIT)
}

beforeEach(() => {
  for (const name of ['HF_HUB_OFFLINE', 'HF_TOKEN', 'HF_ENDPOINT', 'HF_HUB_CACHE', 'HF_HOME'])
    vi.stubEnv(name, undefined)
})
afterEach(() => {
  vi.unstubAllEnvs()
})

describe('a folder', () => {
  it('is used as it is', async () => {
    expect(await locateEncoder(tinyBert('mean'))).toEqual({ folder: tinyBert('mean') })
  })

  it.each(['no-such-folder', './a/b', '/a/b', 'a/b/c', 'a\\b', '../a', 'a/..', '-a/b', 'a/b-', 'a--b/c'])(
    'that is not there, and no id either: %j',
    async (name) => {
      const { message } = await failure(locateEncoder(name, { hubUrl: 'http://127.0.0.1:9' }))
      expect(message).toContain('there is no folder of that name, and no Hugging Face id')
    },
  )

  it('that is not in its existing parent folder is not asked for on the hub', async () => {
    const { message } = await failure(locateEncoder('test/nothing', { hubUrl: 'http://127.0.0.1:9' }))
    expect(message).toBe(
      'The folder test has no nothing in it. If you mean the Hugging Face model test/nothing, write test/nothing@main.',
    )
  })

  it.each(['org/tiny@', 'org/tiny@../x', 'org/tiny@a//b', 'org/tiny@.x', 'org/tiny@a/../b'])(
    'a revision that could leave the cache is refused: %j',
    async (name) => {
      expect((await failure(locateEncoder(name))).message).toContain('is no revision of org/tiny')
    },
  )
})

describe('a configuration', () => {
  it('is the only file that is downloaded for it, once, and the rest when the encoder is wanted', async () => {
    const hub = await hubServer(tinyBert('mean'))
    const options = { hubUrl: hub.url, cacheDir: temporaryFolder() }
    const file = await locateConfiguration('org/tiny', options)
    expect(file).toBe(join(snapshotOf(options.cacheDir), 'config.json'))
    expect(readFileSync(file).equals(hub.files.get('config.json')!)).toBe(true)
    expect(filesBelow(snapshotOf(options.cacheDir))).toEqual(['config.json'])
    hub.requests.length = 0
    expect(await locateConfiguration('org/tiny', options)).toBe(file)
    expect(hub.requests).toEqual([])
    await expectEmbeddings((await locateEncoder('org/tiny', options)).folder)
  })

  it('of a folder or a file is found without the hub', async () => {
    const file = join(tinyBert('mean'), 'config.json')
    for (const name of [tinyBert('mean'), file])
      expect(await locateConfiguration(name, { hubUrl: 'http://127.0.0.1:9' })).toBe(file)
  })

  it('that is not there is an error', async () => {
    const hub = await hubServer(tinyBert('mean'))
    const options = { hubUrl: hub.url, cacheDir: temporaryFolder() }
    expect((await failure(locateConfiguration('org/tiny', { ...options, offline: true }))).message).toContain(
      'not in the cache',
    )
    hub.files.delete('config.json')
    expect((await failure(locateConfiguration('org/tiny', options))).message).toContain('has no config.json')
  })
})

describe('a download', () => {
  it('takes what an encoder needs into the layout of the cache, and embeds through its links', async () => {
    const hub = await hubServer(tinyBert('mean'))
    const cache = temporaryFolder()
    const events: { phase: string; done: number; total?: number }[] = []
    const found = await locateEncoder('org/tiny', {
      hubUrl: `${hub.url}/`,
      cacheDir: cache,
      onProgress: (event) => events.push(event),
    })
    expect(found).toEqual({ folder: snapshotOf(cache), id: 'org/tiny', revision: COMMIT })
    expect(filesBelow(found.folder)).toEqual(NEEDED)
    for (const path of NEEDED) {
      const content = readFileSync(join(tinyBert('mean'), path))
      expect(readFileSync(join(found.folder, path)).equals(content)).toBe(true)
      const up = path.includes('/') ? '../../..' : '../..'
      expect(readlinkSync(join(found.folder, path))).toBe(`${up}/blobs/${hashOf(path, content)}`)
    }
    expect(readFileSync(join(cache, 'models--org--tiny', 'refs', 'main'), 'utf8')).toBe(COMMIT)
    expect(
      filesBelow(join(cache, 'models--org--tiny', 'blobs')).filter((name) => name.endsWith('.incomplete')),
    ).toEqual([])
    const total = NEEDED.reduce((sum, path) => sum + statSync(join(tinyBert('mean'), path)).size, 0)
    expect(events.at(-1)).toMatchObject({ phase: 'downloading org/tiny', done: total, total })
    expect(events.every((event, i) => i === 0 || event.done >= (events[i - 1]?.done as number))).toBe(true)
    await expectEmbeddings(found.folder)
  })

  it('happens once: afterwards no request is made, by branch or by commit', async () => {
    const hub = await hubServer(tinyBert('mean'))
    const options = { hubUrl: hub.url, cacheDir: temporaryFolder() }
    const first = await locateEncoder('org/tiny', options)
    hub.requests.length = 0
    expect(await locateEncoder('org/tiny', options)).toEqual(first)
    expect(await locateEncoder(`org/tiny@${COMMIT}`, options)).toEqual(first)
    expect(hub.requests).toEqual([])
    await hub.close()
    expect(await locateEncoder('org/tiny', { ...options, offline: true })).toEqual(first)
  })

  it('is found where HF_HUB_CACHE or HF_HOME say, from HF_ENDPOINT', async () => {
    const hub = await hubServer(tinyBert('mean'))
    const home = temporaryFolder()
    vi.stubEnv('HF_ENDPOINT', hub.url)
    vi.stubEnv('HF_HOME', home)
    expect((await locateEncoder('org/tiny')).folder).toBe(snapshotOf(join(home, 'hub')))
    const cache = temporaryFolder()
    vi.stubEnv('HF_HUB_CACHE', cache)
    expect((await locateEncoder('org/tiny')).folder).toBe(snapshotOf(cache))
  })

  it('keeps the revision that was asked for', async () => {
    const hub = await hubServer(tinyBert('mean'))
    const cache = temporaryFolder()
    const options = { hubUrl: hub.url, cacheDir: cache }
    expect((await locateEncoder('org/tiny@refs/pr/1', options)).revision).toBe(COMMIT)
    expect(readFileSync(join(cache, 'models--org--tiny', 'refs', 'refs', 'pr', '1'), 'utf8')).toBe(COMMIT)
    const profile = (await readEncoderPair('org/tiny@refs/pr/1', { ...options, offline: true })).encoder
    expect([profile.id, profile.revision]).toEqual(['org/tiny', COMMIT])
    expect((await failure(locateEncoder('org/tiny', { ...options, offline: true }))).message).toContain(
      'not in the cache',
    )
    const { message } = await failure(locateEncoder('org/tiny@no-such', options))
    expect(message).toContain('no model org/tiny with the revision no-such')
  })

  it('of shards takes all of them and nothing beside', async () => {
    const folder = temporaryFolder()
    cpSync(tinyBert('mean'), folder, { recursive: true })
    const stored = await openSafetensors(join(folder, 'model.safetensors'))
    const names = [...stored.tensors.keys()]
    const parts = [names.slice(0, 9), names.slice(9)]
    const map: Record<string, string> = {}
    for (const [i, part] of parts.entries()) {
      const file = `model-0000${i + 1}-of-00002.safetensors`
      const tensors = new Map<string, Tensor>()
      for (const name of part) tensors.set(name, await stored.read(name))
      await writeSafetensors(join(folder, file), tensors)
      for (const name of part) map[name] = file
    }
    rmSync(join(folder, 'model.safetensors'))
    writeFileSync(join(folder, 'model.safetensors.index.json'), JSON.stringify({ weight_map: map }))
    writeFileSync(join(folder, 'pytorch_model.bin'), 'x')
    const hub = await hubServer(folder)
    const found = await locateEncoder('org/tiny', { hubUrl: hub.url, cacheDir: temporaryFolder() })
    expect(filesBelow(found.folder).filter((name) => !NEEDED.includes(name))).toEqual([
      'model-00001-of-00002.safetensors',
      'model-00002-of-00002.safetensors',
      'model.safetensors.index.json',
    ])
    await expectEmbeddings(found.folder)
  })

  it('of an export takes its bundled query encoder with it, and external data that ONNX Runtime finds', async () => {
    const profile = await readEncoder(tinyBert('mean'))
    const folder = temporaryFolder()
    cpSync(tinyBert('mean'), folder, { recursive: true })
    cpSync(tinyBert('cls'), join(folder, 'query-encoder'), { recursive: true })
    mkdirSync(join(folder, 'onnx'))
    cpSync(join(folder, 'model.safetensors'), join(folder, 'onnx', 'model.onnx_data'))
    rmSync(join(folder, 'model.safetensors'))
    const { weights } = await openWeights(profile)
    const moved = new Map(
      [...weights].map(([name, tensor]) => [
        name,
        'external' in tensor ? { ...tensor, external: { ...tensor.external, file: 'model.onnx_data' } } : tensor,
      ]),
    )
    writeFileSync(join(folder, 'onnx', 'model.onnx'), encodeModel(plainEncoder(profile, moved)))
    const hub = await hubServer(folder)
    const options = { hubUrl: hub.url, cacheDir: temporaryFolder() }
    const found = await locateEncoder('org/tiny', options)
    expect((await readEncoder(found.folder)).kind).toBe('onnx')
    await expectEmbeddings(found.folder)
    const pair = await readEncoderPair('org/tiny', { ...options, offline: true })
    expect(pair.query.fingerprint).toBe((await readEncoder(tinyBert('cls'))).fingerprint)

    // as Python's library links them
    const { folder: snapshot } = found
    const blobs = join(snapshot, '..', '..', 'blobs')
    for (const name of ['model.onnx', 'model.onnx_data']) {
      const path = join(snapshot, 'onnx', name)
      const blob = join(blobs, hashOf(name, readFileSync(path)))
      expect(statSync(path).ino).toBe(statSync(blob).ino)
      rmSync(path)
      symlinkSync(relative(dirname(path), blob), path)
    }
    expect(realpathSync(join(snapshot, 'onnx', 'model.onnx'))).toContain('blobs')
    await expectEmbeddings((await locateEncoder('org/tiny', { ...options, offline: true })).folder)
  })

  it('fetches the ONNX graph that is asked for, and no checkpoint with it', async () => {
    const folder = temporaryFolder()
    cpSync(tinyBert('mean'), folder, { recursive: true })
    const forms = join(import.meta.dirname, '..', 'fixtures', 'onnx')
    for (const [form, name] of [
      ['plain', 'model.onnx'],
      ['int8', 'model_quantized.onnx'],
    ])
      cpSync(join(forms, `tiny-bert-${form}`, 'onnx', 'model.onnx'), join(folder, 'onnx', name as string))
    const hub = await hubServer(folder)
    const options = { hubUrl: hub.url, cacheDir: temporaryFolder() }
    const onnxFile = 'model_quantized.onnx'
    const { encoder } = await readEncoderPair('org/tiny', { ...options, onnxFile })
    expect(encoder.fingerprint).toBe((await readEncoder(folder, { kind: 'onnx', onnxFile })).fingerprint)
    expect(hub.requests.filter((request) => /safetensors|model\.onnx/.test(request))).toEqual([])
    const again = await readEncoderPair('org/tiny', { ...options, onnxFile, offline: true })
    expect(again.encoder.fingerprint).toBe(encoder.fingerprint)

    expect((await readEncoderPair('org/tiny', options)).encoder.kind).toBe('checkpoint')
    const absent = readEncoderPair('org/tiny', { ...options, onnxFile: 'model_q4.onnx' })
    await expect(absent).rejects.toThrow(
      /has no onnx\/model_q4\.onnx; its ONNX graphs are model\.onnx, model_quantized\.onnx/,
    )
  })

  it('fetches the graph that an exported repository names as the one it is opened by, and no other', async () => {
    const folder = temporaryFolder()
    cpSync(tinyBert('mean'), folder, { recursive: true })
    rmSync(join(folder, 'model.safetensors'))
    const graph = join(import.meta.dirname, '..', 'fixtures', 'onnx', 'tiny-bert-int8', 'onnx', 'model.onnx')
    for (const name of ['model_int8.onnx', 'model_q4.onnx']) cpSync(graph, join(folder, 'onnx', name))
    writeFileSync(join(folder, 'canopy.json'), JSON.stringify({ onnxFile: 'model_int8.onnx' }))
    const hub = await hubServer(folder)
    const options = { hubUrl: hub.url, cacheDir: temporaryFolder() }
    const located = await locateEncoder('org/tiny', options)
    expect((await readEncoder(located.folder)).weights).toBe(join(located.folder, 'onnx', 'model_int8.onnx'))
    expect(hub.requests.filter((request) => /model_q4\.onnx/.test(request))).toEqual([])
    expect(await locateEncoder('org/tiny', { ...options, offline: true })).toEqual(located)
    expect(await missingFiles(located.folder)).toEqual([])
    rmSync(join(located.folder, 'onnx', 'model_int8.onnx'))
    expect(await missingFiles(located.folder)).toEqual(['onnx/model_int8.onnx'])
  })

  it('gives the access token to the hub and not to the host it stores files on', async () => {
    const hub = await hubServer(tinyBert('mean'))
    vi.stubEnv('HF_TOKEN', 'hf_secret')
    await locateEncoder('org/tiny', { hubUrl: hub.url, cacheDir: temporaryFolder() })
    hub.requests.forEach((request, i) => {
      expect([request, hub.tokens[i]]).toEqual([request, request.includes('/storage/') ? '' : 'Bearer hf_secret'])
    })
    expect(hub.requests.some((request) => request.includes('/storage/'))).toBe(true)
    const options = { hubUrl: hub.url, cacheDir: temporaryFolder(), accessToken: 'secret' }
    const { message } = await failure(locateEncoder('org/tiny', options))
    expect(message).toContain('HF_TOKEN')
    expect(message).not.toContain('secret')
  })
})

describe('a broken download', () => {
  const weights = readFileSync(join(tinyBert('mean'), 'model.safetensors'))
  const blobName = hashOf('model.safetensors', weights)

  /** A download whose weights break off once some of them have been stored. */
  async function broken(hub: HubServer, cache: string): Promise<number> {
    const incomplete = join(cache, 'models--org--tiny', 'blobs', `${blobName}.incomplete`)
    hub.broken.set('model.safetensors', async () => {
      while (!existsSync(incomplete) || statSync(incomplete).size === 0) await setTimeout(10)
    })
    const error = await failure(locateEncoder('org/tiny', { hubUrl: hub.url, cacheDir: cache }))
    expect(error.message).toMatch(/download of model\.safetensors of org\/tiny broke off at \d+ of 119264 bytes/)
    const { size } = statSync(incomplete)
    expect(size).toBeGreaterThan(0)
    expect(size).toBeLessThan(weights.length)
    expect(existsSync(join(cache, 'models--org--tiny', 'blobs', blobName))).toBe(false)
    expect(existsSync(join(cache, 'models--org--tiny', 'refs'))).toBe(false)
    hub.requests.length = 0
    return size
  }

  it('goes on from where it broke off, to the same bytes', async () => {
    const hub = await hubServer(tinyBert('mean'))
    const cache = temporaryFolder()
    const size = await broken(hub, cache)
    const { message } = await failure(locateEncoder('org/tiny', { cacheDir: cache, offline: true }))
    expect(message).toContain('not in the cache')
    const { folder } = await locateEncoder('org/tiny', { hubUrl: hub.url, cacheDir: cache })
    const fetched = hub.requests.filter((request) => request.includes('/storage/'))
    expect(fetched).toEqual([`GET /storage/model.safetensors bytes=${size}-${weights.length - 1}`])
    expect(hub.requests.some((request) => request.includes('/tokenizer.json'))).toBe(false)
    expect(readFileSync(join(folder, 'model.safetensors')).equals(weights)).toBe(true)
    await expectEmbeddings(folder)
  })

  it('starts again where the server knows no ranges', async () => {
    const hub = await hubServer(tinyBert('mean'))
    const cache = temporaryFolder()
    await broken(hub, cache)
    hub.ignoreRanges = true
    const { folder } = await locateEncoder('org/tiny', { hubUrl: hub.url, cacheDir: cache })
    expect(readFileSync(join(folder, 'model.safetensors')).equals(weights)).toBe(true)
  })

  it('starts again where what was kept is something else', async () => {
    const hub = await hubServer(tinyBert('mean'))
    const cache = temporaryFolder()
    const blobs = join(cache, 'models--org--tiny', 'blobs')
    mkdirSync(blobs, { recursive: true })
    for (const remains of [Buffer.alloc(1000, 7), Buffer.alloc(weights.length, 7), Buffer.alloc(weights.length + 1)]) {
      writeFileSync(join(blobs, `${blobName}.incomplete`), remains)
      const { folder } = await locateEncoder('org/tiny', { hubUrl: hub.url, cacheDir: cache })
      expect(readFileSync(join(folder, 'model.safetensors')).equals(weights)).toBe(true)
      rmSync(join(blobs, blobName))
    }
  })

  it.each(['model.safetensors', 'tokenizer.json'])('is refused when %s has another hash', async (path) => {
    const hub = await hubServer(tinyBert('mean'))
    const cache = temporaryFolder()
    hub.hashes.set(path, 'a'.repeat(path === 'tokenizer.json' ? 40 : 64))
    const { message } = await failure(locateEncoder('org/tiny', { hubUrl: hub.url, cacheDir: cache }))
    expect(message).toContain(`The bytes of ${path} of org/tiny are not those that the hub announced`)
    expect(filesBelow(join(cache, 'models--org--tiny', 'blobs')).filter((name) => name.startsWith('aaaa'))).toEqual([])
    expect(existsSync(join(snapshotOf(cache), path))).toBe(false)
    expect(existsSync(join(cache, 'models--org--tiny', '.canopy'))).toBe(false)
  })

  it('is noticed when a file of the snapshot is gone, and only that is fetched', async () => {
    const hub = await hubServer(tinyBert('mean'))
    const cache = temporaryFolder()
    const { folder } = await locateEncoder('org/tiny', { hubUrl: hub.url, cacheDir: cache })
    rmSync(realpathSync(join(folder, 'tokenizer.json')))
    const { message } = await failure(locateEncoder('org/tiny', { cacheDir: cache, offline: true }))
    expect(message).toContain('is not whole in the cache')
    expect(message).toContain('tokenizer.json is missing')
    hub.requests.length = 0
    await locateEncoder('org/tiny', { hubUrl: hub.url, cacheDir: cache })
    expect(hub.requests.filter((request) => request.includes('/resolve/'))).toEqual([
      `GET /org/tiny/resolve/${COMMIT}/tokenizer.json`,
    ])
  })
})

describe("Python's cache", () => {
  it('is used without a request where it holds a whole encoder', async () => {
    const hub = await hubServer(tinyBert('mean'))
    const cache = temporaryFolder()
    pythonCache(cache, NEEDED)
    const found = await locateEncoder('org/tiny', { hubUrl: hub.url, cacheDir: cache })
    expect(found).toEqual({ folder: snapshotOf(cache), id: 'org/tiny', revision: COMMIT })
    expect(hub.requests).toEqual([])
    await expectEmbeddings(found.folder)
  })

  it.each(['modules.json', '1_Pooling/config.json', 'tokenizer.json', 'model.safetensors'])(
    'is completed where it lacks %s',
    async (path) => {
      const hub = await hubServer(tinyBert('mean'))
      const cache = temporaryFolder()
      pythonCache(
        cache,
        NEEDED.filter((name) => name !== path),
      )
      const { message } = await failure(locateEncoder('org/tiny', { cacheDir: cache, offline: true }))
      expect(message).toContain(`${path} is missing`)
      const { folder } = await locateEncoder('org/tiny', { hubUrl: hub.url, cacheDir: cache })
      expect(filesBelow(folder)).toEqual(NEEDED)
      expect(hub.requests.filter((request) => request.includes('/resolve/'))).toHaveLength(1)
      expect(lstatSync(join(folder, path)).isSymbolicLink()).toBe(true)
    },
  )
})

describe('an encoder that reads pictures', () => {
  const files = [
    'chat_template.json',
    'config.json',
    'model.safetensors',
    'preprocessor_config.json',
    'tokenizer.json',
    'tokenizer_config.json',
    'video_preprocessor_config.json',
  ]

  it('is downloaded with its template and what it does to pixels', async () => {
    const hub = await hubServer(tinyQwen3('qwen3-vl'))
    const { folder } = await locateEncoder('org/tiny', { hubUrl: hub.url, cacheDir: temporaryFolder() })
    expect(filesBelow(folder)).toEqual(files)
    expect((await readEncoder(folder)).fingerprint).toBe((await readEncoder(tinyQwen3('qwen3-vl'))).fingerprint)
  })

  it("is whole in Python's cache without modules.json, but not without what it does to pixels", async () => {
    const cached = (paths: string[]) => {
      const cacheDir = temporaryFolder()
      pythonCache(cacheDir, paths, tinyQwen3('qwen3-vl'))
      return locateEncoder('org/tiny', { cacheDir, offline: true })
    }
    expect(await cached(files)).toMatchObject({ id: 'org/tiny' })
    const { message } = await failure(cached(files.filter((path) => path !== 'preprocessor_config.json')))
    expect(message).toContain('preprocessor_config.json is missing')
  })
})

describe('an encoder of several graphs', () => {
  const graphs = ['decoder_model_merged', 'embed_tokens', 'vision_encoder'].map((part) => `onnx/${part}.onnx`)
  const data = ['onnx/decoder_model_merged.onnx_data', 'onnx/vision_encoder.onnx_data']
  const small = [
    'chat_template.json',
    'config.json',
    'preprocessor_config.json',
    'tokenizer.json',
    'tokenizer_config.json',
  ]

  it('is downloaded with all of them and their data, and no variant', () => {
    const variants = ['decoder_model_merged_q4', 'embed_tokens_q4', 'vision_encoder_q4'].map(
      (name) => `onnx/${name}.onnx`,
    )
    const listed = [...small, ...graphs, ...data, ...variants].map((path, size) => ({ path, size, hash: 'a' }))
    const paths = (onnxFile?: string) =>
      encoderFiles('org/tiny', listed, 'query-encoder', onnxFile).map(({ path }) => path)
    expect(paths()).toEqual([...small, ...graphs, ...data])
    expect(paths('decoder_model_merged_q4.onnx')).toEqual([...small, ...variants])
  })

  it("is whole in Python's cache where none is missing", async () => {
    const folder = temporaryFolder()
    mkdirSync(join(folder, 'onnx'))
    for (const path of [...small, ...graphs.slice(0, 2)]) writeFileSync(join(folder, path), '')
    writeFileSync(join(folder, 'config.json'), '{"model_type": "qwen3_vl"}')
    expect(await missingFiles(folder)).toEqual(['onnx/vision_encoder.onnx'])
    writeFileSync(join(folder, 'onnx', 'vision_encoder.onnx'), '')
    expect(await missingFiles(folder)).toEqual([])
  })
})

describe('what a hub cannot give', () => {
  it.each([undefined, 'hf_token'])('is an unknown model (token: %s)', async (accessToken) => {
    const hub = await hubServer(tinyBert('mean'))
    const options = { hubUrl: hub.url, cacheDir: temporaryFolder(), ...(accessToken ? { accessToken } : {}) }
    const { message } = await failure(locateEncoder('org/other', options))
    expect(message).toContain(`There is no model org/other with the revision main on ${hub.url}`)
    expect(message).toContain('Repository not found')
    expect(message).toContain(accessToken === undefined ? 'set HF_TOKEN' : 'token given may not')
    expect(readdirSync(options.cacheDir)).toEqual([])
  })

  it('is anything while offline', async () => {
    vi.stubEnv('HF_HUB_OFFLINE', '1')
    const hub = await hubServer(tinyBert('mean'))
    const { message } = await failure(locateEncoder('org/tiny', { hubUrl: hub.url, cacheDir: temporaryFolder() }))
    expect(message).toContain('The model org/tiny@main is not in the cache')
    expect(message).toContain('To get its files by hand')
    expect(hub.requests).toEqual([])
  })

  it('is anything without a network', async () => {
    const hub = await hubServer(tinyBert('mean'))
    await hub.close()
    const { message } = await failure(locateEncoder('org/tiny', { hubUrl: hub.url, cacheDir: temporaryFolder() }))
    expect(message).toContain('The model org/tiny is not in the cache')
    expect(message).toContain('there seems to be no network (ECONNREFUSED)')
    expect(message).toContain('To get its files by hand')
  })

  it.each(['../evil.json', 'a/../../b', '/etc/passwd', 'C:\\x', 'C:x', 'a\\..\\b', './x', 'a//b', 'a\0b'])(
    'is a repository with the path %j',
    async (path) => {
      const hub = await hubServer(tinyBert('mean'))
      hub.extra = [{ type: 'file', path, size: 3, oid: 'b'.repeat(40) }]
      const cacheDir = temporaryFolder()
      const { message } = await failure(locateEncoder('org/tiny', { hubUrl: hub.url, cacheDir }))
      expect(message).toContain('no plain path')
      expect(readdirSync(cacheDir)).toEqual([])
    },
  )

  it.each([
    ['hash', { type: 'file', path: 'vocab.txt', size: 3, oid: '../../x' }],
    ['hash', { type: 'file', path: 'vocab.txt', size: 3 }],
    ['list', { type: 'file', path: 'vocab.txt', size: -1, oid: 'b'.repeat(40) }],
    ['list', { type: 'file', path: 'vocab.txt', size: 2 ** 60, oid: 'b'.repeat(40) }],
  ])('is a listing without a proper %s', async (what, entry) => {
    const hub = await hubServer(tinyBert('mean'))
    hub.extra = [entry]
    const { message } = await failure(locateEncoder('org/tiny', { hubUrl: hub.url, cacheDir: temporaryFolder() }))
    expect(message).toContain(`no proper ${what}`)
  })

  it('is a commit that is none, or a listing that goes on elsewhere', async () => {
    const hub = await hubServer(tinyBert('mean'))
    hub.commit = '../../../x'
    const options = { hubUrl: hub.url, cacheDir: temporaryFolder() }
    expect((await failure(locateEncoder('org/tiny', options))).message).toContain('names no commit')
    hub.commit = COMMIT
    hub.nextOrigin = 'http://elsewhere.invalid'
    expect((await failure(locateEncoder('org/tiny', options))).message).toContain('which is not followed')
  })

  it('is an encoder without readable weights, configuration or tokenizer', async () => {
    const hub = await hubServer(tinyBert('mean'))
    const options = { hubUrl: hub.url, cacheDir: temporaryFolder() }
    const tokenizer = hub.files.get('tokenizer.json') as Buffer
    hub.files.delete('tokenizer.json')
    expect((await failure(locateEncoder('org/tiny', options))).message).toContain('org/tiny has no tokenizer.json')
    hub.files.set('tokenizer.json', tokenizer)
    hub.files.delete('model.safetensors')
    hub.files.set('pytorch_model.bin', Buffer.from('x'))
    expect((await failure(locateEncoder('org/tiny', options))).message).toContain('pytorch_model.bin is not read')
    expect(readdirSync(options.cacheDir)).toEqual([])
  })
})
