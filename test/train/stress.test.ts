import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { createRandom } from '../../src/support/random.ts'
import type { TrainSettingsInput } from '../../src/train/settings.ts'
import { canopy, createSetup, type Setup } from './command.ts'
import { quick, type Trained, trainHere } from './training.ts'

let folder: string
let setup: Setup
beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'canopy-stress-'))
  setup = await createSetup(folder)
})
afterAll(() => rmSync(folder, { recursive: true, force: true }))

const bytesOf = (...path: string[]): Record<string, string> => {
  const at = join(folder, ...path)
  return Object.fromEntries(
    readdirSync(at).map((name) => [
      name,
      createHash('sha256')
        .update(readFileSync(join(at, name)))
        .digest('hex'),
    ]),
  )
}
const metricsText = (run: string): string => readFileSync(join(folder, run, 'metrics.jsonl'), 'utf8')
const untimed = (run: string): unknown[] =>
  metricsText(run)
    .split('\n')
    .slice(0, -1)
    .map((line) => ({ ...JSON.parse(line), seconds: undefined }))
const checkpointsOf = (run: string): string[] => readdirSync(join(folder, run, 'checkpoints')).sort()

/** Stops a run when it has logged this step. */
async function stopAt(run: string, step: number, settings: TrainSettingsInput = {}): Promise<void> {
  const stop = new AbortController()
  const stopped = trainHere(setup, join(folder, run), settings, {
    resume: true,
    signal: stop.signal,
    onStep: (line) => line.step === step && stop.abort(),
  })
  await expect(stopped).rejects.toThrow(`Training stopped after step ${step}.`)
}
const resume = (run: string, settings: TrainSettingsInput = {}): Promise<Trained> =>
  trainHere(setup, join(folder, run), settings, { resume: true })

describe('a run', () => {
  beforeAll(async () => {
    await trainHere(setup, join(folder, 'whole'))
  })
  const expectAsUndisturbed = (run: string): void => {
    expect(bytesOf(run, 'adapter')).toEqual(bytesOf('whole', 'adapter'))
    expect(untimed(run)).toEqual(untimed('whole'))
  }

  it('of the same seed gives the same bytes, with gradient caching too', async () => {
    for (const settings of [{}, { tokenBudget: 32 }, { loss: 'hinge', margin: 0.3 }]) {
      await trainHere(setup, join(folder, 'first'), settings)
      await trainHere(setup, join(folder, 'second'), settings)
      expect(bytesOf('first', 'adapter')).toEqual(bytesOf('second', 'adapter'))
      expect(untimed('first')).toEqual(untimed('second'))
      for (const run of ['first', 'second']) rmSync(join(folder, run), { recursive: true })
    }
  })

  it('begins, goes on and is finished under one unchanged call, and then touches nothing', async () => {
    await stopAt('one', 2)
    await stopAt('one', 6)
    expect((await resume('one')).result).toMatchObject({ alreadyFinished: false, steps: 8 })
    expectAsUndisturbed('one')
    const times = (): number[] =>
      ['adapter', 'metrics.jsonl', 'config.json'].map((n) => statSync(join(folder, 'one', n)).ino)
    const before = times()
    const again = await resume('one')
    expect(again.result).toMatchObject({ alreadyFinished: true, steps: 8, work: { steps: 0 } })
    expect(again.result.selected.validation?.decisions).toBeGreaterThan(0)
    expect(again.result.frozen?.decisions).toBeGreaterThan(0)
    expect(times()).toEqual(before)
    await expect(trainHere(setup, join(folder, 'one'))).rejects.toThrow(/already holds a training run.*--resume/)
  })

  it('that is finished makes up for an adapter that is missing or damaged, from its last checkpoint', async () => {
    cpSync(join(folder, 'whole'), join(folder, 'finished'), { recursive: true })
    const adapter = join(folder, 'finished', 'adapter')
    rmSync(adapter, { recursive: true })
    expect((await resume('finished')).result.alreadyFinished).toBe(true)
    expectAsUndisturbed('finished')
    const file = join(adapter, 'adapter_model.safetensors')
    const bytes = readFileSync(file)
    bytes[bytes.length - 2]! ^= 4
    writeFileSync(file, bytes)
    expect((await resume('finished')).warnings.join()).toMatch(/adapter is damaged and is written again/)
    expectAsUndisturbed('finished')
    for (const name of ['canopy.json', 'training-data.json', 'adapter_config.json']) {
      writeFileSync(join(adapter, name), '{')
      expect((await resume('finished')).warnings.join()).toMatch(/adapter is damaged and is written again/)
      expectAsUndisturbed('finished')
    }
    rmSync(join(folder, 'finished', 'validation.jsonl'))
    writeFileSync(join(folder, 'finished', 'metrics.jsonl'), 'x\n')
    expect((await resume('finished')).result).toMatchObject({ alreadyFinished: true, frozen: undefined })
    const heldOut = (run: string): string => readFileSync(join(folder, run, 'validation.jsonl'), 'utf8')
    expect(heldOut('finished')).toBe(heldOut('whole'))
    cpSync(join(folder, 'whole', 'metrics.jsonl'), join(folder, 'finished', 'metrics.jsonl'))
    rmSync(join(folder, 'finished', 'checkpoints'), { recursive: true })
    await expect(resume('finished')).rejects.toThrow(/an adapter and no checkpoints/)
    expectAsUndisturbed('finished')
  })

  it('that is stopped while it validates goes on with that validation', async () => {
    for (const [run, last, settings] of [
      ['broken-off', 3, {}],
      ['broken-off-first', 0, { evaluateEvery: 1 }],
    ] as const) {
      const stop = new AbortController()
      // Two turns after that step the loop has looked at the signal; it looks again when the next one validates.
      const soon = (): unknown => setImmediate(() => setImmediate(() => stop.abort()))
      const onStep = ({ step }: { step: number }): unknown => step === last && soon()
      const stopped = trainHere(setup, join(folder, run), settings, { signal: stop.signal, onStep })
      await expect(stopped).rejects.toThrow(`Training stopped after step ${last + 1}.`)
      expect(untimed(run).length).toBe(last + 1)
      await resume(run, settings)
    }
    expectAsUndisturbed('broken-off')
    await trainHere(setup, join(folder, 'often'), { evaluateEvery: 1 })
    expect(untimed('broken-off-first')).toEqual(untimed('often'))
  })

  it('that ends after such a validation, and before the next checkpoint, does not log it twice', async () => {
    const stop = new AbortController()
    const soon = (): unknown => setImmediate(() => setImmediate(() => stop.abort()))
    const onStep = ({ step }: { step: number }): unknown => step === 3 && soon()
    await expect(trainHere(setup, join(folder, 'again'), {}, { signal: stop.signal, onStep })).rejects.toThrow(/step 4/)
    const crash = ({ step }: { step: number }): void => {
      if (step === 5) throw new Error('crashed')
    }
    await expect(trainHere(setup, join(folder, 'again'), {}, { resume: true, onStep: crash })).rejects.toThrow(
      'crashed',
    )
    await resume('again')
    expectAsUndisturbed('again')
  })

  it('gives the same bytes when any file of its newest checkpoint is damaged', async () => {
    await stopAt('damage', 7)
    expect(checkpointsOf('damage')).toEqual(['step-00000006', 'step-00000007'])
    const random = createRandom('damage')
    for (const file of ['adapter.safetensors', 'best.safetensors', 'optimizer.safetensors', 'state.json']) {
      const run = `damage-${file}`
      cpSync(join(folder, 'damage'), join(folder, run), { recursive: true })
      const path = join(folder, run, 'checkpoints', 'step-00000007', file)
      const bytes = readFileSync(path)
      writeFileSync(path, bytes.subarray(0, random.int(bytes.length)))
      expect((await resume(run)).warnings.join()).toMatch(/step-00000007 is damaged.*passed over/)
      expectAsUndisturbed(run)
    }
    for (const checkpoint of checkpointsOf('damage'))
      writeFileSync(join(folder, 'damage', 'checkpoints', checkpoint, 'state.json'), '{')
    await expect(resume('damage')).rejects.toThrow(/Every checkpoint of this run is damaged/)
  })

  it('writes a damaged config.json again, and says which lines of metrics.jsonl are gone', async () => {
    await stopAt('config', 5)
    const config = join(folder, 'config', 'config.json')
    const before = JSON.parse(readFileSync(config, 'utf8'))
    writeFileSync(config, readFileSync(config).subarray(0, 300))
    const lines = metricsText('config').split('\n')
    writeFileSync(join(folder, 'config', 'metrics.jsonl'), `${lines.slice(0, 4).join('\n')}\n{"step":4,`)
    const { warnings } = await resume('config')
    expect(warnings.join('\n')).toMatch(/config\.json is damaged or missing and is written again/)
    expect(warnings.join('\n')).toMatch(/metrics\.jsonl was damaged: it lacks 2 of 6 lines, that of step 4 first/)
    expect(JSON.parse(readFileSync(config, 'utf8'))).toEqual(before)
    rmSync(config)
    expect((await resume('config')).result.alreadyFinished).toBe(true)
    expect(JSON.parse(readFileSync(config, 'utf8'))).toEqual(before)
    expect(bytesOf('config', 'adapter')).toEqual(bytesOf('whole', 'adapter'))
    writeFileSync(config, '{"schema":"canopy-run/9"}')
    await expect(resume('config')).rejects.toThrow(/another version of canopy/)
  })

  it('is not resumed with other settings, data, encoder or threads', async () => {
    await stopAt('fingerprint', 5)
    const preferences = join(folder, 'other.jsonl')
    writeFileSync(preferences, readFileSync(setup.preferences, 'utf8').replace(/\n.*\n$/, '\n'))
    const encoder = join(folder, 'other-bert')
    cpSync(setup.encoder, encoder, { recursive: true })
    const weights = join(encoder, 'model.safetensors')
    const bytes = readFileSync(weights)
    bytes[bytes.length - 2]! ^= 1
    writeFileSync(weights, bytes)
    for (const [settings, inputs, message] of [
      [{ learningRate: 0.02 }, {}, /setting learningRate was 0\.01, is 0\.02/],
      [{ seed: 6 }, {}, /setting seed was 5, is 6/],
      [{ tokenBudget: 256 }, {}, /setting tokenBudget was 512, is 256/],
      [{ threads: 2 }, {}, /threads was 1, is 2/],
      [{ steps: 9 }, {}, /setting steps was 8, is 9/],
      [{}, { preferences }, /preferences 1 \(dataset, train\) was/],
      [{}, { encoder }, /encoder was/],
    ] as const) {
      const again = trainHere({ ...setup, ...inputs }, join(folder, 'fingerprint'), settings, { resume: true })
      await expect(again).rejects.toThrow(message)
    }
    await resume('fingerprint', { keep: 5, checkpointEvery: 2 })
    expectAsUndisturbed('fingerprint')
  })

  it('keeps as many checkpoints as asked, the last one among them', async () => {
    await trainHere(setup, join(folder, 'keep'), { keep: 1, checkpointEvery: 1 })
    expect(checkpointsOf('keep')).toEqual(['step-00000008'])
  })

  it('does not care what the clock says, nor the times of its files', async () => {
    const clock = join(folder, 'clock.mjs')
    writeFileSync(clock, 'const now = Date.now\nDate.now = () => now() + (Math.random() - 0.5) * 4e11\n')
    const config = join(folder, 'quick.json')
    writeFileSync(config, JSON.stringify(quick))
    const run = ['train', '--encoder', setup.encoder, '--dataset', setup.dataset, '--preferences', setup.preferences]
    const command = [...run, '--config', config, '--output', join(folder, 'clock'), '--resume']
    const shell = `NODE_OPTIONS="--import=${pathToFileURL(clock).href}" exec "$@"`
    for (const signal of ['SIGTERM', 'SIGKILL', undefined] as const) {
      const { process: child, finished } = canopy(command, { shell })
      const from = existsSync(join(folder, 'clock', 'metrics.jsonl')) ? untimed('clock').length : 0
      while (signal !== undefined && child.exitCode === null) {
        await sleep(2)
        if (!existsSync(join(folder, 'clock', 'metrics.jsonl')) || untimed('clock').length < from + 3) continue
        child.kill(signal)
        break
      }
      const { code, stderr } = await finished
      expect(stderr).not.toMatch(/error|damaged/)
      expect(code).toBe(signal === 'SIGTERM' ? 143 : signal === 'SIGKILL' ? null : 0)
      const names = readdirSync(join(folder, 'clock'), { recursive: true, encoding: 'utf8' }).sort()
      names.forEach((name, i) => {
        utimesSync(join(folder, 'clock', name), 4e9 - 1e8 * i, 4e9 - 1e8 * i)
      })
    }
    expectAsUndisturbed('clock')
  })

  it('that stops for numbers that are not finite says so, and leaves its metrics but nothing in the way', async () => {
    const failing = trainHere(setup, join(folder, 'overflow'), { learningRate: 1e38, warmup: 0, clipNorm: 0 })
    await expect(failing).rejects.toThrow(/in 3 steps in a row .* not finite.*Lower the learning rate/)
    expect(metricsText('overflow')).toMatch(/"skipped":".*not finite"/)
    rmSync(join(folder, 'overflow', 'checkpoints'), { recursive: true, force: true })
    await trainHere(setup, join(folder, 'overflow'))
    expectAsUndisturbed('overflow')
  })
})

describe('a training that fails at its first item', () => {
  it('leaves nothing behind, in a folder that was there or one that was not', async () => {
    const [header, ...lines] = readFileSync(setup.preferences, 'utf8').trimEnd().split('\n')
    const broken = lines.map((line) => {
      const instance = JSON.parse(line) as { nodes: [number, number][] }
      return JSON.stringify({ ...instance, nodes: instance.nodes.map(([from, to]) => [from, to + 100]) })
    })
    const preferences = join(folder, 'broken.jsonl')
    writeFileSync(preferences, `${[header, ...broken].join('\n')}\n`)
    const present = join(folder, 'present')
    mkdirSync(present)
    for (const output of [join(folder, 'absent'), present]) {
      for (const validationShare of [0, 0.15])
        await expect(
          trainHere({ ...setup, preferences }, output, { validationShare }, { resume: false }),
        ).rejects.toThrow(/whose hierarchy has none/)
      expect(existsSync(output) ? readdirSync(output) : 'gone').toEqual(output === present ? [] : 'gone')
    }
  })
})

describe('canopy train', () => {
  const command = (run: string, ...more: string[]): string[] => {
    const config = join(folder, 'config.json')
    writeFileSync(config, JSON.stringify(quick))
    const inputs = ['--encoder', setup.encoder, '--dataset', setup.dataset, '--preferences', setup.preferences]
    return ['train', ...inputs, '--config', config, '--output', join(folder, run), ...more]
  }

  it('started several times at once on one folder runs once', async () => {
    const all = await Promise.all(Array.from({ length: 4 }, () => canopy(command('at-once', '--resume')).finished))
    const trained = all.filter(({ code, stdout }) => code === 0 && !stdout.includes('already finished'))
    expect(trained.length).toBe(1)
    // One that comes late may find the run finished.
    for (const { code, stdout, stderr } of all)
      if (code !== 0) expect(`${code} ${stdout}${stderr}`).toMatch(/^1 .*is training in this folder/s)
  })

  it('exits 0 and says so when the run is finished, and knows --keep and its older name', async () => {
    const first = await canopy(command('said', '--resume', '--keep', '1')).finished
    expect(first).toMatchObject({ code: 0 })
    expect(first.stdout).not.toMatch(/already finished/)
    const again = await canopy(command('said', '--resume', '--keep-checkpoints', '3')).finished
    expect(again).toMatchObject({ code: 0, stderr: '' })
    expect(again.stdout).toMatch(/already finished/)
    expect(checkpointsOf('said').length).toBe(1)
    const json = await canopy(command('said', '--resume', '--json')).finished
    expect(JSON.parse(json.stdout)).toMatchObject({ alreadyFinished: true })
    expect((await canopy(['train', '--help']).finished).stdout).toMatch(/Exit status: 0 .* 130 .* 143/s)
  })

  it('finishes although nobody reads what it prints any more, or its warnings can be written nowhere', async () => {
    const status = '{ "$@"; echo "status $?" >&2; } | true'
    const unread = await canopy(command('unread', '--checkpoint-every', '1'), { shell: status }).finished
    expect(unread.stderr).toMatch(/status 0/)
    expect(existsSync(join(folder, 'unread', 'adapter'))).toBe(true)
    if (!existsSync('/dev/full')) return
    // A share so small that there is no validation part, which is worth a warning.
    const untold = command('untold', '--validation-share', '0.0001')
    expect((await canopy(untold, { shell: 'exec "$@" 2>/dev/full' }).finished).code).toBe(0)
  })

  it('stops well at signals that come together, and goes on from there', async () => {
    const { process: child, finished } = canopy(command('twice', '--steps', '400', '--resume'))
    while (child.exitCode === null && !existsSync(join(folder, 'twice', 'checkpoints', 'step-00000003'))) await sleep(2)
    child.kill('SIGTERM')
    child.kill('SIGINT')
    await sleep(1)
    child.kill('SIGTERM')
    const first = await finished
    expect([130, 143]).toContain(first.code)
    expect(first.stderr).toMatch(/Stopped after step \d+/)
    const { process: next, finished: stopped } = canopy(command('twice', '--steps', '400', '--resume'))
    const at = untimed('twice').length
    while (next.exitCode === null && untimed('twice').length < at + 2) await sleep(2)
    next.kill('SIGINT')
    expect(await stopped).toMatchObject({ code: 130 })
  })

  it('that may write no large file says so, keeps its last checkpoint, and goes on when it may', async () => {
    const whole = await canopy(command('unlimited')).finished
    expect(whole.code).toBe(0)
    const largest = statSync(join(folder, 'unlimited', 'checkpoints', 'step-00000008', 'optimizer.safetensors')).size
    // Blocks of 512 bytes in POSIX, 1024 in bash: too small for a checkpoint either way.
    const blocks = Math.floor(largest / 1024) - 1
    const limited = await canopy(command('limited'), { shell: `ulimit -f ${blocks}; exec "$@"` }).finished
    expect(limited).toMatchObject({ code: 1, signal: null })
    expect(limited.stderr).toMatch(/step-00000003.*cannot write the file: .*allows no file that large/s)
    expect(readdirSync(join(folder, 'limited', 'checkpoints'))).toEqual([])
    expect((await canopy(command('limited', '--resume')).finished).code).toBe(0)
    expect(bytesOf('limited', 'adapter')).toEqual(bytesOf('unlimited', 'adapter'))
    expect(untimed('limited')).toEqual(untimed('unlimited'))
  })

  it.skipIf(!canMount())('goes on after the disk was full as if it had not been', async () => {
    const disk = join(folder, 'disk')
    mkdirSync(disk)
    const sized = (kilobytes: number): string => `size=${kilobytes}k`
    execFileSync('mount', ['-t', 'tmpfs', '-o', sized(8192), 'tmpfs', disk])
    try {
      expect((await canopy(command('disk/roomy', '--steps', '12')).finished).code).toBe(0)
      const used = Number(
        execFileSync('du', ['-sk', join(disk, 'roomy', 'checkpoints', 'step-00000012')])
          .toString()
          .split('\t')[0],
      )
      const expected = { adapter: bytesOf('disk/roomy', 'adapter'), lines: untimed('disk/roomy') }
      rmSync(join(disk, 'roomy'), { recursive: true })
      for (const checkpoints of [1.5, 2.5]) {
        execFileSync('mount', ['-o', `remount,${sized(Math.floor(used * checkpoints) + 24)}`, disk])
        const full = await canopy(command('disk/run', '--steps', '12', '--resume')).finished
        expect(full).toMatchObject({ code: 1, signal: null })
        expect(full.stderr).toMatch(/the disk is full; free some space/)
        expect(readdirSync(join(disk, 'run')).filter((name) => name.includes('.tmp-'))).toEqual([])
      }
      execFileSync('mount', ['-o', `remount,${sized(8192)}`, disk])
      const { code, stderr } = await canopy(command('disk/run', '--steps', '12', '--resume')).finished
      expect(stderr).not.toMatch(/damaged|missing/)
      expect(code).toBe(0)
      expect(bytesOf('disk/run', 'adapter')).toEqual(expected.adapter)
      expect(untimed('disk/run')).toEqual(expected.lines)
    } finally {
      execFileSync('umount', [disk])
    }
  })
})

/** Whether this user may mount a small disk. */
function canMount(): boolean {
  const at = mkdtempSync(join(tmpdir(), 'canopy-mount-'))
  try {
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=64k', 'tmpfs', at], { stdio: 'ignore' })
    execFileSync('umount', [at], { stdio: 'ignore' })
    return true
  } catch {
    return false
  } finally {
    rmSync(at, { recursive: true, force: true })
  }
}
