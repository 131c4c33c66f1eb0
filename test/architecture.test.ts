import { readdirSync, readFileSync } from 'node:fs'
import { dirname, join, relative, resolve, sep } from 'node:path'
import { describe, expect, it } from 'vitest'

const src = resolve(import.meta.dirname, '../src')

/** Room -> the rooms it may import from. */
const mayImport: Record<string, string[]> = {
  support: [],
  hierarchy: ['support'],
  data: ['hierarchy', 'support'],
  media: ['hierarchy', 'support'],
  preferences: ['data', 'hierarchy', 'support'],
  refine: ['hierarchy', 'support'],
  onnx: ['support'],
  store: ['support'],
  autodiff: ['onnx', 'support'],
  tfjs: ['onnx', 'support'],
  encoder: ['onnx', 'store', 'media', 'refine', 'hierarchy', 'support'],
  encode: ['encoder', 'store', 'data', 'hierarchy', 'onnx', 'support'],
  eval: ['encoder', 'preferences', 'refine', 'data', 'hierarchy', 'support'],
  train: ['autodiff', 'tfjs', 'onnx', 'encoder', 'eval', 'preferences', 'refine', 'data', 'hierarchy', 'support'],
  distill: ['train', 'autodiff', 'onnx', 'encoder', 'data', 'hierarchy', 'support'],
  report: ['eval', 'media', 'preferences', 'refine', 'data', 'hierarchy', 'support'],
  reproduce: ['train', 'export', 'report', 'encoder', 'eval', 'preferences', 'data', 'hierarchy', 'support'],
  integrations: ['encoder', 'hierarchy', 'support'],
  pipeline: ['train', 'export', 'eval', 'encoder', 'support'],
  export: ['onnx', 'encoder', 'eval', 'preferences', 'refine', 'data', 'hierarchy', 'support'],
}

interface Import {
  file: string
  from: string
  to: string
  path: string
}

function imports(): Import[] {
  const files = readdirSync(src, { recursive: true, encoding: 'utf8' }).filter((f) => f.endsWith('.ts'))
  return files.flatMap((file) => {
    const text = readFileSync(join(src, file), 'utf8')
    return [...text.matchAll(/(?:from|import\()\s*'(\.{1,2}\/[^']+)'/g)].map((match) => {
      const target = relative(src, resolve(src, dirname(file), match[1] as string))
      return { file, from: room(file), to: room(target), path: target }
    })
  })
}

const room = (file: string): string => (file.includes(sep) ? (file.split(sep)[0] as string) : '')

describe('the rooms of src/', () => {
  const all = imports()

  it('depend on each other in one direction', () => {
    const wrong = all.filter((i) => i.from in mayImport && i.to !== i.from && !mayImport[i.from]?.includes(i.to))
    expect(wrong.map((i) => `${i.file} imports ${i.path}`)).toEqual([])
  })

  it('are entered through their index', () => {
    const open = ['support', 'cli']
    // web.ts takes single files: an index loads its whole room, and with it Node
    const wrong = all.filter(
      (i) =>
        i.to !== i.from && i.to !== '' && i.file !== 'web.ts' && !open.includes(i.to) && !i.path.endsWith('index.ts'),
    )
    expect(wrong.map((i) => `${i.file} imports ${i.path}`)).toEqual([])
  })
})
