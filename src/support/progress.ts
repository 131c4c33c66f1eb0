/** What a long task tells while it runs. `total` is absent where it is not known beforehand. */
export type Progress = (event: { phase: string; done: number; total?: number; note?: string }) => void
