import { spawnSync } from 'node:child_process'
import { rmSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import {
  canopySettings,
  openPair,
  type RefineInput,
  readAdapter,
  readEncoder,
  readEncoderPair,
  refineItems,
} from '../../src/encoder/index.ts'
import { exportEncoder } from '../../src/export/index.ts'
import { temporaryFolder } from '../support/temporary.ts'
import { tinyBert } from './fixtures.ts'
import { COMMIT, hubServer } from './hub-server.ts'
import { tinyQwen3 } from './qwen3-known.ts'
import { ENTRY_URL, ITEMS, LONG, QUESTION, ROOT, refineHere, serving, TOWER } from './serving.ts'

const shared = serving()
const { open } = shared

describe('openEncoder', () => {
  it('refines texts and items as the same thread would, in input order', async () => {
    const encoder = await open()
    const results = await encoder.refine(QUESTION, ITEMS)
    expect(results).toEqual(await refineHere(shared.checkpoint))
    expect(results.map(({ id, title, leaves }) => [id, title, leaves])).toEqual([
      [undefined, undefined, 4],
      ['tower', 'Brennick tower', 4],
      ['mill', undefined, 2],
      [undefined, undefined, 1],
    ])
    for (const [i, { kept, nodes }] of results.entries()) {
      const input = ITEMS[i] as RefineInput
      const text = typeof input === 'string' ? input : (input as { text: string }).text
      expect(kept.length).toBeGreaterThan(0)
      for (const range of kept) expect(range.text).toBe(text.slice(range.start, range.end))
      expect(nodes[0]).toMatchObject({ from: 0, start: 0, end: text.length })
    }
    expect(await encoder.refine(QUESTION, [])).toEqual([])
  })

  it('refines pictures as the same thread would, with dimensions and instructions of its options', async () => {
    const folder = tinyQwen3('qwen3-vl')
    const items: RefineInput[] = [{ title: 'Bridge', image: join(folder, 'pictures', 'wide.png') }, TOWER]
    const options = { dimensions: 32, instructions: { query: 'Find the evidence.' } }
    const encoder = await open(folder, options)
    const pair = await readEncoderPair(folder, options)
    const encoders = await openPair(pair, { threads: 1 })
    onTestFinished(() => encoders.close())
    expect(await encoder.refine(QUESTION, items)).toEqual(await refineItems(encoders, pair.settings, QUESTION, items))
  })

  it('takes title and branching from its options', async () => {
    const options = { title: false, branching: 4 }
    const encoder = await open(shared.checkpoint, options)
    const results = await encoder.refine(QUESTION, ITEMS)
    expect(results).toEqual(await refineHere(shared.checkpoint, options))
    expect(results[1]?.nodes).toHaveLength(5)
    expect(results[1]?.kept).toEqual(results[0]?.kept)
  })

  it('refines tables by rows, which come back as the table format has them', async () => {
    const encoder = await open()
    const header = ['Mill', 'Ground']
    const rows = [
      ['Upper mill', 'rye'],
      ['Lower mill', 'oats'],
      ['Wind mill', 'wheat'],
    ]
    const [item] = await encoder.refine('What did the lower mill grind?', [{ title: 'Mills', header, rows }])
    expect(item).toMatchObject({ title: 'Mills', modality: 'table', leaves: 3 })
    expect(item!.nodes[0]).toMatchObject({ from: 0, to: 3, start: 0, end: 3 })
    for (const { start, end, text } of item!.kept) {
      const expected = rows.slice(start, end).map((cells) => `| ${cells.join(' | ')} |\n`)
      expect(text).toBe(expected.join(''))
    }
    await expect(encoder.refine('?', [{ header, rows: [['a', 3]] } as unknown as RefineInput])).rejects.toThrow(
      'Item 1 is no table',
    )
  })

  it('answers several questions at once, each with its own result', async () => {
    const encoder = await open()
    const questions = [QUESTION, 'What did the mill grind?', 'Where does the tower stand?']
    const together = await Promise.all(questions.map((question) => encoder.refine(question, ITEMS)))
    for (const [i, question] of questions.entries()) expect(together[i]).toEqual(await encoder.refine(question, ITEMS))
    expect(together[0]).not.toEqual(together[1])
  })

  it('leaves the event loop free while it works', async () => {
    // one batch, so that the same work in this thread would hold every tick up
    const encoder = await open(shared.checkpoint, { tokenBudget: 1 << 20 })
    let ticks = 0
    const timer = setInterval(() => ticks++, 1)
    await encoder.refine(QUESTION, LONG.slice(0, 12))
    clearInterval(timer)
    expect(ticks).toBeGreaterThan(20)
  })

  it('opens an export that carries its query encoder, without further options', async () => {
    const profile = await readEncoder(tinyBert('mean'))
    const adapter = await readAdapter(join(tinyBert('mean'), 'adapter'), profile)
    const output = join(temporaryFolder(), 'export')
    const settings = canopySettings(profile, profile, { title: false, tableFormat: 'markdown', branching: 3 })
    await exportEncoder({
      encoder: profile,
      adapter,
      queryEncoder: profile,
      settings,
      output,
      bundle: true,
      version: '0.0.0',
      threads: 1,
    })
    const encoder = await open(output)
    const results = await encoder.refine(QUESTION, ITEMS)
    expect(results).toEqual(await refineHere(output))
    // four leaves in a tree of three branches, as exported: a root, three children, two grandchildren
    expect(results[0]?.nodes).toHaveLength(6)

    const wrong = open(output, { queryEncoder: tinyBert('cls') })
    await expect(wrong).rejects.toBeInstanceOf(shared.library.InputError)
    await expect(wrong).rejects.toThrow(/trained with the query encoder mean .* but the one given is cls/)
    rmSync(join(output, 'query-encoder'), { recursive: true })
    await expect(open(output)).rejects.toThrow(/--query-encoder/)
  })

  it('downloads a model by its id and tells the progress', async () => {
    const hub = await hubServer(tinyBert('mean'))
    const cacheDir = temporaryFolder()
    const phases = new Set<string>()
    const encoder = await open(`org/tiny@${COMMIT}`, {
      hubUrl: hub.url,
      cacheDir,
      onProgress: ({ phase }) => phases.add(phase),
    })
    expect([...phases]).toEqual(['downloading org/tiny'])
    expect(await encoder.refine(QUESTION, ITEMS)).toEqual(await refineHere(tinyBert('mean')))
  })
})

describe('bad input', () => {
  it('in the folder is an InputError that names it', async () => {
    const folder = temporaryFolder()
    const error = await open(folder).catch((e: unknown) => e)
    expect(error).toBeInstanceOf(shared.library.InputError)
    expect(error).toMatchObject({ file: join(folder, 'config.json') })
    expect((error as Error).message).toMatch(/config\.json: There is no such file/)
    await expect(open(join(folder, 'nothing'))).rejects.toThrow(/no folder of that name/)
  })

  it('in a call is refused, and the next call works', async () => {
    const encoder = await open()
    const refused = async (question: unknown, items: unknown[], message: RegExp): Promise<void> => {
      const error = await encoder.refine(question as string, items as RefineInput[]).catch((e: unknown) => e)
      expect(error).toBeInstanceOf(shared.library.InputError)
      expect((error as Error).message).toMatch(message)
    }
    await refused(' ', ITEMS, /question is empty/)
    await refused(undefined, ITEMS, /question is empty/)
    await refused(QUESTION, [TOWER, { id: 'x', text: ' ' }], /Item 2 \("x"\) has no text/)
    await refused(QUESTION, [null], /Item 1 is neither/)
    await refused(QUESTION, TOWER as never, /is a list of items; give one item as \[item\]/)
    await refused(QUESTION, [{ id: 'x', text: 'A b.', sentences: [[0, 9]] }], /Sentence 0 \[0, 9\) of item "x"/)
    await expect(encoder.refine(QUESTION, [() => {}] as unknown as RefineInput[])).rejects.toThrow(
      /could not be cloned/,
    )
    expect(await encoder.refine(QUESTION, ITEMS)).toEqual(await refineHere(shared.checkpoint))
  })
})

describe('abort', () => {
  it('rejects at once, whether the call runs or waits, and later calls work', async () => {
    const encoder = await open(shared.checkpoint, { tokenBudget: 256 })
    const settled: string[] = []
    const note = (name: string) => (): void => {
      settled.push(name)
    }
    const controllers = [new AbortController(), new AbortController()] as const
    const running = encoder.refine(QUESTION, LONG, { signal: controllers[0].signal })
    const waiting = encoder.refine(QUESTION, LONG, { signal: controllers[1].signal })
    const last = encoder.refine(QUESTION, ITEMS)
    const all = [
      running.then(note('running'), note('running aborted')),
      waiting.then(note('waiting'), note('waiting aborted')),
      last.then(note('last')),
    ]
    controllers[1].abort(new Error('not any more'))
    await expect(waiting).rejects.toThrow('not any more')
    controllers[0].abort()
    await expect(running).rejects.toMatchObject({ name: 'AbortError' })
    await Promise.all(all)
    expect(settled).toEqual(['waiting aborted', 'running aborted', 'last'])
    expect(await last).toEqual(await refineHere(shared.checkpoint, { tokenBudget: 256 }))
  })

  it('before the call does nothing else', async () => {
    const encoder = await open()
    await expect(encoder.refine(QUESTION, ITEMS, { signal: AbortSignal.abort() })).rejects.toMatchObject({
      name: 'AbortError',
    })
  })
})

describe('close', () => {
  it('rejects what is pending and what comes later, and may be called again', async () => {
    const encoder = await open(shared.checkpoint, { tokenBudget: 256 })
    const pending = encoder.refine(QUESTION, LONG)
    const rejected = expect(pending).rejects.toThrow('The encoder is closed.')
    await Promise.all([encoder.close(), encoder.close()])
    await rejected
    await expect(encoder.refine(QUESTION, ITEMS)).rejects.toThrow('The encoder is closed.')
    await encoder.close()
  })

  /** What a program prints that ends by having nothing left to do. */
  function run(program: string): { status: number | null; stdout: string; stderr: string } {
    const code = `import { openEncoder } from ${JSON.stringify(ENTRY_URL)}
      const encoder = await openEncoder(${JSON.stringify(shared.checkpoint)}, { threads: 1, tokenBudget: 256 })
      ${program}`
    return spawnSync(process.execPath, ['--input-type=module', '-e', code], {
      cwd: ROOT,
      encoding: 'utf8',
      timeout: 60_000,
    })
  }

  it('lets the process exit, with work pending', () => {
    const { status, stdout, stderr } = run(`
      const pending = encoder.refine('Who?', ${JSON.stringify(LONG)}).catch((error) => console.log(error.message))
      await encoder.close()
      await pending
      console.log('closed')`)
    expect(stderr).toBe('')
    expect(stdout).toBe('The encoder is closed.\nclosed\n')
    expect(status).toBe(0)
  })

  it('may be forgotten: an idle encoder keeps no process alive, one at work does', () => {
    const { status, stdout, stderr } = run(`
      const [item] = await encoder.refine('Who?', ['A tower. A river.'])
      console.log(item.leaves)
      encoder.refine('Who?', ['A tower. A river. A bell.']).then(([item]) => console.log(item.leaves))`)
    expect(stderr).toBe('')
    expect(stdout).toBe('2\n3\n')
    expect(status).toBe(0)
  })
})
