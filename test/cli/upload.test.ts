import { cpSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { tinyBert } from '../encoder/fixtures.ts'
import { makeRepository, type UploadServer, uploadServer, WRITER } from '../encoder/hub-upload-server.ts'
import { canopy, type Finished } from '../support/cli.ts'
import { temporaryFolder } from '../support/temporary.ts'

const ID = 'org/nodes'

beforeEach(() => {
  for (const name of ['HF_HUB_OFFLINE', 'HF_TOKEN', 'HF_ENDPOINT', 'HF_HUB_CACHE', 'HF_HOME'])
    vi.stubEnv(name, undefined)
})
afterEach(() => {
  vi.unstubAllEnvs()
})

/** A small folder that may be uploaded. */
function adapter(): string {
  const folder = join(temporaryFolder(), 'adapter')
  cpSync(join(tinyBert('mean'), 'adapter'), folder, { recursive: true })
  return folder
}

const upload = (hub: UploadServer, folder: string, ...args: string[]): Promise<Finished> => {
  vi.stubEnv('HF_ENDPOINT', hub.url)
  return canopy(['upload', folder, '--repo', ID, ...args]).finished
}

describe('canopy upload', () => {
  it('uploads a folder, prints the commit, and has nothing to do the second time', async () => {
    const hub = await uploadServer()
    const folder = adapter()
    writeFileSync(join(folder, '.notes'), 'private')
    vi.stubEnv('HF_TOKEN', WRITER)
    const { size } = statSync(join(folder, 'adapter_model.safetensors'))
    const first = await upload(hub, folder, '--private')
    expect(first.stderr).toBe('')
    expect(first.code).toBe(0)
    const commit = hub.repositories.get(ID)?.branches.get('main')
    expect(first.stdout).toBe(
      `Made the repository ${ID}.
Committed 2 of 2 files; ${(size / 1e3).toFixed(1)} kB went to the storage of large files.
The hub has all 2 files as they are here, compared by path, size and hash.
Hidden, not uploaded: .notes.
Commit ${commit} of main: ${hub.url}/${ID}
`,
    )
    expect(hub.repositories.get(ID)?.private).toBe(true)
    const second = await upload(hub, folder, '--json')
    expect(JSON.parse(second.stdout)).toMatchObject({ commit, committed: [], created: false, hidden: ['.notes'] })
  })

  it('takes the token from a file', async () => {
    const hub = await uploadServer()
    const file = join(temporaryFolder(), 'token')
    writeFileSync(file, `${WRITER}\n`)
    expect((await upload(hub, adapter(), '--token-file', file)).code).toBe(0)
    writeFileSync(file, 'secret-of-another-kind')
    const { code, stderr } = await upload(hub, adapter(), '--token-file', file)
    expect([code, stderr]).toEqual([
      1,
      `error: ${file}: It does not hold an access token of Hugging Face, which starts with "hf_".\n`,
    ])
  })

  it('lists what it would upload without asking anyone', async () => {
    const hub = await uploadServer()
    const { code, stdout } = await upload(hub, adapter(), '--dry-run')
    expect(code).toBe(0)
    expect(stdout).toMatch(
      /^adapter_config\.json +[\d.]+ kB {2}[0-9a-f]{12}\nadapter_model\.safetensors .*\n2 files of an adapter/,
    )
    expect(stdout).toMatch(
      /\nThey would go to org\/nodes \(main\)\. The hub was not asked: neither what is there already nor the access token was looked at\.\n$/,
    )
    expect(hub.seen).toEqual([])
    const { stdout: nowhere } = await canopy(['upload', adapter(), '--dry-run']).finished
    expect(nowhere).toMatch(/\nGive --repo to upload them\. The hub was not asked/)
  })

  it('says what is wrong in one sentence, and with which status', async () => {
    const hub = await uploadServer()
    const folder = adapter()
    expect(await upload(hub, folder)).toMatchObject({ code: 1, stdout: '' })
    vi.stubEnv('HF_TOKEN', 'hf_theOther')
    const { code, stderr } = await upload(hub, folder)
    expect(code).toBe(1)
    expect(stderr).toContain(`error: ${hub.url} does not accept the access token (answer 401`)
    expect(stderr).not.toContain('hf_theOther')
    expect((await canopy(['upload', folder]).finished).code).toBe(2)
    rmSync(join(folder, 'adapter_config.json'))
    expect((await upload(hub, folder)).stderr).toContain('is neither an exported encoder')
  })

  it('warns of a hub to which the token goes unencrypted, unless that is this machine', async () => {
    vi.stubEnv('HF_TOKEN', WRITER)
    vi.stubEnv('HF_ENDPOINT', 'http://hub.invalid')
    const { code, stderr } = await canopy(['upload', adapter(), '--repo', ID]).finished
    expect(stderr).toMatch(/^warning: HF_ENDPOINT is not encrypted \(http\): the access token/)
    expect(stderr).toContain('http://hub.invalid cannot be reached')
    expect(code).toBe(1)
  })

  it('stops on Ctrl-C with what is there now', async () => {
    const hub = await uploadServer()
    makeRepository(hub, ID)
    vi.stubEnv('HF_TOKEN', WRITER)
    vi.stubEnv('HF_ENDPOINT', hub.url)
    const started = new Promise<void>((resolve) => {
      hub.intercept = (request) => {
        if (request.method !== 'PUT') return false
        resolve()
        return true
      }
    })
    const { process: child, finished } = canopy(['upload', adapter(), '--repo', ID])
    await started
    child.kill('SIGINT')
    const { code, stderr } = await finished
    expect(code).toBe(130)
    expect(stderr).toBe(
      `warning: The upload to ${ID} was stopped. Nothing was committed, so the repository is as it was. Run the same command again: it goes on from there, and large files that have arrived are not sent once more.\ninterrupted\n`,
    )
    expect([...hub.files(ID).keys()]).toEqual(['.gitattributes'])
  })
})
