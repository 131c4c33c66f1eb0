/** What a long task tells while it runs. `total` is absent where it is not known beforehand. */
export type Progress = (event: { phase: string; done: number; total?: number; note?: string }) => void

/** Seconds in words. */
export function duration(seconds: number): string {
  const s = Math.round(seconds)
  if (s < 60) return `${s} s`
  const minutes = Math.floor(s / 60)
  return minutes < 60 ? `${minutes} min ${s % 60} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`
}

/** Adds to what a task tells the time that it may still take, going by its pace so far; for outputs that don't show it themselves. */
export function withTimeLeft(onProgress: Progress): Progress {
  let phase: string | undefined
  let began = 0
  let from = 0
  return (event) => {
    if (event.phase !== phase) {
      phase = event.phase
      began = performance.now()
      from = event.done
    }
    const made = event.done - from
    const seconds = (performance.now() - began) / 1000
    if (event.total === undefined || made <= 0 || seconds < 5 || event.done >= event.total) return onProgress(event)
    const left = `${duration((seconds / made) * (event.total - event.done))} left`
    onProgress({ ...event, note: event.note === undefined ? left : `${event.note}  ${left}` })
  }
}
