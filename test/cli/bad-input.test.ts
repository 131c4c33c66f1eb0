import { spawnSync } from 'node:child_process'
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  truncateSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { createRandomBert } from '../../src/encoder/bert/random.ts'
import {
  CANOPY_FILE,
  canopySettings,
  defaultTargets,
  initialLora,
  linearModules,
  readEncoder,
  selectTargets,
  writeAdapter,
} from '../../src/encoder/index.ts'
import { canopy, type Finished } from '../support/cli.ts'
import { lines, snapshot } from '../support/temporary.ts'

// What the built command line says of bad input, and that it leaves nothing half-written.

let folder: string
const at = (...names: string[]): string => join(folder, ...names)

/** Questions and items, one answer a passage. */
function records(count: number): string {
  return lines(
    ...Array.from({ length: count }, (_, i) => {
      const sentences = [`Bell ${i} rings at dawn.`, `Bell ${i} was cast in iron.`, `Nobody hears bell ${i} at night.`]
      const gold = [{ item: `i${i}`, quotes: [sentences[i % 3]] }]
      return [
        { id: `i${i}`, title: `Bell ${i}`, text: sentences.join(' ') },
        { id: `q${i}`, question: `What of bell ${i}?`, answers: [], source: `s${i}`, gold },
      ]
    }).flat(),
  )
}

async function makeAdapter(path: string, encoder: string): Promise<void> {
  const profile = await readEncoder(encoder)
  const modules = selectTargets(linearModules(profile), defaultTargets(profile))
  const targets = modules.map((module) => ({ ...module, rank: 2, alpha: 4 }))
  const adapter = { targets, tensors: initialLora(targets, '1'), baseFingerprint: profile.fingerprint }
  await writeAdapter(path, adapter, profile)
  const settings = canopySettings(profile, profile, { title: true, tableFormat: 'markdown', branching: 2 })
  writeFileSync(join(path, CANOPY_FILE), JSON.stringify(settings))
}

async function succeed(args: string[]): Promise<void> {
  expect(await canopy(args).finished, args.join(' ')).toMatchObject({ code: 0 })
}

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'canopy-bad-input-'))
  const bert = { vocabularyFrom: [records(3)], hidden: 16, layers: 1, heads: 2, maxLength: 48 }
  await createRandomBert(at('bert'), { seed: 1, ...bert })
  await createRandomBert(at('other'), { seed: 2, ...bert })
  await createRandomBert(at('wide'), { seed: 3, ...bert, hidden: 32 })
  await makeAdapter(at('adapter'), at('bert'))
  writeFileSync(at('small.jsonl'), records(12))
  writeFileSync(at('passage.txt'), 'Bell 1 rings at dawn. Nobody hears it at night.')
  await succeed(['import', 'jsonl', '--input', at('small.jsonl'), '--split', 'train', '--output', at('small')])
  await succeed(['preferences', '--dataset', at('small'), '--split', 'train', '--output', at('pairs.jsonl')])
  const bundle = ['--adapter', at('adapter'), '--bundle', '--output', at('export')]
  await succeed(['export', '--encoder', at('bert'), ...bundle, '--threads', '1'])
})
afterAll(() => rmSync(folder, { recursive: true, force: true }))

afterEach(() => rmSync(at('new'), { recursive: true, force: true }))

/** Neither a file nor a folder with anything in it. */
function expectNothing(): void {
  if (existsSync(at('new'))) expect(readdirSync(at('new'))).toEqual([])
}

/** A copy of a folder in which something is spoiled. */
function spoiled(name: string, from: string, spoil: (copy: string) => void): string {
  const copy = at(name)
  cpSync(at(from), copy, { recursive: true })
  spoil(copy)
  return copy
}

function edit(file: string, change: (json: Record<string, unknown>) => unknown): void {
  writeFileSync(file, JSON.stringify(change(JSON.parse(readFileSync(file, 'utf8')))))
}

const trainArgs = (encoder: string): string[] => [
  ...['train', '--encoder', encoder, '--dataset', at('small'), '--preferences', at('pairs.jsonl')],
  ...['--steps', '1', '--batch-size', '2', '--rank', '2', '--threads', '1', '--output', at('new')],
]
const evaluateArgs = (...more: string[]): string[] => evaluateOn('small', ...more)
const evaluateOn = (dataset: string, ...more: string[]): string[] => [
  ...['evaluate', '--encoder', at('bert'), '--dataset', at(dataset), '--split', 'train', '--output', at('new')],
  ...['--resamples', '20', '--threads', '1', ...more],
]
const exportArgs = (encoder: string, ...more: string[]): string[] => [
  ...['export', '--encoder', encoder, '--output', at('new'), '--threads', '1', ...more],
]
const refineArgs = (encoder: string, ...more: string[]): string[] => [
  ...['refine', '--encoder', encoder, '--query', 'What of bell 1?', '--input', at('passage.txt'), '--threads', '1'],
  ...more,
]

/** An error for people: on standard error alone, one sentence or two, no stack trace. */
function expectError({ code, stdout, stderr }: Finished, message: RegExp): void {
  expect({ code, stdout, stderr }).toEqual({ code: 1, stdout: '', stderr: expect.stringMatching(message) })
  expect(stderr).toMatch(/^error: /m)
  expect(stderr).not.toMatch(/\n\s+at |went wrong/)
}

describe('a model', () => {
  const cases: [string, () => string[], RegExp][] = [
    [
      'without weights',
      () => trainArgs(spoiled('weightless', 'bert', (copy) => rmSync(join(copy, 'model.safetensors')))),
      /No weights in .*weightless: looked for model\.safetensors.*Download the whole model repository/,
    ],
    [
      'whose weights are cut off',
      () => trainArgs(spoiled('cut', 'bert', (copy) => truncateSync(join(copy, 'model.safetensors'), 9000))),
      /cut\/model\.safetensors: the file is cut short.*download it again/,
    ],
    [
      'whose weights are another file',
      () =>
        trainArgs(spoiled('page', 'bert', (copy) => writeFileSync(join(copy, 'model.safetensors'), '<html></html>'))),
      /page\/model\.safetensors: not a safetensors file.*download it again/,
    ],
    [
      'that is a Git LFS pointer',
      () =>
        trainArgs(
          spoiled('pointer', 'bert', (copy) =>
            writeFileSync(
              join(copy, 'model.safetensors'),
              'version https://git-lfs.github.com/spec/v1\noid sha256:0\n',
            ),
          ),
        ),
      /pointer\/model\.safetensors: not a safetensors file.*Git LFS pointer/,
    ],
    [
      'with the tokenizer of another one',
      () =>
        trainArgs(
          spoiled('misfit', 'bert', (copy) => edit(join(copy, 'config.json'), (c) => ({ ...c, vocab_size: 20 }))),
        ),
      /misfit\/tokenizer\.json: .*does not fit the model.*tokenizer files of the same model/,
    ],
    [
      'without a tokenizer',
      () => trainArgs(spoiled('mute', 'bert', (copy) => rmSync(join(copy, 'tokenizer.json')))),
      /No tokenizer\.json in .*mute/,
    ],
    ['that is not there', () => trainArgs(at('nowhere')), /nowhere/],
    ['that is a file', () => trainArgs(at('passage.txt')), /passage\.txt is a file; an encoder is the folder/],
    [
      'exported and damaged',
      () => refineArgs(spoiled('torn', 'export', (copy) => truncateSync(join(copy, 'onnx', 'model.onnx'), 5000))),
      /torn\/onnx\/model\.onnx: /,
    ],
  ]
  it.each(cases)('%s is refused by its files, and nothing is written', async (_, args, message) => {
    expectError(await canopy(args()).finished, message)
    expectNothing()
  })
})

describe('an adapter', () => {
  const cases: [string, () => string[], RegExp][] = [
    [
      'for another model of the same size',
      () => evaluateArgs('--encoder', at('other'), '--adapter', at('adapter')),
      /adapter: The adapter was trained over the encoder "bert".*not over "other".*Give the encoder it was trained over/,
    ],
    [
      'for a model of another size, from another program',
      () => {
        const bare = (copy: string): void => {
          for (const name of ['canopy.json', 'canopy_adapter.json']) rmSync(join(copy, name))
        }
        return exportArgs(at('wide'), '--adapter', spoiled('bare', 'adapter', bare))
      },
      /bare\/adapter_model\.safetensors: 6 of 6 modules .* do not fit .*lora_A is \[2, 16\] instead of \[2, 32\]/,
    ],
    ['over an ONNX folder', () => refineArgs(at('export'), '--adapter', at('adapter')), /adapter/],
    [
      'with a canopy.json that is cut off',
      () =>
        evaluateArgs(
          '--adapter',
          spoiled('cut-settings', 'adapter', (copy) => truncateSync(join(copy, CANOPY_FILE), 40)),
        ),
      /cut-settings\/canopy\.json: The file is not valid JSON/,
    ],
    ['that is not there', () => exportArgs(at('bert'), '--adapter', at('nowhere')), /nowhere\/adapter_config\.json: /],
  ]
  it.each(cases)('%s is refused, and nothing is written', async (_, args, message) => {
    expectError(await canopy(args()).finished, message)
    expectNothing()
  })
})

describe('an exported encoder', () => {
  const settings = (name: string, change: (json: Record<string, unknown>) => unknown): string =>
    spoiled(name, 'export', (copy) => edit(join(copy, CANOPY_FILE), change))
  const cases: [string, () => string[], RegExp][] = [
    [
      'with another query encoder',
      () => refineArgs(at('export'), '--query-encoder', at('other')),
      /export\/canopy\.json: The node encoder was trained with the query encoder bert .*the one given is other .*--query-encoder/,
    ],
    [
      'whose own query encoder was changed',
      () =>
        refineArgs(
          spoiled('swapped', 'export', (copy) =>
            cpSync(at('other', 'model.safetensors'), join(copy, 'query-encoder', 'model.safetensors')),
          ),
        ),
      /swapped\/canopy\.json: .*trained with the query encoder bert/,
    ],
    [
      'whose canopy.json is not JSON',
      () => refineArgs(spoiled('no-json', 'export', (copy) => writeFileSync(join(copy, CANOPY_FILE), '{"schema":'))),
      /no-json\/canopy\.json: The file is not valid JSON/,
    ],
    [
      'whose canopy.json is a list',
      () => refineArgs(spoiled('list', 'export', (copy) => writeFileSync(join(copy, CANOPY_FILE), '[]'))),
      /list\/canopy\.json: /,
    ],
    [
      'whose canopy.json is of another version',
      () => refineArgs(settings('later', (json) => ({ ...json, schema: 'canopy-encoder/9' }))),
      /later\/canopy\.json: "schema": .*canopy-encoder\/1/,
    ],
    [
      'whose canopy.json lacks a setting',
      () => refineArgs(settings('partial', ({ branching: _, ...json }) => json)),
      /partial\/canopy\.json: "branching": /,
    ],
  ]
  it.each(cases)('%s is refused', async (_, args, message) => {
    expectError(await canopy(args()).finished, message)
  })
})

describe('what is to be refined', () => {
  const input = (name: string, content: string | Buffer): string[] => {
    writeFileSync(at(name), content)
    return refineArgs(at('export'), '--input', at(name))
  }
  const cases: [string, () => string[], RegExp][] = [
    ['an empty question', () => refineArgs(at('export'), '--query', ''), /The question is empty; give it with --query/],
    [
      'a blank question',
      () => refineArgs(at('export'), '--query', ' \n'),
      /The question is empty; give it with --query/,
    ],
    ['a missing file', () => refineArgs(at('export'), '--input', at('no.txt')), /no\.txt: .*no such file/],
    ['a folder', () => refineArgs(at('export'), '--input', at('small')), /small: .*folder/],
    ['an empty file', () => input('empty.txt', ''), /empty\.txt: There is no text to refine/],
    ['a blank file', () => input('blank.txt', '\uFEFF \r\n'), /blank\.txt: There is no text to refine/],
    ['an empty list', () => input('list.json', '[]'), /list\.json: There is no item to refine/],
    ['broken JSON', () => input('broken.json', '{"text": "One."'), /broken\.json: The file is not valid JSON/],
    ['a broken line', () => input('broken.jsonl', '{"text":"One."}\n{"text":\n'), /broken\.jsonl:2: not valid JSON/],
    ['an item without text', () => input('no-text.json', '{"title":"T"}'), /no-text\.json: Item 1, "text": expected/],
    ['an item that is null', () => input('null.json', '["One.", null]'), /null\.json: Item 2: expected/],
    ['a title that is no text', () => input('title.json', '{"title":1,"text":"One."}'), /title\.json: Item 1, "title"/],
    [
      'an image for an encoder of text',
      () => input('image.json', '{"modality":"image","image":"a.png"}'),
      /Item 1 is an image, and the encoder .* reads only text/,
    ],
    [
      'a modality that there is not',
      () => input('audio.json', '{"modality":"audio","audio":"a.wav"}'),
      /audio\.json: Item 1 is of the modality "audio"; there are text, table, image, video/,
    ],
    [
      'a video with a time that is none',
      () => input('video.json', '{"video":"a.mp4","start":"0:30"}'),
      /video\.json: Item 1, "start": expected .*"start"\?: seconds.* \(expected number, received string\)/,
    ],
    [
      'a URL',
      () => input('url.json', '{"image":"https://x.test/a.png"}'),
      /"https:\/\/x\.test\/a\.png" is a URL, and URLs are not read/,
    ],
    ['a table without rows', () => input('table.json', '{"header":["A"],"rows":[]}'), /table\.json: Item 1, "rows"/],
    [
      'a cell that is no text',
      () => input('cell.json', '{"rows":[["a",[1]]]}'),
      /cell\.json: Item 1, "rows\.0\.1": expected .* \(expected string, received array\)/,
    ],
    [
      'sentences that are none',
      () => input('sentences.json', '{"text":"One.","sentences":[[0]]}'),
      /sentences\.json: Item 1, "sentences/,
    ],
    [
      'sentences outside the text',
      () => input('outside.json', '{"id":"x","text":"One.","sentences":[[0,9]]}'),
      /Sentence 0 \[0, 9\) of item "x" is not a range/,
    ],
    ['an item of blanks', () => input('blanks.json', '[{"text":"One."},{"text":" "}]'), /Item 2 has no text/],
  ]
  it.each(cases)('%s is an error that says so', async (_, args, message) => {
    expectError(await canopy(args()).finished, message)
  })

  it('may be asked for by a question of any length', async () => {
    const question = 'What of bell 1? '.repeat(5000)
    const { code, stdout } = await canopy(refineArgs(at('export'), '--query', question)).finished
    expect(code).toBe(0)
    expect(stdout).toMatch(/^\[0, 2\)/)
  })

  it('may hold NUL, line ends of every kind and no end', async () => {
    const text = `Bell\0 1 rings.\r\nNobody hears it.\u2028${'bell '.repeat(3000)}`
    writeFileSync(at('odd.txt'), text)
    const { code, stdout } = await canopy(refineArgs(at('export'), '--input', at('odd.txt'), '--json')).finished
    expect(code).toBe(0)
    const [refined] = JSON.parse(stdout)
    for (const { start, end, text: kept } of refined.kept) expect(kept).toBe(text.slice(start, end))
  })
})

describe('files that are not there', () => {
  it.each<[string, () => string[], RegExp]>([
    [
      'import',
      () => ['import', 'jsonl', '--input', at('no.jsonl'), '--split', 'train', '--output', at('new')],
      /no\.jsonl: .*no such file/i,
    ],
    ['check', () => ['check', at('nowhere')], /nowhere/],
    [
      'preferences',
      () => ['preferences', '--dataset', at('nowhere'), '--split', 'train', '--output', at('new')],
      /nowhere\/dataset\.json: .*canopy import/,
    ],
    ['train', () => [...trainArgs(at('bert')), '--preferences', at('no.jsonl')], /no\.jsonl: .*no such file/],
    ['train --config', () => [...trainArgs(at('bert')), '--config', at('no.yaml')], /no\.yaml: .*no such file/i],
    ['evaluate', () => evaluateArgs('--split', 'test'), /no split "test"; it has "train"/],
  ])('are named by %s, and nothing is written', async (_, args, message) => {
    const { code, stderr, stdout, signal } = await canopy(args()).finished
    expectError({ code, stderr, signal, stdout: '' }, /./)
    expect(stderr + stdout).toMatch(message)
    expectNothing()
  })
})

const limited = process.platform !== 'win32'
describe.skipIf(!limited)('a file that may not be written whole (the limit of the shell)', () => {
  // 4 KiB or 8 KiB, as the shell counts
  const shell = 'ulimit -f 8; exec "$@"'
  it.each<[string, () => string[]]>([
    ['import', () => ['import', 'jsonl', '--input', at('many.jsonl'), '--split', 'train', '--output', at('out/new')]],
    ['preferences', () => ['preferences', '--dataset', at('many'), '--split', 'train', '--output', at('out/new')]],
    ['train', () => [...trainArgs(at('wide')), '--rank', '16', '--output', at('out/new')]],
    ['export', () => [...exportArgs(at('bert')), '--output', at('out/new')]],
    ['evaluate', () => [...evaluateArgs(), '--output', at('out/new')]],
  ])('is named by %s, and leaves nothing half-written', async (verb, args) => {
    mkdirSync(at('out'), { recursive: true })
    if (!existsSync(at('many'))) {
      writeFileSync(at('many.jsonl'), records(200))
      await succeed(['import', 'jsonl', '--input', at('many.jsonl'), '--split', 'train', '--output', at('many')])
    }
    const { stdout: _, ...rest } = await canopy(args(), { shell }).finished
    expectError({ ...rest, stdout: '' }, /out\/.*allows no file that large \(EFBIG\)/)
    // a run keeps what it has: its configuration and steps, for --resume
    if (verb === 'train') expect(existsSync(at('out/new/adapter'))).toBe(false)
    else expect(readdirSync(at('out'))).toEqual([])
    rmSync(at('out'), { recursive: true })
  })

  it.skipIf(!existsSync('/dev/full'))('standard output on a full disk is an error too', async () => {
    const finished = await canopy(refineArgs(at('export'), '--json'), { shell: 'exec "$@" > /dev/full' }).finished
    expectError(finished, /standard output: cannot write the result: the disk is full/)
  })
})

const small = (size: string, command: string): string =>
  `exec unshare -rm sh -c 'mount -t tmpfs -o size=${size} tmpfs "$1" && shift && ${command}' sh "$DISK" "$@"`
const mountable = spawnSync('unshare', ['-rm', 'sh', '-c', 'mount -t tmpfs -o size=16k tmpfs /mnt']).status === 0
describe.skipIf(!mountable)('a full disk (skipped where no file system can be mounted)', () => {
  it.each<[string, string, (disk: string) => string[]]>([
    [
      'import',
      '16k',
      (disk) => ['import', 'jsonl', '--input', at('many.jsonl'), '--split', 'train', '--output', join(disk, 'new')],
    ],
    [
      'preferences',
      '16k',
      (disk) => ['preferences', '--dataset', at('many'), '--split', 'train', '--output', join(disk, 'new')],
    ],
    ['export', '32k', (disk) => [...exportArgs(at('bert')), '--output', join(disk, 'new')]],
    ['evaluate', '8k', (disk) => [...evaluateArgs(), '--output', join(disk, 'new')]],
    ['train', '16k', (disk) => [...trainArgs(at('wide')), '--rank', '16', '--output', join(disk, 'new')]],
  ])('is named by %s, and nothing half-written stays on it', async (verb, size, args) => {
    const disk = at('disk')
    mkdirSync(disk, { recursive: true })
    const list = '"$@"; status=$?; echo "left: $(find . -mindepth 1 | sort | tr "\\n" " ")"; exit $status'
    const shell = `cd ${disk} && DISK=${disk} && ${small(size, `cd "${disk}" && ${list.replaceAll("'", "'\\''")}`)}`
    const { stdout, ...rest } = await canopy(args(disk), { shell }).finished
    expectError({ ...rest, stdout: '' }, /disk\/.*the disk is full; free some space and run the command again/)
    const left = /left: (.*)/.exec(stdout)?.[1]?.trim()
    if (verb === 'train') expect(left).not.toMatch(/adapter/)
    else expect(left).toBe('')
  })
})

describe('Ctrl-C', () => {
  beforeAll(async () => {
    writeFileSync(at('large.jsonl'), records(6000))
    await succeed(['import', 'jsonl', '--input', at('large.jsonl'), '--split', 'train', '--output', at('large')])
  })

  it.each<[string, () => string[]]>([
    ['import', () => ['import', 'jsonl', '--input', at('large.jsonl'), '--split', 'train', '--output', at('ctrl/new')]],
    ['preferences', () => ['preferences', '--dataset', at('large'), '--split', 'train', '--output', at('ctrl/new')]],
    ['evaluate', () => [...evaluateOn('large'), '--output', at('ctrl/new')]],
  ])('in the middle of %s ends it with status 130 and leaves nothing', async (_, args) => {
    mkdirSync(at('ctrl'), { recursive: true })
    const { process: child, finished } = canopy(args())
    // it has begun to write, beside the final name
    while (child.exitCode === null && readdirSync(at('ctrl')).length === 0) await sleep(1)
    child.kill('SIGINT')
    const { code, stdout, stderr } = await finished
    expect({ code, stdout }).toEqual({ code: 130, stdout: '' })
    expect(stderr).toMatch(/^interrupted\n$/m)
    expect(readdirSync(at('ctrl'))).toEqual([])
  })

  it('in the training of a quickstart ends all of it', async () => {
    const { process: child, finished } = canopy(['quickstart', '--encoder', at('bert'), '--output', at('quick')])
    const log = at('quick/run/metrics.jsonl')
    while (child.exitCode === null && !(existsSync(log) && readFileSync(log, 'utf8').includes('"step":1,')))
      await sleep(5)
    child.kill('SIGINT')
    const { code, stdout, stderr } = await finished
    expect(code).toBe(130)
    expect(stderr).toMatch(/SIGINT: finishing the step.*Stopped after step/s)
    expect(stderr).not.toMatch(/error:/)
    expect(stdout).not.toMatch(/canopy evaluate/)
    expect(readdirSync(at('quick')).sort()).toEqual(['preferences.jsonl', 'quickstart.txt', 'run'])
  })

  it('leaves the old output as it was', async () => {
    await succeed(['preferences', '--dataset', at('small'), '--split', 'train', '--output', at('kept/new')])
    const before = await snapshot(at('kept'))
    const args = ['preferences', '--dataset', at('large'), '--split', 'train', '--output', at('kept/new')]
    const { process: child, finished } = canopy(args)
    while (child.exitCode === null && readdirSync(at('kept')).length === 1) await sleep(1)
    child.kill('SIGINT')
    expect((await finished).code).toBe(130)
    expect(await snapshot(at('kept'))).toEqual(before)
  })
})
