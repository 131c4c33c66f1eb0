import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { cpus } from 'node:os'
import { RENDERING_VERSION, SEGMENTER_VERSION } from '../../hierarchy/index.ts'

/** Versions of everything that has a say in a run's bits. */
export async function versions(): Promise<Record<string, string>> {
  const here = JSON.parse(readFileSync(new URL('../../../package.json', import.meta.url), 'utf8')) as {
    version: string
  }
  const require = createRequire(import.meta.url)
  const ort = require('onnxruntime-node/package.json') as { version: string }
  const { env } = await import('@huggingface/transformers')
  return {
    canopy: here.version,
    node: process.versions.node,
    icu: process.versions.icu ?? 'none',
    'onnxruntime-node': ort.version,
    'transformers.js': env.version,
    rendering: RENDERING_VERSION,
    segmenter: SEGMENTER_VERSION,
  }
}

/** The machine, as far as its kind can change the bits of a sum. */
export function machine(): string {
  return `${process.platform} ${process.arch} ${cpus()[0]?.model.trim() ?? 'unknown processor'}`
}
