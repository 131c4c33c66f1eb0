// Bundles the evidence viewer of the report, TypeScript and style sheet, into the two texts that a report holds inline.
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { build } from 'vite'

const root = join(dirname(fileURLToPath(import.meta.url)), '..')

/** @returns {Promise<{ script: string, style: string }>} */
export async function bundleViewer() {
  const [{ output }] = await build({
    root,
    configFile: false,
    publicDir: false,
    logLevel: 'warn',
    build: {
      write: false,
      target: 'es2022',
      lib: { entry: join(root, 'src/report/viewer/main.ts'), formats: ['iife'], name: 'canopyViewer' },
      // What the viewer shares with the rest, trees and refinement, is pure: only what is used comes along.
      rolldownOptions: { treeshake: { moduleSideEffects: (id) => id.includes('/report/viewer/') } },
    },
  })
  const script = output.find((file) => file.type === 'chunk')?.code
  const style = output.find((file) => file.fileName.endsWith('.css'))?.source
  if (script === undefined || style === undefined)
    throw new Error('The viewer did not become a script and a style sheet.')
  if (/<\/(script|style)/i.test(script + style)) throw new Error('The viewer would end the element that holds it.')
  return {
    script: script.trim(),
    style: String(style)
      .replace(/\/\*.*?\*\//gs, '')
      .trim(),
  }
}
