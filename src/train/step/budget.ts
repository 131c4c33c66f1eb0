import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { type TokenSequence, textSequence } from '../../encoder/index.ts'
import type { Device } from '../../onnx/index.ts'
import { InputError } from '../../support/errors.ts'
import { readLimits } from '../../support/limits.ts'
import { isOutOfMemory } from './out-of-memory.ts'

/** Share of the memory that is free before training which a step may take. */
const SHARE = 0.8
/** Smallest budget that is tried, in tokens; the next ones are each twice as large. */
const FIRST_TRIAL = 1024
/**
 * Speed that a larger budget may cost. What is over the budget needs a second forward pass, a third more work, and with a larger
 * budget less is over it.
 */
const SLOWER = 0.8

/** Where a run's memory is, in bytes. */
export interface MemoryProbe {
  /** What is in use; where that is known, the most that ever was since the probe was made. */
  used(): Promise<number>
  /** What is free. */
  available(): Promise<number>
}

/** One budget that was tried. */
export interface BudgetTrial {
  tokens: number
  tokensPerSecond: number
  /** Bytes in use at most, everything else of the process included. */
  peak: number
}

/**
 * Finds the largest token budget that fits and is not much slower than a smaller one: runs forward and backward over long token
 * sequences, twice as many tokens each time, until memory would not do (as the last two trials foretell it,
 * so that a system that kills instead of refusing is not tempted), until memory is refused, until runs of that size get slow, or
 * until more is of no use.
 *
 * @param run computes one step over these sequences at once
 * @param longest tokens of a sequence: those of the longest node that is known
 * @param most tokens beyond which a larger budget is of no use: those of the largest run there would be
 * @param clock milliseconds from some fixed moment on; the system's where absent
 * @throws InputError when the smallest budget does not fit
 */
export async function chooseBudget(options: {
  run(sequences: TokenSequence[]): Promise<unknown>
  longest: number
  most: number
  memory: MemoryProbe
  clock?: () => number
}): Promise<{ budget: number; trials: BudgetTrial[] }> {
  const { run, longest, most, memory, clock = () => performance.now() } = options
  const limit = (await memory.used()) + SHARE * (await memory.available())
  const first = Math.max(FIRST_TRIAL, longest)
  const trials: BudgetTrial[] = []
  for (let tokens = first; tokens < 2 * Math.max(first, most) && foretold(trials) <= limit; tokens *= 2) {
    const sequences = trialSequences(tokens, longest)
    try {
      await run(sequences)
      const started = clock()
      await run(sequences)
      const seconds = (clock() - started) / 1000
      trials.push({ tokens, tokensPerSecond: tokens / seconds, peak: await memory.used() })
    } catch (error) {
      if (!isOutOfMemory(error)) throw error
      break
    }
    if (isSlow(trials.at(-1) as BudgetTrial, trials)) break
  }
  const chosen = trials.filter((trial) => trial.peak <= limit && !isSlow(trial, trials)).at(-1)
  if (chosen === undefined)
    throw new InputError(
      `A step over ${first} tokens does not fit into the memory that is free (${gibibytes(limit)} in all). Free memory, or give a smaller --token-budget than ${first}.`,
    )
  return { budget: chosen.tokens, trials }
}

/**
 * Sequences of `tokens` tokens in all. Each begins in its own way, as its number in binary: encoders compute once what sequences begin
 * with alike.
 */
function trialSequences(tokens: number, longest: number): TokenSequence[] {
  return Array.from({ length: Math.ceil(tokens / longest) }, (_, i) => {
    const length = Math.min(longest, tokens - i * longest)
    return textSequence(Int32Array.from({ length }, (_, place) => 1 + ((i >> Math.min(place, 30)) & 1)))
  })
}

/** Peak memory of the next trial, of twice the tokens: memory grows by as much per token as it last did. */
function foretold(trials: BudgetTrial[]): number {
  const [before, last] = trials.slice(-2)
  if (before === undefined || last === undefined) return 0
  return last.peak + 2 * (last.peak - before.peak)
}

function isSlow({ tokensPerSecond }: BudgetTrial, trials: BudgetTrial[]): boolean {
  return tokensPerSecond < SLOWER * Math.max(...trials.map((trial) => trial.tokensPerSecond))
}

/**
 * The memory that a device computes in.
 *
 * @throws InputError for a device whose memory cannot be read
 */
export async function memoryOf(device: Device): Promise<MemoryProbe> {
  if (device === 'webgpu')
    throw new InputError(
      'The memory of a WebGPU device cannot be read, so --token-budget auto cannot choose: give a number of tokens.',
    )
  if (device === 'cuda') {
    await cudaMemory()
    return {
      used: async () => (await cudaMemory()).used,
      available: async () => (await cudaMemory()).free,
    }
  }
  // An encoder that was released may have left a peak that says nothing of what is in use now.
  const before = peakMemory()
  return {
    used: async () => (peakMemory() > before ? peakMemory() : process.memoryUsage.rss()),
    available: async () => (await readLimits()).memory.available,
  }
}

/** ONNX Runtime keeps what it once took, so that what is in use now is the most that was. */
async function cudaMemory(): Promise<{ used: number; free: number }> {
  // The first visible card, by number or UUID, is the one that ONNX Runtime takes.
  const device = process.env.CUDA_VISIBLE_DEVICES?.split(',')[0]?.trim() || '0'
  const asked = ['--query-gpu=memory.used,memory.free', '--format=csv,noheader,nounits', '-i', device]
  const { stdout } = await promisify(execFile)('nvidia-smi', asked).catch((error: Error) => {
    throw new InputError(
      `nvidia-smi does not tell the card's memory (${error.message.split('\n')[0]}), so --token-budget auto cannot choose: give a number of tokens.`,
    )
  })
  const [used = Number.NaN, free = Number.NaN] = stdout.split(',').map((mebibytes) => Number(mebibytes) * 2 ** 20)
  return { used, free }
}

const peakMemory = (): number => process.resourceUsage().maxRSS * 1024

const gibibytes = (bytes: number): string => `${(bytes / 2 ** 30).toFixed(1)} GiB`
