import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { Evaluation } from '../../src/eval/index.ts'
import { hasFfmpeg } from '../media/ffmpeg-present.ts'
import { canopy, type Finished } from '../support/cli.ts'
import { mixedRecords, writeMedia } from '../support/mixed-media.ts'

// Texts, tables, images and videos through the built command line, with a Qwen3-VL that has learned nothing.

const encoder = join(import.meta.dirname, '../fixtures/qwen3-vl')
let folder: string
const at = (...names: string[]): string => join(folder, ...names)

async function run(args: string[]): Promise<Finished> {
  const finished = await canopy(args).finished
  expect(finished, `${args.join(' ')}\n${finished.stderr}`).toMatchObject({ code: 0 })
  return finished
}

const trainingOf = (output: string, ...more: string[]): string[] => [
  ...['train', '--encoder', encoder, '--dataset', at('data'), '--preferences', at('train.jsonl')],
  ...['--output', at(output), '--steps', '4', '--batch-size', '4', '--evaluate-every', '2', '--rank', '4'],
  ...['--validation-share', '0.25', '--token-budget', '2048', '--threads', '1', '--learning-rate', '0.01'],
  ...['--query-instruction', 'Find what answers this.', '--dimensions', '32', ...more],
]

interface Line {
  step: number
  loss?: number
  tokens?: number
  computed_tokens?: number
}
const metricsOf = (output: string): Line[] =>
  readFileSync(at(output, 'metrics.jsonl'), 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as Line)
const weightsOf = (output: string): Buffer => readFileSync(at(output, 'adapter', 'adapter_model.safetensors'))

// a dozen processes: on a machine that does other things, too, each may take a while
describe.skipIf(!hasFfmpeg)('items of every modality', { timeout: 300_000 }, () => {
  beforeAll(async () => {
    folder = mkdtempSync(join(tmpdir(), 'canopy-mixed-'))
    for (const split of ['train', 'dev']) {
      writeFileSync(at(`${split}.in.jsonl`), mixedRecords(split))
      await run(['import', 'jsonl', '--input', at(`${split}.in.jsonl`), '--split', split, '--output', at('data')])
    }
    await writeMedia(at('data', 'media'))
    await run(['preferences', '--dataset', at('data'), '--split', 'train', '--output', at('train.jsonl')])
  }, 300_000)
  afterAll(() => rmSync(folder, { recursive: true, force: true }))

  it('are counted in tokens', async () => {
    const { stdout } = await run(['check', at('data'), '--encoder', encoder, '--cache', at('cache'), '--json'])
    const { gold, encoder: counted } = JSON.parse(stdout)
    expect(counted).toMatchObject({ maxLength: expect.any(Number), items: 20, truncated: 0 })
    for (const row of gold)
      expect(row).toMatchObject({ instances: { text: 4, table: 2, image: 2, video: 2 }, notText: 0, unreadable: 0 })
    expect(gold[0].pairs.total).toBeGreaterThan(0)
  })

  it('are trained on, with visual features computed before the first step and what nodes share computed once', async () => {
    const { stdout } = await run(trainingOf('run', '--json'))
    const { instances, work } = JSON.parse(stdout)
    expect(instances).toMatchObject({ leftOut: 0 })
    expect(instances.train + instances.validation).toBe(8)
    expect(work.computedTokens).toBeLessThan(work.tokens)
    expect(readdirSync(at('run', 'visual-features')).length).toBeGreaterThan(0)
    const config = JSON.parse(readFileSync(at('run', 'config.json'), 'utf8'))
    expect(config.settings).toMatchObject({
      ...{ dimensions: 32, sharePrefixes: true },
      instructions: { query: 'Find what answers this.', node: null },
    })
    expect(config.fingerprint).toMatchObject({ 'setting dimensions': '32', 'setting sharePrefixes': 'true' })
    const canopyFile = JSON.parse(readFileSync(at('run', 'adapter', 'canopy.json'), 'utf8'))
    expect(canopyFile).toMatchObject({ dimensions: 32, prompts: { query: 'Find what answers this.' } })
  })

  it('have the same losses whether or not nodes share what they begin with', async () => {
    await run(trainingOf('alone', '--no-share-prefixes', '--cache', at('cache')))
    const [shared, alone] = [metricsOf('run'), metricsOf('alone')]
    expect(alone.length).toBe(shared.length)
    shared.forEach(({ loss, tokens, computed_tokens }, i) => {
      if (loss === undefined) return
      expect(Math.abs(loss - alone[i]!.loss!)).toBeLessThan(1e-5)
      expect(tokens).toBe(alone[i]!.tokens)
      expect(computed_tokens).toBeLessThan(tokens!)
      expect(alone[i]).not.toHaveProperty('computed_tokens')
    })
    // features that another verb kept are taken from there
    expect(existsSync(at('alone', 'visual-features'))).toBe(false)
  })

  it('give the same bytes when the process is killed while it computes features or trains, and resumed', async () => {
    const args = trainingOf('killed', '--checkpoint-every', '1', '--resume')
    const until = async (reached: () => boolean): Promise<void> => {
      const { process, finished } = canopy(args)
      while (!reached() && process.exitCode === null) await sleep(5)
      process.kill('SIGKILL')
      expect((await finished).signal).toBe('SIGKILL')
    }
    const features = at('killed', 'visual-features')
    await until(() => existsSync(features) && readdirSync(features, { recursive: true }).length > 4)
    await until(() => existsSync(at('killed', 'checkpoints', 'step-00000001')))
    await run(args)
    expect(weightsOf('killed').equals(weightsOf('run'))).toBe(true)
    expect(metricsOf('killed').map(({ loss }) => loss)).toEqual(metricsOf('run').map(({ loss }) => loss))
  })

  it('are evaluated, images without a decision, and shown in the report', async () => {
    const args = ['evaluate', '--encoder', encoder, '--adapter', at('run', 'adapter'), '--dataset', at('data')]
    await run([
      ...[...args, '--split', 'dev', '--output', at('eval'), '--resamples', '50', '--threads', '1'],
      ...['--cache', at('cache')],
    ])
    const { evaluation } = JSON.parse(readFileSync(at('eval', 'metrics.json'), 'utf8')) as { evaluation: Evaluation }
    const [counts] = Object.values(evaluation.counts)
    expect(counts).toMatchObject({ goldItems: 10, oneLeafItems: 2, goldItemsNotText: 0, goldItemsUnreadable: 0 })
    const decided = readFileSync(at('eval', 'decisions.jsonl'), 'utf8')
    expect(decided).toContain('"dev-video-0"')
    expect(decided).not.toContain('"dev-image-0"')
    expect(readFileSync(at('eval', 'report.html'), 'utf8')).toContain('dev-video-0')
  })

  it('are refined by the exported encoder, from paths relative to the file that names them', async () => {
    const trained = ['--encoder', encoder, '--adapter', at('run', 'adapter')]
    await run(['export', ...trained, '--bundle', '--output', at('export'), '--threads', '1'])
    const items = [
      { id: 'clip', title: 'Clip', video: 'media/clip-0.mp4', start: 0, end: 120 },
      { id: 'square', image: 'media/square-1.png' },
      { id: 'house', title: 'House', text: 'It has a door. It has no roof.' },
    ]
    writeFileSync(at('data', 'items.json'), JSON.stringify(items))
    const refine = async (from: string[]): Promise<{ id: string; modality: string; nodes: { score: number }[] }[]> => {
      const asked = ['refine', ...from, '--query', 'Where is the door?', '--input', at('data', 'items.json'), '--json']
      return JSON.parse((await run(asked)).stdout)
    }
    const [exported, own] = [await refine(['--encoder', at('export')]), await refine(trained)]
    expect(exported.map(({ id, modality }) => [id, modality])).toEqual([
      ['clip', 'video'],
      ['square', 'image'],
      ['house', 'text'],
    ])
    exported.forEach(({ nodes }, i) => {
      expect(nodes.length).toBe(own[i]!.nodes.length)
      nodes.forEach(({ score }, n) => {
        expect(score).toBeCloseTo(own[i]!.nodes[n]!.score, 4)
      })
    })
  })
})
