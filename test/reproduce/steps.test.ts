import { existsSync, readdirSync, readFileSync, utimesSync, writeFileSync } from 'node:fs'
import { mkdir, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { openHashes } from '../../src/reproduce/hashes.ts'
import { changes, flatInputs } from '../../src/reproduce/stamps.ts'
import { dryRun, runSteps, type Step, type StepEvent } from '../../src/reproduce/step.ts'
import { InputError } from '../../src/support/errors.ts'
import { atomicFolder, exists } from '../../src/support/files.ts'
import { temporaryFolder } from '../support/temporary.ts'

/** Copies what its inputs say into a file of its own: `b` is made from `a`, and `c` from `b`. */
function chain(folder: string, settings: Partial<Record<string, Record<string, string>>> = {}) {
  const ran: string[] = []
  const at = (name: string): string => join(folder, name)
  const step = (id: string, inputs: string[], after: Step[], run?: Step['run'], resumes?: true): Step => ({
    kind: 'import',
    id,
    output: at(id),
    after,
    settings: { separator: ',', ...settings[id] },
    async content() {
      const hashes = await openHashes(at('none'))
      return Object.fromEntries(await Promise.all(inputs.map(async (name) => [name, await hashes.of(at(name))])))
    },
    async products() {
      if (!(await exists(at(id)))) return undefined
      return { text: await (await openHashes(at('none'))).of(at(id)) }
    },
    run:
      run ??
      (async () => {
        ran.push(id)
        await atomicFolder(at(id), async (temporary) => {
          const texts = inputs.map((name) => (name.endsWith('.txt') ? name : join(name, 'text')))
          const text = texts.map((name) => readFileSync(at(name), 'utf8').trim()).join(',')
          await writeFile(join(temporary, 'text'), text)
        })
        return { made: id }
      }),
    ...(resumes && { resumes }),
  })
  const a = step('a', ['one.txt'], [])
  const b = step('b', ['a', 'two.txt'], [a])
  const c = step('c', ['b'], [b])
  const d = step('d', ['three.txt'], [])
  return { steps: [a, b, c, d], step, ran, at }
}

async function setUp() {
  const folder = temporaryFolder()
  for (const name of ['one', 'two', 'three']) writeFileSync(join(folder, `${name}.txt`), name)
  const run = async (steps: Step[], events: StepEvent[] = []): Promise<StepEvent[]> => {
    const hashes = await openHashes(join(folder, 'stamps', 'hashes.json'))
    await runSteps(steps, { stamps: join(folder, 'stamps'), hashes, onEvent: (event) => events.push(event) })
    return events
  }
  return { folder, run, stamps: join(folder, 'stamps') }
}

const whys = (events: StepEvent[]): Record<string, string> =>
  Object.fromEntries(events.flatMap((event) => (event.type === 'begin' ? [[event.step.id, event.why]] : [])))

describe('steps', () => {
  it('run once, in order, and are skipped after that', async () => {
    const { folder, run } = await setUp()
    const first = chain(folder)
    expect(whys(await run(first.steps))).toEqual({
      a: 'not done yet',
      b: 'not done yet',
      c: 'not done yet',
      d: 'not done yet',
    })
    expect(readFileSync(join(folder, 'c', 'text'), 'utf8')).toBe('one,two')
    const again = chain(folder)
    const events = await run(again.steps)
    expect(again.ran).toEqual([])
    expect(events.map(({ type }) => type)).toEqual(['skipped', 'skipped', 'skipped', 'skipped'])
  })

  it('run again where the content of an input changed, and only as far as that reaches', async () => {
    const { folder, run } = await setUp()
    await run(chain(folder).steps)
    writeFileSync(join(folder, 'two.txt'), 'zwei')
    const changed = chain(folder)
    const why = whys(await run(changed.steps))
    expect(why).toEqual({ b: 'changed: two.txt (its content)', c: 'changed: b (its content)' })
    expect(readFileSync(join(folder, 'c', 'text'), 'utf8')).toBe('one,zwei')

    // another time stamp is no change
    const later = new Date(Date.now() + 5000)
    utimesSync(join(folder, 'one.txt'), later, later)
    const touched = chain(folder)
    await run(touched.steps)
    expect(touched.ran).toEqual([])

    // what comes out the same stops the change
    writeFileSync(join(folder, 'one.txt'), 'one\n')
    const same = chain(folder)
    await run(same.steps)
    expect(same.ran).toEqual(['a'])
  })

  it('run again where a setting changed, and where the output is gone or was changed', async () => {
    const { folder, run } = await setUp()
    await run(chain(folder).steps)
    const other = chain(folder, { d: { separator: ';', 'train.rank': '8' } })
    expect(whys(await run(other.steps))).toEqual({ d: 'changed: separator , -> ;, train.rank is new' })
    await rm(join(folder, 'a'), { recursive: true })
    writeFileSync(join(folder, 'd', 'text'), 'by hand')
    const mended = chain(folder, { d: { separator: ';', 'train.rank': '8' } })
    expect(whys(await run(mended.steps))).toEqual({
      a: 'its output is gone',
      d: 'its output was changed: text (its content)',
    })
    expect(readFileSync(join(folder, 'd', 'text'), 'utf8')).toBe('three')
  })

  it('say in a dry run what would run, what might, and why, and change nothing', async () => {
    const { folder, run, stamps } = await setUp()
    expect((await dryRun(chain(folder).steps, stamps)).map(({ verdict }) => verdict.state)).toEqual(
      Array(4).fill('run'),
    )
    expect(existsSync(stamps)).toBe(false)
    await run(chain(folder).steps)
    const { steps } = chain(folder, { a: { separator: ';' } })
    expect((await dryRun(steps, stamps)).map(({ step, verdict }) => [step.id, verdict])).toEqual([
      ['a', { state: 'run', why: 'changed: separator , -> ;' }],
      ['b', { state: 'depends', why: 'only if "a" gives something else' }],
      ['c', { state: 'depends', why: 'only if "b" gives something else' }],
      ['d', expect.objectContaining({ state: 'done' })],
    ])
    const untouched = chain(folder)
    await run(untouched.steps)
    expect(untouched.ran).toEqual([])
  })

  it('go on after a failure from the step that failed, and clear away what it left', async () => {
    const { folder, run } = await setUp()
    const broken = chain(folder)
    broken.steps[1] = broken.step('b', ['a', 'two.txt'], [broken.steps[0]!], async () => {
      // as a killed process leaves it
      await mkdir(join(folder, '.b.tmp-1-00000000'))
      throw new Error('killed')
    })
    await expect(run(broken.steps)).rejects.toThrow('killed')
    const second = chain(folder)
    expect(whys(await run(second.steps))).toEqual({ b: 'was interrupted', c: 'not done yet', d: 'not done yet' })
    expect(second.ran).toEqual(['b', 'c', 'd'])
    expect(readdirSync(folder).filter((name) => name.startsWith('.'))).toEqual([])
  })

  it('go on with half an output where they can, but never with one of other inputs', async () => {
    const { folder, run, stamps } = await setUp()
    const half = (resumed: boolean[], finish: boolean) => {
      const made = chain(folder, { t: { rank: finish ? '8' : '4' } })
      const training = async ({ resume }: { resume: boolean }): Promise<void> => {
        resumed.push(resume)
        await mkdir(made.at('t'), { recursive: true })
        const file = join(made.at('t'), 'text')
        writeFileSync(file, `${existsSync(file) ? readFileSync(file, 'utf8') : ''}x`)
        if (resumed.length < 3) throw new Error('killed')
      }
      return made.step('t', ['one.txt'], [], training, true)
    }
    const resumed: boolean[] = []
    await expect(run([half(resumed, false)])).rejects.toThrow('killed')
    expect(await dryRun([half(resumed, false)], stamps)).toMatchObject([{ verdict: { why: 'was interrupted' } }])
    await expect(run([half(resumed, false)])).rejects.toThrow('killed')
    expect(readFileSync(join(folder, 't', 'text'), 'utf8')).toBe('xx')
    await run([half(resumed, true)])
    expect(resumed).toEqual([false, true, false])
    expect(readFileSync(join(folder, 't', 'text'), 'utf8')).toBe('x')
  })

  it('refuse to replace what they did not make', async () => {
    const { folder, run } = await setUp()
    await mkdir(join(folder, 'a'))
    writeFileSync(join(folder, 'a', 'thesis.txt'), 'mine')
    const error = await run(chain(folder).steps).catch((e: unknown) => e)
    expect(error).toBeInstanceOf(InputError)
    expect((error as Error).message).toMatch(/not made by it.*--output/)
    expect(readdirSync(join(folder, 'a'))).toEqual(['thesis.txt'])
  })

  it('guess the time left once the like of what is left has run', async () => {
    const { folder, run } = await setUp()
    const events = await run(chain(folder).steps)
    const left = events.flatMap((event) => (event.type === 'end' ? [event.left] : []))
    expect(left).toHaveLength(4)
    expect(left.at(-1)).toBe(0)
    for (const seconds of left) expect(seconds).toBeGreaterThanOrEqual(0)
  })
})

describe('content hashes', () => {
  it('are of bytes and names, remembered while size and times are the same', async () => {
    const folder = temporaryFolder()
    const memory = join(folder, 'hashes.json')
    const data = join(folder, 'data')
    await mkdir(join(data, 'deep'), { recursive: true })
    writeFileSync(join(data, 'a'), '1')
    writeFileSync(join(data, 'deep', 'b'), '2')
    const before = await (await openHashes(memory)).of(data)
    writeFileSync(join(data, 'deep', 'b'), '3')
    const after = await (await openHashes(memory)).of(data)
    expect(after).not.toBe(before)
    writeFileSync(join(data, 'deep', 'b'), '2')
    expect(await (await openHashes(memory)).of(data)).toBe(before)
    writeFileSync(join(data, '.hidden'), 'x')
    expect(await (await openHashes(memory)).of(data)).toBe(before)
    await expect((await openHashes(memory)).of(join(folder, 'absent'))).rejects.toThrow(/absent: .*no such file/)
  })

  it('compute what is derived once for each content, also after a restart, and survive a broken memory', async () => {
    const memory = join(temporaryFolder(), 'hashes.json')
    let computed = 0
    const compute = async (): Promise<string> => `value ${++computed}`
    for (const from of [['x'], ['x'], ['y']]) {
      const hashes = await openHashes(memory)
      expect(await hashes.derived('split dev', from, compute)).toBe(from[0] === 'x' ? 'value 1' : 'value 2')
      await hashes.save()
    }
    writeFileSync(memory, '{"schema"')
    expect(await (await openHashes(memory)).derived('split dev', ['x'], compute)).toBe('value 3')
  })
})

it('changes are told in words', () => {
  const hash = (digit: string): string => digit.repeat(64)
  expect(
    changes({ 'train.rank': '8', gone: '1', data: hash('a') }, { 'train.rank': '16', fresh: '2', data: hash('b') }),
  ).toEqual(['train.rank 8 -> 16', 'gone is gone', 'data (its content)', 'fresh is new'])
  expect(
    flatInputs(
      { rank: 8, kindWeights: { 'gold-child': 0 }, betas: [0.9, 0.99], targets: null, no: undefined },
      'train.',
    ),
  ).toEqual({
    'train.rank': '8',
    'train.kindWeights.gold-child': '0',
    'train.betas': '[0.9,0.99]',
    'train.targets': 'null',
  })
})
