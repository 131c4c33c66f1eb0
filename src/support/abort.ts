/** Who listens to a signal. */
const listening = new WeakMap<AbortSignal, Set<() => void>>()

/**
 * Calls `listener` when a signal is aborted, at once where it is. However many listen to one signal, it has one listener: from
 * eleven on Node warns of a leak. `AbortSignal.any` will not do for signals that live long: Node 20 and 22 keep what it returns.
 *
 * @returns a function that ends it
 */
export function onAborted(signal: AbortSignal, listener: () => void): () => void {
  if (signal.aborted) {
    listener()
    return () => {}
  }
  const known = listening.get(signal)
  const listeners = known ?? new Set()
  const own = (): void => listener()
  listeners.add(own)
  if (known === undefined) {
    listening.set(signal, listeners)
    signal.addEventListener('abort', tell, { once: true })
  }
  return () => {
    listeners.delete(own)
    if (listeners.size > 0 || listening.get(signal) !== listeners) return
    listening.delete(signal)
    signal.removeEventListener('abort', tell)
  }
}

function tell(this: AbortSignal): void {
  const listeners = [...(listening.get(this) ?? [])]
  listening.delete(this)
  for (const listener of listeners) listener()
}
