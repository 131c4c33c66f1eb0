import { execFile, execFileSync } from 'node:child_process'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { describe, expect, it } from 'vitest'
import { canopySettings, readAdapter, readEncoder } from '../../src/encoder/index.ts'
import { exportEncoder } from '../../src/export/index.ts'
import { tinyQwen3 } from '../encoder/qwen3-known.ts'
import { hasFfmpeg } from '../media/ffmpeg-present.ts'
import { temporaryFolder } from '../support/temporary.ts'

const root = join(import.meta.dirname, '..', '..')
const pictures = join(tinyQwen3('qwen3-vl'), 'pictures')

describe('examples/encode-nodes.mjs', () => {
  it('encodes texts, tables, a picture and a part of a video with an exported folder', async () => {
    const encoder = await readEncoder(tinyQwen3('qwen3-vl'))
    const adapter = await readAdapter(join(tinyQwen3('qwen3-vl'), 'adapter'), encoder)
    const settings = canopySettings(encoder, encoder, { title: true, tableFormat: 'markdown', branching: 2 })
    const folder = temporaryFolder()
    const output = join(folder, 'exported')
    await exportEncoder({
      ...{ encoder, adapter, queryEncoder: encoder, settings, output, version: '0', threads: 1, bundle: true },
      types: ['int8'],
    })
    const film = join(folder, 'film.mkv')
    const frames = ['-framerate', '1/10', '-i', join(pictures, 'frame%d.png'), '-pix_fmt', 'gbrp']
    if (hasFfmpeg) execFileSync('ffmpeg', ['-v', 'error', ...frames, '-c:v', 'ffv1', film])
    const { stdout } = await promisify(execFile)(process.execPath, [
      ...[join(root, 'examples', 'encode-nodes.mjs'), output, ...['--image', join(pictures, 'wide.png')]],
      ...(hasFfmpeg ? ['--video', film, '--end', '30'] : []),
    ])
    const lines = stdout.trim().split('\n')
    const nodes = ['passage [0, 3)', 'passage [0, 2)', 'passage [0, 1)', 'passage [1, 2)', 'passage [2, 3)']
    nodes.push('table [0, 2)', 'table [0, 1)', 'table [1, 2)', 'picture [0, 1)')
    if (hasFfmpeg) nodes.push('video [0, 1)')
    expect(lines.map((line) => line.split('  ')[0])).toEqual(nodes)
    for (const line of lines) expect(line).toMatch(/^\w+ \[\d, \d\) {2}\d+ tokens {2}-?0\.\d{4}$/)
    expect(new Set(lines.map((line) => line.split('  ')[2])).size).toBeGreaterThan(5)
  })
})
