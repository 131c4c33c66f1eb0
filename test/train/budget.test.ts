import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it, vi } from 'vitest'
import type { TokenSequence } from '../../src/encoder/index.ts'
import { InputError } from '../../src/support/errors.ts'
import type { Batch } from '../../src/train/data/instances.ts'
import { type LoopParts, trainLoop } from '../../src/train/loop.ts'
import { initialState, type TrainingState } from '../../src/train/run/checkpoints.ts'
import type { MetricsLine } from '../../src/train/run/metrics.ts'
import { resolveSettings } from '../../src/train/settings.ts'
import { chooseBudget, memoryOf } from '../../src/train/step/budget.ts'
import { isOutOfMemory, withinMemory } from '../../src/train/step/out-of-memory.ts'

// Words of ONNX Runtime (CPU and CUDA), C++, Vulkan and JavaScript.
const words = [
  'Non-zero status code returned while running Gelu node. BFCArena::AllocateRawInternal(size_t) Failed to allocate memory for requested buffer of size 1638400000',
  'Available memory of 1024 is smaller than requested bytes of 4096',
  'std::bad_alloc',
  'CUDA failure 2: out of memory ; GPU=0',
  'CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED',
  'vkAllocateMemory failed with VK_ERROR_OUT_OF_DEVICE_MEMORY',
  'Array buffer allocation failed',
]
const outOfMemory = (): Error => new Error(`ONNX Runtime failed: ${words[0]}`)

/** An engine that runs out of memory above `most` tokens. */
const failingAbove = (most: number) => {
  const tried: number[] = []
  return {
    tried,
    async work(budget: number): Promise<string> {
      tried.push(budget)
      if (budget > most) throw outOfMemory()
      return 'done'
    },
  }
}

describe('running out of memory', () => {
  it.each(words)('is recognised in "%s", also behind another error', (word) => {
    expect(isOutOfMemory(new Error(word))).toBe(true)
    expect(isOutOfMemory(new Error('a step failed', { cause: new RangeError(word) }))).toBe(true)
  })

  it('is told from other failures', () => {
    expect(isOutOfMemory(new Error('Could not find an implementation for MatMul(13)'))).toBe(false)
    expect(isOutOfMemory('out of memory')).toBe(false)
  })

  it('halves the budget until the work can be done, says so, and goes on with that', async () => {
    const state = { tokenBudget: 4096, lossScale: undefined }
    const { tried, work } = failingAbove(1100)
    const used: number[] = []
    const said: string[] = []
    const parts = {
      longest: () => 128,
      use: ({ tokenBudget }: typeof state) => used.push(tokenBudget),
      warn: (text: string) => said.push(text),
    }
    expect(await withinMemory(state, parts, () => work(state.tokenBudget))).toBe('done')
    expect(tried).toEqual([4096, 2048, 1024])
    expect(used).toEqual(tried)
    expect(state.tokenBudget).toBe(1024)
    expect(said[0]).toMatch(/budget of 4096; going on with 2048/)
    await withinMemory(state, parts, () => work(state.tokenBudget))
    expect(tried.at(-1)).toBe(1024)
  })

  it('with a single node is an error that says what to do', async () => {
    const state = { tokenBudget: 1000, lossScale: undefined }
    const { tried, work } = failingAbove(0)
    const parts = { longest: () => 300, use() {}, warn() {} }
    await expect(withinMemory(state, parts, () => work(state.tokenBudget))).rejects.toThrow(
      /no more than one node \(up to 300 tokens\).*--rank/,
    )
    expect(tried).toEqual([1000, 500, 300])
  })

  it('asks for the longest node when memory runs out: no node need be as long as the encoder takes', async () => {
    const state = { tokenBudget: 4096, lossScale: undefined }
    let longest = 0
    const { tried, work } = failingAbove(1024)
    await withinMemory(state, { longest: () => longest, use() {}, warn() {} }, () => {
      longest = 200
      return work(state.tokenBudget)
    })
    expect(tried).toEqual([4096, 2048, 1024])
  })

  it('leaves any other error to whoever called', async () => {
    const state = { tokenBudget: 1000, lossScale: undefined }
    const parts = { longest: () => 300, use() {}, warn() {} }
    const work = async () => {
      throw new Error('something else')
    }
    await expect(withinMemory(state, parts, work)).rejects.toThrow('something else')
    expect(state.tokenBudget).toBe(1000)
  })
})

describe('a run that runs out of memory', () => {
  it('does the step again with half the budget, logs that, and goes on with it after a resume', async () => {
    const settings = await resolveSettings(undefined, { tokenBudget: 1000 })
    const tensors = new Map([['w', Float32Array.of(1, 2)]])
    const state = initialState(tensors, 1000)
    const asked: [number, number][] = []
    const lines: MetricsLine[] = []
    const checkpoints: TrainingState[] = []
    const parts: LoopParts = {
      ...{ settings, totalSteps: 3, stepsPerEpoch: 3, evaluateEvery: 9, checkpointEvery: 2, longest: () => 100 },
      use() {},
      warn() {},
      async batch(step, tokenBudget) {
        asked.push([step, tokenBudget])
        return { micro: [{}], pairs: 1 } as unknown as Batch
      },
      async gradients() {
        const [step, budget] = asked.at(-1)!
        if (step === 2 && budget > 300) throw outOfMemory()
        return { loss: 0.5, right: 1, gradients: new Map([['w', Float32Array.of(step, 1)]]) }
      },
      validate: async () => undefined,
      log: async (line) => void lines.push(line),
      checkpoint: async (current) => void checkpoints.push(structuredClone(current)),
    }
    await trainLoop(state, parts)
    expect(asked).toEqual([
      [1, 1000],
      [2, 1000],
      [2, 500],
      [2, 250],
      [3, 250],
    ])
    expect(lines.map((line) => line.token_budget)).toEqual([undefined, undefined, 250, undefined])
    expect(lines.every(({ skipped }) => skipped === undefined)).toBe(true)
    const [resumed] = checkpoints
    expect(resumed).toMatchObject({ step: 2, tokenBudget: 250 })
    asked.length = 0
    await trainLoop(resumed!, parts)
    expect(asked).toEqual([[3, 250]])
    expect(resumed!.tensors).toEqual(state.tensors)

    // during validation too, before the first step and after one
    lines.length = 0
    const validated = { ...state, step: 0 }
    const most = {
      ...parts,
      evaluateEvery: 1,
      gradients: async () => ({ loss: 0, right: 0, gradients: new Map([['w', new Float32Array(2)]]) }),
    }
    await trainLoop(validated, {
      ...most,
      async validate() {
        if (validated.tokenBudget > (validated.step < 2 ? 240 : 120)) throw outOfMemory()
        return undefined
      },
    })
    expect(lines.map((line) => line.token_budget)).toEqual([125, undefined, 100, undefined])
  })
})

/** A machine of `free` bytes whose encoder takes 1 000 bytes a token and `milliseconds(tokens)`. */
function machine(free: number, milliseconds: (tokens: number) => number, refuseAbove = Number.POSITIVE_INFINITY) {
  const tried: number[] = []
  let peak = 500
  let now = 0
  const run = async (sequences: TokenSequence[]): Promise<void> => {
    const tokens = sequences.reduce((n, { ids }) => n + ids.length, 0)
    if (tried.at(-1) !== tokens) tried.push(tokens)
    if (tokens > refuseAbove) throw outOfMemory()
    peak = Math.max(peak, 500 + 1000 * tokens)
    now += milliseconds(tokens)
  }
  const memory = { used: async () => peak, available: async () => free }
  const choose = (most = 10_000, longest = 256) => chooseBudget({ run, longest, most, memory, clock: () => now })
  return { tried, choose }
}

const linear = (tokens: number): number => tokens / 400
/** A tenth slower at every doubling. */
const slowing = (tokens: number): number => (tokens / 400) * (tokens / 1024) ** 0.15

describe('choosing the budget', () => {
  it('takes the largest that fits, and does not even try what would not', async () => {
    // 80 % of 10 MB are 8 000 tokens
    const { tried, choose } = machine(10e6, linear)
    const { budget, trials } = await choose()
    expect(tried).toEqual([1024, 2048, 4096])
    expect(budget).toBe(4096)
    expect(trials.map(({ tokens, peak }) => [tokens, peak])).toEqual([
      [1024, 1024500],
      [2048, 2048500],
      [4096, 4096500],
    ])
    expect(trials[0]!.tokensPerSecond).toBeCloseTo(400_000)
  })

  it('tries as many tokens as it says, whatever the length of a node', async () => {
    const { tried, choose } = machine(1e12, linear)
    expect((await choose(3000, 700)).budget).toBe(4096)
    expect(tried).toEqual([1024, 2048, 4096])
  })

  it('stays where larger runs get slow', async () => {
    const { tried, choose } = machine(1e12, slowing)
    expect((await choose(1e6)).budget).toBe(4096)
    expect(tried).toEqual([1024, 2048, 4096, 8192])
  })

  it('stops at what memory refuses, and at what a batch can use', async () => {
    expect((await machine(1e12, linear, 3000).choose()).budget).toBe(2048)
    expect((await machine(1e12, linear).choose(3000)).budget).toBe(4096)
    expect((await machine(1e12, linear).choose(10)).budget).toBe(1024)
  })

  it('is an error where nothing fits', async () => {
    await expect(machine(1e5, linear).choose()).rejects.toThrow(/does not fit.*smaller --token-budget than 1024/)
  })

  it('does not count twice what an earlier encoder gave back', async () => {
    const before = process.resourceUsage().maxRSS * 1024
    let ballast: Buffer | undefined = Buffer.alloc(300 * 2 ** 20, 1)
    expect(process.resourceUsage().maxRSS * 1024).toBeGreaterThan(before)
    ballast = undefined
    expect(ballast).toBeUndefined()
    vi.spyOn(process.memoryUsage, 'rss').mockReturnValue(before)
    try {
      expect(await (await memoryOf('cpu')).used()).toBe(before)
    } finally {
      vi.restoreAllMocks()
    }
  })

  it.skipIf(process.platform === 'win32')('asks for the memory of the card that CUDA sees first', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'canopy-smi-'))
    const card = { 0: '1, 2', 3: '30, 40', 'GPU-5': '500, 600' }
    const cases = Object.entries(card).map(([id, numbers]) => `*"-i ${id}") echo ${numbers} ;;`)
    writeFileSync(join(folder, 'nvidia-smi'), `#!/bin/sh\ncase "$*" in\n${cases.join('\n')}\nesac\n`, { mode: 0o755 })
    vi.stubEnv('PATH', `${folder}:${process.env.PATH}`)
    try {
      for (const [visible, free] of Object.entries({ '': 2, 3: 40, '3,0': 40, 'GPU-5': 600 })) {
        vi.stubEnv('CUDA_VISIBLE_DEVICES', visible)
        expect(await (await memoryOf('cuda')).available()).toBe(free * 2 ** 20)
      }
    } finally {
      vi.unstubAllEnvs()
      rmSync(folder, { recursive: true })
    }
  })

  it('needs a device whose memory can be read', async () => {
    await expect(memoryOf('webgpu')).rejects.toThrow(InputError)
    const memory = await memoryOf('cpu')
    expect(await memory.used()).toBeGreaterThan(10e6)
    expect(await memory.available()).toBeGreaterThan(10e6)
  })

  it('is a setting: a number of at least 16, or auto', async () => {
    expect((await resolveSettings(undefined, { tokenBudget: 'auto' })).tokenBudget).toBe('auto')
    await expect(resolveSettings(undefined, { tokenBudget: 8 })).rejects.toThrow(/tokenBudget/)
    await expect(resolveSettings(undefined, { precision: 'bf16' })).rejects.toThrow(/float32 only/)
  })
})
