import type { EncoderModule } from '../encoder/index.ts'

/** Linear maps of an encoder, a line each: name, outputs x inputs, how the weight is stored, and whether it is adapted by default. */
export function modulesText(modules: readonly EncoderModule[]): string {
  const rows = modules.map(({ module, inputs, outputs, storage, standard }) => [
    module,
    `${outputs} x ${inputs}`,
    storage,
    standard ? 'default' : '',
  ])
  const widths = [0, 1, 2].map((column) => Math.max(0, ...rows.map((row) => (row[column] as string).length)))
  const lines = rows.map((row) =>
    row
      .map((text, column) => text.padEnd(widths[column] ?? 0))
      .join('  ')
      .trimEnd(),
  )
  const standard = modules.filter((module) => module.standard).length
  return [...lines, `${modules.length} linear modules, ${standard} of them adapted by default.`].join('\n')
}
