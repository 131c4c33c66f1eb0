/** Signals that end work early and cleanly, and the exit status that says so. */
export const STOP_STATUS = { SIGINT: 130, SIGTERM: 143 } as const
export type StopSignal = keyof typeof STOP_STATUS

/** Sooner than that, a second signal is the first one again: npm and npx pass on what the terminal sends to all of them. */
const SAME_SIGNAL_MS = 500

/**
 * Runs work that Ctrl-C (or SIGTERM) ends early and cleanly: the first signal aborts `signal`, a later one ends the process at
 * once. What the work throws for it is an AbortError.
 *
 * @param onStop told the first signal
 */
export async function interruptible<T>(
  work: (signal: AbortSignal) => Promise<T>,
  onStop: (name: StopSignal) => void = () => {},
): Promise<T> {
  const controller = new AbortController()
  let first = 0
  const onSignal = (name: StopSignal): void => {
    if (!controller.signal.aborted) {
      first = performance.now()
      onStop(name)
      controller.abort()
    } else if (performance.now() - first > SAME_SIGNAL_MS) process.exit(STOP_STATUS[name])
  }
  process.on('SIGINT', onSignal)
  process.on('SIGTERM', onSignal)
  try {
    return await work(controller.signal)
  } finally {
    process.off('SIGINT', onSignal)
    process.off('SIGTERM', onSignal)
  }
}
