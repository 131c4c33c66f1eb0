import { InputError } from '../../support/errors.ts'
import type { LoopParts } from '../loop.ts'
import type { TrainingState } from '../run/checkpoints.ts'

const outOfMemory = [
  /failed to allocate memory/i,
  /bad_alloc/,
  /out of memory/i,
  /(CUDA|CUDNN|CUBLAS)\w*_(OUT_OF_MEMORY|ALLOC_FAILED)/,
  /cudaErrorMemoryAllocation/,
  /available memory of \d+ is smaller than requested/i,
  /array buffer allocation failed/i,
  /VK_ERROR_OUT_OF_(HOST|DEVICE)_MEMORY/,
]

/** Whether an error, or one behind it, says that memory could not be had: of ONNX Runtime, CUDA, Vulkan or JavaScript. */
export function isOutOfMemory(error: unknown): boolean {
  if (!(error instanceof Error)) return false
  return outOfMemory.some((pattern) => pattern.test(error.message)) || isOutOfMemory(error.cause)
}

/**
 * The budget to go on with when memory ran out: half of it, but never less than the longest sequence.
 *
 * @throws InputError when it already was no more than that
 */
function smallerBudget(budget: number, longest: number, cause: unknown): number {
  if (budget <= longest)
    throw new InputError(
      `Memory ran out although no more than one node (up to ${longest} tokens) was computed at once. Free memory, ` +
        "choose a smaller --rank or fewer --targets, or cut long nodes: set a lower maximum length in the encoder's tokenizer files.",
      {},
      cause,
    )
  return Math.max(longest, Math.floor(budget / 2))
}

/** Does `work`; whenever memory runs out, halves the budget in `state` and does it again. */
export async function withinMemory<T>(
  state: Pick<TrainingState, 'tokenBudget' | 'lossScale'>,
  { use, longest, warn }: Pick<LoopParts, 'use' | 'longest' | 'warn'>,
  work: () => Promise<T>,
): Promise<T> {
  for (;;) {
    use(state)
    try {
      return await work()
    } catch (error) {
      if (!isOutOfMemory(error)) throw error
      const before = state.tokenBudget
      state.tokenBudget = smallerBudget(before, longest(), error)
      warn(`Memory ran out with a token budget of ${before}; going on with ${state.tokenBudget}.`)
    }
  }
}
