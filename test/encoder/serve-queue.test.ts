import { spawnSync } from 'node:child_process'
import { getEventListeners } from 'node:events'
import type { Worker } from 'node:worker_threads'
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import type { Encoder, OpenEncoderOptions, RefineInput } from '../../src/encoder/index.ts'
import type { EmbeddingStore } from '../../src/store/index.ts'
import { ENTRY_URL, ITEMS, LONG, QUESTION, ROOT, refineHere, serving } from './serving.ts'

const shared = serving()
const { open } = shared

/** Some hundred batches of 256 tokens. */
const BUSY = LONG.slice(0, 10)

/** A store that keeps nothing and counts what it is given: one put a batch. */
function batchCounter(): EmbeddingStore & { batches: number; next(): Promise<void> } {
  let waiting: (() => void)[] = []
  const counter = {
    batches: 0,
    next: () =>
      new Promise<void>((resolve) => {
        waiting.push(resolve)
      }),
    async getMany(_: unknown, keys: readonly Uint8Array[]) {
      return keys.map(() => undefined)
    },
    async putMany() {
      counter.batches++
      for (const resolve of waiting) resolve()
      waiting = []
    },
  }
  return counter
}

/** An encoder, and the thread behind it. */
async function withThread(options: OpenEncoderOptions = {}): Promise<{ encoder: Encoder; worker: Worker }> {
  const started = new Promise<Worker>((resolve) => process.once('worker', (worker) => resolve(worker)))
  const encoder = await open(shared.checkpoint, options)
  return { encoder, worker: await started }
}

const exitOf = (worker: Worker): Promise<number> => new Promise((resolve) => worker.once('exit', resolve))

describe('the queue', () => {
  it('refuses a call beyond maxQueue at once, by an error that tells itself apart, and goes on', async () => {
    const encoder = await open(shared.checkpoint, { maxQueue: 2, tokenBudget: 256 })
    const order: string[] = []
    const call = (name: string, items: RefineInput[]): Promise<unknown> =>
      encoder.refine(QUESTION, items).then(
        () => order.push(name),
        (error: unknown) => {
          order.push(`${name} refused`)
          return error
        },
      )
    const all = [call('running', BUSY), call('first', ITEMS), call('second', ITEMS), call('third', ITEMS)]
    const error = await all[3]
    expect(order).toEqual(['third refused'])
    expect(error).toBeInstanceOf(shared.library.QueueFullError)
    expect(error).toMatchObject({ name: 'QueueFullError', code: 'CANOPY_QUEUE_FULL' })
    expect((error as Error).message).toMatch(/2 calls wait already.*"maxQueue"/)
    await Promise.all(all)
    expect(order).toEqual(['third refused', 'running', 'first', 'second'])
    await expect(encoder.refine(QUESTION, ITEMS)).resolves.toHaveLength(ITEMS.length)
  })

  it('counts only calls that wait: with maxQueue 0 one runs', async () => {
    const encoder = await open(shared.checkpoint, { maxQueue: 0 })
    const running = encoder.refine(QUESTION, ITEMS)
    await expect(encoder.refine(QUESTION, ITEMS)).rejects.toBeInstanceOf(shared.library.QueueFullError)
    await expect(encoder.prepare(ITEMS)).rejects.toBeInstanceOf(shared.library.QueueFullError)
    await running
    await encoder.refine(QUESTION, ITEMS)
  })

  it('has room again as soon as a waiting call is aborted', async () => {
    const encoder = await open(shared.checkpoint, { maxQueue: 1, tokenBudget: 256 })
    const controller = new AbortController()
    const running = encoder.refine(QUESTION, BUSY, { signal: controller.signal })
    const waiting = encoder.refine(QUESTION, BUSY, { signal: controller.signal })
    const both = Promise.allSettled([running, waiting])
    await expect(encoder.refine(QUESTION, ITEMS)).rejects.toThrow('maxQueue')
    controller.abort()
    expect(await encoder.refine(QUESTION, ITEMS)).toEqual(await refineHere(shared.checkpoint))
    expect((await both).map(({ status }) => status)).toEqual(['rejected', 'rejected'])
  })

  it('gives a call the time that AbortSignal.timeout allows, waiting included', async () => {
    const encoder = await open(shared.checkpoint, { tokenBudget: 256 })
    const running = encoder.refine(QUESTION, LONG)
    const broken = expect(running).rejects.toThrow('The encoder is closed.')
    await expect(encoder.refine(QUESTION, ITEMS, { signal: AbortSignal.timeout(1) })).rejects.toMatchObject({
      name: 'TimeoutError',
    })
    await encoder.close()
    await broken
  })

  it.each([
    [{ maxQueue: -1 }, /"maxQueue" is a number, 0 or more; -1 is none/],
    [{ maxQueue: Number.NaN }, /"maxQueue"/],
    [{ memory: Number.POSITIVE_INFINITY }, /"memory"/],
    [{ memory: '1 GB' as unknown as number }, /"memory" is a number, 0 or more; 1 GB is none/],
    [{ margin: Number.NaN }, /"margin"/],
    [{ tokenBudget: 0 }, /"tokenBudget" is a whole number, 1 or more; 0 is none/],
    [{ threads: 1.5 }, /"threads"/],
    [{ branching: 1 }, /"branching" is a whole number, 2 or more; 1 is none/],
    [{ tableFormat: 'html' as 'markdown' }, /"tableFormat" is one of markdown, .*; html is none/],
    [{ storedFrom: 'gpu' as 'cuda' }, /"storedFrom" is one of cpu, /],
  ])('refuses %j before a thread is started', async (options, message) => {
    const started = vi.fn()
    process.on('worker', started)
    onTestFinished(() => {
      process.off('worker', started)
    })
    const opening = open(shared.checkpoint, options)
    await expect(opening).rejects.toBeInstanceOf(RangeError)
    await expect(opening).rejects.toThrow(message)
    expect(started).not.toHaveBeenCalled()
  })
})

describe('a call that is aborted', () => {
  it('listens once to a signal that many calls share', async () => {
    const encoder = await open()
    const { signal } = new AbortController()
    const calls = Array.from({ length: 30 }, () => encoder.refine(QUESTION, ITEMS, { signal }))
    expect(getEventListeners(signal, 'abort')).toHaveLength(1)
    await Promise.all(calls)
    expect(getEventListeners(signal, 'abort')).toEqual([])
  })

  it('stops at its next batch', async () => {
    const whole = batchCounter()
    const other = await open(shared.checkpoint, { store: whole, tokenBudget: 256, memory: 0 })
    await other.refine(QUESTION, BUSY)
    expect(whole.batches).toBeGreaterThan(20)

    const store = batchCounter()
    const encoder = await open(shared.checkpoint, { store, tokenBudget: 256, memory: 0 })
    const controller = new AbortController()
    const refined = encoder.refine(QUESTION, BUSY, { signal: controller.signal })
    await store.next()
    controller.abort(new Error('gone'))
    await expect(refined).rejects.toThrow('gone')
    await encoder.refine(QUESTION, [])
    // batches that were on their way when the abort was sent, of this and of no other call
    expect(store.batches).toBeLessThan(whole.batches / 2)
  })
})

describe('the margin', () => {
  it('of the options applies to every call, that of a call to itself', async () => {
    const encoder = await open(shared.checkpoint, { margin: Number.POSITIVE_INFINITY })
    const everything = await encoder.refine(QUESTION, ITEMS)
    expect(everything).toEqual(await refineHere(shared.checkpoint, { margin: Number.POSITIVE_INFINITY }))
    const rule = await encoder.refine(QUESTION, ITEMS, { margin: 0 })
    expect(rule).toEqual(await refineHere(shared.checkpoint))
    expect(rule).not.toEqual(everything)
    await expect(encoder.refine(QUESTION, ITEMS, { margin: -1 })).rejects.toBeInstanceOf(RangeError)
  })
})

describe('what is to be refined', () => {
  it('may have fields without a value, and is told when it is no data', async () => {
    const encoder = await open()
    const hit = { id: null, title: undefined, text: ITEMS[0], rows: undefined, image: null, sentences: null }
    const [refined] = await refineHere(shared.checkpoint)
    expect(await encoder.refine(QUESTION, [hit as unknown as RefineInput])).toEqual([refined])
    const refused = encoder.refine(QUESTION, [{ text: (() => 1) as unknown as string }])
    await expect(refused).rejects.toBeInstanceOf(shared.library.InputError)
    await expect(refused).rejects.toThrow('a value that is no data')
  })
})

describe('closing', () => {
  it('breaks off what runs behind its batch and ends the thread', async () => {
    const store = batchCounter()
    const { encoder, worker } = await withThread({ store, tokenBudget: 256 })
    const ended = exitOf(worker)
    const calls = [encoder.refine(QUESTION, BUSY), encoder.refine(QUESTION, BUSY)]
    const settled = Promise.allSettled(calls)
    await store.next()
    await encoder.close()
    expect(await ended).toBe(0)
    for (const result of await settled) expect(result).toMatchObject({ reason: { message: 'The encoder is closed.' } })
    expect(store.batches).toBeLessThan(20)
    await expect(encoder.prepare(ITEMS)).rejects.toThrow('The encoder is closed.')
  })

  it('is what leaving a block with "await using" does', async () => {
    const encoder = await open()
    await encoder[Symbol.asyncDispose]()
    await expect(encoder.refine(QUESTION, ITEMS)).rejects.toThrow('The encoder is closed.')
  })

  it('does not wait for a store that never answers', async () => {
    let asked = (): void => {}
    const hanging = new Promise<void>((resolve) => {
      asked = resolve
    })
    const store: EmbeddingStore = {
      async getMany(_, keys) {
        if (keys.length === 0) return []
        asked()
        return new Promise(() => {})
      },
      async putMany() {},
    }
    const encoder = await open(shared.checkpoint, { store })
    const refused = expect(encoder.refine(QUESTION, ITEMS)).rejects.toThrow('The encoder is closed.')
    await hanging
    await encoder.close()
    await refused
  })

  it('is what an aborted signal does to an opening', async () => {
    const started = new Promise<Worker>((resolve) => process.once('worker', (worker) => resolve(worker)))
    const controller = new AbortController()
    const opening = open(shared.checkpoint, { signal: controller.signal })
    const refused = expect(opening).rejects.toThrow('not needed any more')
    const ended = exitOf(await started)
    controller.abort(new Error('not needed any more'))
    await refused
    await ended
    await expect(open(shared.checkpoint, { signal: AbortSignal.abort() })).rejects.toMatchObject({ name: 'AbortError' })
  })
})

describe('a thread that dies', () => {
  it('rejects all calls and later ones by its reason', async () => {
    const { encoder, worker } = await withThread({ tokenBudget: 256 })
    const calls = [encoder.refine(QUESTION, BUSY), encoder.refine(QUESTION, ITEMS)]
    const settled = Promise.allSettled(calls)
    // no message that the thread knows: an error that nothing catches
    worker.postMessage(null)
    const message = /The encoder's thread has ended: .*null.*Open the encoder anew/s
    for (const result of await settled)
      expect(result).toMatchObject({
        reason: { message: expect.stringMatching(message), cause: expect.any(TypeError) },
      })
    await expect(encoder.refine(QUESTION, ITEMS)).rejects.toThrow(message)
    await encoder.close()
  })

  it('without an error is told by its exit code', async () => {
    const { encoder, worker } = await withThread({ tokenBudget: 256 })
    const refused = expect(encoder.refine(QUESTION, BUSY)).rejects.toThrow('thread has ended: exit code 1.')
    await worker.terminate()
    await refused
    await expect(encoder.refine(QUESTION, ITEMS)).rejects.toThrow('thread has ended')
    await encoder.close()
  })
})

it('gives back its memory and threads however often it is opened and closed', () => {
  // weights of 21 MB, so that a session that stays shows
  const program = `
    import { openEncoder } from ${JSON.stringify(ENTRY_URL)}
    import { readdirSync } from 'node:fs'
    const threads = () => process.platform === 'linux' ? readdirSync('/proc/self/task').length : 0
    const measured = []
    for (let cycle = 0; cycle < 10; cycle++) {
      const encoder = await openEncoder('models/canopy-mini', { threads: 2 })
      await encoder.refine('Who?', ${JSON.stringify(ITEMS)})
      await encoder.close()
      measured.push({ megabytes: process.memoryUsage.rss() / 1e6, threads: threads() })
    }
    console.log(JSON.stringify({ measured, resources: process.getActiveResourcesInfo() }))`
  const { stdout, stderr } = spawnSync(process.execPath, ['--input-type=module', '-e', program], {
    cwd: ROOT,
    encoding: 'utf8',
    timeout: 110_000,
  })
  expect(stderr).toBe('')
  const { measured, resources } = JSON.parse(stdout) as {
    measured: { megabytes: number; threads: number }[]
    resources: string[]
  }
  const [early, late] = [measured[2]!, measured[9]!]
  // seven sessions of 40 MB each, or seven heaps
  expect(late.megabytes - early.megabytes).toBeLessThan(120)
  expect(late.threads).toBe(early.threads)
  expect(resources.filter((name) => /Worker|MessagePort/.test(name))).toEqual([])
})
