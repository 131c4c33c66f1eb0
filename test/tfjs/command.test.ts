import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { RunConfig } from '../../src/train/run/folder.ts'
import type { MetricsLine } from '../../src/train/run/metrics.ts'
import { canopy, createSetup, type Setup } from '../train/command.ts'

let folder: string
let setup: Setup
beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'canopy-tfjs-'))
  setup = await createSetup(folder, 20)
})
afterAll(() => rmSync(folder, { recursive: true, force: true }))

const train = (run: string, ...more: string[]) =>
  canopy([
    'train',
    ...['--encoder', setup.encoder, '--dataset', setup.dataset, '--preferences', setup.preferences],
    ...['--output', join(folder, run), '--threads', '1', '--seed', '5', '--steps', '8', '--batch-size', '4'],
    ...['--learning-rate', '0.01', '--token-budget', '256', '--rank', '4', '--evaluate-every', '4', ...more],
  ]).finished
const config = (run: string): RunConfig => JSON.parse(readFileSync(join(folder, run, 'config.json'), 'utf8'))
const metrics = (run: string): MetricsLine[] =>
  readFileSync(join(folder, run, 'metrics.jsonl'), 'utf8')
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line) as MetricsLine)

describe('canopy train --engine tfjs', () => {
  it('gives the loss curve of ONNX Runtime', async () => {
    const runs = { onnxruntime: await train('ort'), tfjs: await train('tfjs', '--engine', 'tfjs') }
    for (const { code, stderr } of Object.values(runs)) expect(code, stderr).toBe(0)
    const [theirs, ours] = [metrics('ort'), metrics('tfjs')]
    expect(ours.map(({ step }) => step)).toEqual(theirs.map(({ step }) => step))
    theirs.forEach((line, i) => {
      if (line.loss !== undefined) expect(ours[i]!.loss! / line.loss).toBeCloseTo(1, 4)
      if (line.validation) expect(ours[i]!.validation!.loss / line.validation.loss).toBeCloseTo(1, 4)
    })
    // the adapter has moved
    const [frozen, trained] = [theirs[0]!.validation!.loss, theirs.at(-1)!.validation!.loss]
    expect(Math.abs(trained / frozen - 1)).toBeGreaterThan(0.02)
  })

  it('records the engine, its backend and version, and does not go on with another', async () => {
    expect(config('ort').engine).toEqual({ name: 'onnxruntime' })
    expect(config('tfjs').engine).toMatchObject({ name: 'tfjs', version: expect.stringMatching(/^4\./) })
    const { code, stderr } = await train('tfjs', '--resume')
    expect(code).toBe(1)
    expect(stderr).toMatch(/engine.*tfjs 4/)
  })

  it('refuses what it does not compute', async () => {
    const half = await train('half', '--engine', 'tfjs', '--device', 'cuda', '--precision', 'bf16')
    expect(half.code).toBe(1)
    expect(half.stderr).toMatch(/The engine tfjs computes in fp32 only/)
    const device = await train('device', '--engine', 'tfjs', '--device', 'cuda')
    expect(device.stderr).toMatch(/--device cuda is for --engine onnxruntime.*tfjs-node-gpu/)
    const backend = await train('backend', '--tfjs-backend', 'cpu')
    expect(backend.stderr).toMatch(/belongs to the engine tfjs; add --engine tfjs/)
  })
})
