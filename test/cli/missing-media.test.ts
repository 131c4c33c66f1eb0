import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { importJsonl } from '../../src/data/index.ts'
import { canopy } from '../support/cli.ts'
import { lines } from '../support/temporary.ts'

// A picture that is not there, through the built command line and an encoder that would read it.

const encoder = join(import.meta.dirname, '../fixtures/qwen3-vl')
let folder: string
const at = (...names: string[]): string => join(folder, ...names)

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'canopy-missing-'))
  const input = at('in.jsonl')
  writeFileSync(
    input,
    lines(
      { id: 'bell', title: 'Bell', text: 'It rings at dawn. Nobody hears it at night.' },
      { id: 'photo', modality: 'image', image: 'media/photo.png' },
      {
        ...{ id: 'q1', question: 'When does it ring?', source: 's1', answers: [] },
        gold: [{ item: 'bell', quotes: ['It rings at dawn.'] }],
      },
      { id: 'q2', question: 'What is shown?', source: 's2', answers: [], gold: [{ item: 'photo', whole: true }] },
    ),
  )
  await importJsonl({ inputs: [input], split: 'dev', output: at('data') })
})
afterAll(() => rmSync(folder, { recursive: true, force: true }))

const evaluateArgs = (output: string, ...more: string[]): string[] => [
  ...['evaluate', '--encoder', encoder, '--dataset', at('data'), '--split', 'dev', '--output', at(output)],
  ...['--resamples', '10', '--threads', '1', '--no-report', ...more],
]

describe('a picture that is not there', () => {
  it('is a fault that check names, in JSON too, and goes on', async () => {
    const args = ['check', at('data'), '--encoder', encoder, '--threads', '1', '--json']
    const { code, stdout } = await canopy(args).finished
    const { encoder: counted, unreadable, faults, faultList } = JSON.parse(stdout)
    expect(code).toBe(1)
    expect({ faults, faultList }).toMatchObject({ faults: 1, faultList: [{ line: 2, missing: 'photo' }] })
    expect(counted).toMatchObject({ items: 1 })
    expect(unreadable).toEqual([
      { item: 'photo', reason: expect.stringMatching(/photo\.png: cannot read the picture: no such file/) },
    ])
  })

  it('stops an evaluation, which says what to do', async () => {
    const { code, stdout, stderr } = await canopy(evaluateArgs('stopped')).finished
    expect({ code, stdout }).toEqual({ code: 1, stdout: '' })
    expect(stderr).toMatch(
      /error: .*photo\.png: cannot read the picture: .*leave out its item \("photo"\).*--on-error skip; "canopy check/,
    )
  })

  it('is left out with --on-error skip, counted and named', async () => {
    const { code, stdout } = await canopy(evaluateArgs('skipped', '--on-error', 'skip')).finished
    expect(code).toBe(0)
    expect(stdout).toMatch(/1 items are left out of every figure.*"photo".*photo\.png/)
    const summary = readFileSync(at('skipped', 'summary.md'), 'utf8')
    expect(summary).toMatch(/gold images and videos whose file cannot be read \(left out\) \| 1 \|/)
    expect(summary).toMatch(/"photo"/)
  })
})
