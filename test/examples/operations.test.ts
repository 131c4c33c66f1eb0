import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { cpSync, existsSync, readFileSync, readlinkSync, realpathSync, rmSync, symlinkSync } from 'node:fs'
import { Agent, type IncomingMessage, request } from 'node:http'
import { join, resolve } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { cli } from '../support/cli.ts'
import { temporaryFolder } from '../support/temporary.ts'

const root = resolve(import.meta.dirname, '..', '..')
const release = join(root, 'test', 'compatibility', '0.1.0')

describe('examples/nightly.sh', () => {
  const script = join(root, 'examples', 'nightly.sh')
  const night = (service: string, name: string, env: Record<string, string> = {}) =>
    new Promise<{ code: number; stdout: string; stderr: string }>((done) => {
      execFile(
        'sh',
        [script, '--steps', '6', '--batch-size', '4', '--rank', '4', '--alpha', '8', '--threads', '1'],
        {
          env: {
            ...process.env,
            ...{ CANOPY: `${process.execPath} ${cli}`, ENCODER: join(release, 'export', 'query-encoder') },
            ...{ DATASET: join(release, 'dataset'), SERVICE: service, NIGHT: name, NO_COLOR: '1', ...env },
          },
        },
        (error, stdout, stderr) => done({ code: error === null ? 0 : Number(error.code), stdout, stderr }),
      )
    })

  it('publishes a first encoder, trains on from it, and keeps it where the gate is shut', async () => {
    const service = join(temporaryFolder(), 'a service')
    const open = { GATE: 'decision_accuracy >= -100', GATE_RECALL: 'gold_recall >= -100' }
    expect(await night(service, '1')).toMatchObject({ code: 0, stdout: expect.stringContaining('Published') })
    expect(readlinkSync(join(service, 'current'))).toBe('releases/1')
    expect(existsSync(join(service, 'current', 'export', 'query-encoder'))).toBe(true)
    expect(await night(service, '1')).toMatchObject({ code: 0, stdout: '1 is published already.\n' })

    // a crash between making the link and putting it in place leaves one behind
    symlinkSync('releases/1', join(service, 'current.new'))
    expect(await night(service, '2', open)).toMatchObject({ code: 0 })
    expect(existsSync(join(service, 'releases', '1', '2'))).toBe(false)
    expect(readlinkSync(join(service, 'current'))).toBe('releases/2')
    const { command } = JSON.parse(readFileSync(join(service, 'current', 'run', 'config.json'), 'utf8'))
    expect(command).toContain(join(realpathSync(service), 'releases', '1', 'run', 'adapter'))

    const shut = await night(service, '3', { GATE: 'decision_accuracy >= 100' })
    expect(shut).toMatchObject({ code: 3 })
    expect(readlinkSync(join(service, 'current'))).toBe('releases/2')
    expect(existsSync(join(service, 'releases', '3', 'export'))).toBe(false)
    const events = readFileSync(join(service, 'releases', '3', 'events.ndjson'), 'utf8')
      .trimEnd()
      .split('\n')
    expect(JSON.parse(events.at(-1) as string)).toMatchObject({ event: 'finished', status: 3 })
  }, 300_000)

  it('does not take a link to a release that is gone for a first night, which has no gate', async () => {
    const service = temporaryFolder()
    symlinkSync('releases/0', join(service, 'current'))
    const ended = await night(service, '1')
    expect(ended.code).not.toBe(0)
    expect(ended.stderr).toContain(join(service, 'current'))
    expect(readlinkSync(join(service, 'current'))).toBe('releases/0')
  })
})

describe.runIf(existsSync('/usr/bin/flock'))('examples/nightly.sh, started twice', () => {
  it('leaves a service alone in which another night is at work', async () => {
    const service = temporaryFolder()
    const holder = spawn('flock', [join(service, '.lock'), 'cat'], { stdio: ['pipe', 'ignore', 'ignore'] })
    while (!existsSync(join(service, '.lock'))) await new Promise((resolve) => setTimeout(resolve, 20))
    await new Promise((resolve) => setTimeout(resolve, 200))
    const env = { ...process.env, ENCODER: 'none', DATASET: 'none', SERVICE: service, NIGHT: '1' }
    const ended = await new Promise<{ error: unknown; stderr: string }>((done) => {
      execFile('sh', [join(root, 'examples', 'nightly.sh')], { env }, (error, _, stderr) => done({ error, stderr }))
    })
    holder.stdin.end()
    await once(holder, 'exit')
    expect(ended.error).toMatchObject({ code: 1 })
    expect(ended.stderr).toBe(`Another night is at work in ${service}.\n`)
  })
})

describe('examples/server.mjs', () => {
  const items = [
    { id: 'a', title: 'Tower', text: 'It stands by the river. Ada wound its clock. A bell was cast later.' },
  ]
  const body = (value: unknown): RequestInit => ({ method: 'POST', body: JSON.stringify(value) })

  async function start(folder: string): Promise<{ url: string; child: ChildProcess; output: () => string }> {
    const child = spawn(process.execPath, [join(root, 'examples', 'server.mjs'), folder, '0'])
    onTestFinished(() => {
      child.kill('SIGKILL')
    })
    let text = ''
    for (const stream of [child.stdout, child.stderr]) stream.on('data', (data) => (text += data))
    while (!text.includes('http://')) await once(child.stdout, 'data')
    return { url: new URL('/', /http:\S+/.exec(text)?.[0]).href, child, output: () => text }
  }

  it('answers with what is kept, and refuses what is no question, too large or a file of its own', async () => {
    const { url, child } = await start(join(release, 'export'))
    expect(await (await fetch(`${url}health`)).json()).toEqual({ ok: true })
    const answer = await fetch(`${url}refine`, body({ question: 'Who wound the clock?', items }))
    expect(answer.status).toBe(200)
    const { items: refined } = (await answer.json()) as { items: { id: string; kept: { text: string }[] }[] }
    expect(refined.map(({ id }) => id)).toEqual(['a'])
    for (const { text } of refined[0]?.kept ?? []) expect(items[0]?.text).toContain(text)

    for (const [wrong, status] of [
      [{ question: '', items }, 400],
      [{ question: 'Who?' }, 400],
      [{ question: 'Who?', items: [{ image: '/etc/passwd' }] }, 400],
      [{ question: 'Who?', items: [{ text: 'x'.repeat(5 << 20) }] }, 413],
    ] as const)
      expect((await fetch(`${url}refine`, body(wrong))).status).toBe(status)
    for (const text of ['{', 'null', '7'])
      expect((await fetch(`${url}refine`, { method: 'POST', body: text })).status, text).toBe(400)
    expect((await fetch(`${url}health`, { method: 'HEAD' })).status).toBe(200)
    expect((await fetch(`${url}other`)).status).toBe(404)

    child.kill('SIGTERM')
    expect((await once(child, 'exit'))[0]).toBe(0)
  })

  it('says in a sentence that a folder is no encoder', async () => {
    const folder = temporaryFolder()
    const child = spawn(process.execPath, [join(root, 'examples', 'server.mjs'), folder, '0'])
    let text = ''
    for (const stream of [child.stdout, child.stderr]) stream.on('data', (data) => (text += data))
    expect((await once(child, 'close'))[0]).toBe(1)
    expect(text).toMatch(/^Opening .*\n.*config\.json: There is no such file\. .*\n$/)
  })

  it('is not ended by SIGHUP while it opens the encoder', async () => {
    const child = spawn(process.execPath, [join(root, 'examples', 'server.mjs'), join(release, 'export'), '0'])
    onTestFinished(() => {
      child.kill('SIGKILL')
    })
    let text = ''
    for (const stream of [child.stdout, child.stderr]) stream.on('data', (data) => (text += data))
    await once(child.stderr, 'data')
    child.kill('SIGHUP')
    while (!text.includes('opened again')) {
      expect(child.signalCode).toBeNull()
      await new Promise((resolve) => setTimeout(resolve, 20))
    }
    expect(text).toContain('http://')
  })

  it('finishes what runs on SIGTERM and ends, though connections are kept alive', async () => {
    const { url, child } = await start(join(release, 'export'))
    const agent = new Agent({ keepAlive: true })
    onTestFinished(() => agent.destroy())
    const answered = new Promise<IncomingMessage>((resolve, reject) => {
      const called = request(`${url}refine`, { method: 'POST', agent }, resolve).on('error', reject)
      const long = { id: 'b', text: 'It stands by the river. Ada wound its clock. '.repeat(400) }
      called.end(JSON.stringify({ question: 'Who wound it?', items: [long] }))
    })
    await new Promise((resolve) => setTimeout(resolve, 100))
    child.kill('SIGTERM')
    const { statusCode, headers } = await answered
    expect([statusCode, headers.connection]).toEqual([200, 'close'])
    expect((await once(child, 'exit'))[0]).toBe(0)
  })

  it('loses no call while it opens the encoder again, however often it is told to', async () => {
    const { url, child, output } = await start(join(release, 'export'))
    const opened = (): number => output().split('opened again').length - 1
    const statuses = new Set<number>()
    let made = 0
    const ask = async (): Promise<void> => {
      while (opened() < 2) {
        const question = `Who wound clock ${made++}?`
        const { status } = await fetch(`${url}refine`, body({ question, items }))
        statuses.add(status)
      }
    }
    const asking = [ask(), ask(), ask()]
    child.kill('SIGHUP')
    await new Promise((resolve) => setTimeout(resolve, 50))
    child.kill('SIGHUP')
    await Promise.all(asking)
    expect(made).toBeGreaterThan(10)
    expect([...statuses]).toEqual([200])
  })

  it('goes over to another encoder on SIGHUP, and stays with its own where the other cannot be opened', async () => {
    const folder = temporaryFolder()
    const current = join(folder, 'current')
    cpSync(join(release, 'export'), join(folder, 'one'), { recursive: true })
    symlinkSync('one', current)
    const { url, child, output } = await start(current)
    const said = async (text: string): Promise<void> => {
      while (!output().includes(text)) await new Promise((resolve) => setTimeout(resolve, 20))
    }
    const asked = Array.from({ length: 8 }, () => fetch(`${url}refine`, body({ question: 'Who wound it?', items })))
    child.kill('SIGHUP')
    await said('opened again')
    for (const answer of await Promise.all(asked)) expect(answer.status).toBe(200)

    rmSync(current)
    child.kill('SIGHUP')
    await said('stays')
    expect((await fetch(`${url}refine`, body({ question: 'Who wound it?', items }))).status).toBe(200)
  })
})
