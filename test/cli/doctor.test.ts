import { describe, expect, it } from 'vitest'
import { checkHealth, type Finding } from '../../src/cli/health.ts'
import { checkApart } from '../../src/cli/native-checks.ts'
import { largestDifference, runProbe } from '../../src/cli/probe.ts'
import { hasFfmpeg } from '../media/ffmpeg-present.ts'
import { cli } from '../support/cli.ts'
import { softwareVulkan } from '../support/vulkan.ts'

const vulkan = softwareVulkan()
const command = [process.execPath, cli, 'doctor', '--native']
const dies = [process.execPath, '-e', 'process.kill(process.pid, "SIGBUS")', '--']

async function findings(options: Partial<Parameters<typeof checkHealth>[0]> = {}): Promise<Map<string, Finding>> {
  const found = new Map<string, Finding>()
  for await (const finding of checkHealth({ device: 'cpu', folder: process.cwd(), command, ...options }))
    found.set(finding.name, finding)
  return found
}

const cpu = await findings()

describe('canopy doctor', () => {
  it('looks at everything that a run needs, and names a remedy wherever something is amiss', () => {
    expect([...cpu.keys()]).toEqual([
      'node',
      'onnxruntime-node',
      'device cpu',
      'device cuda',
      'device webgpu',
      'memory',
      'processors',
      'disk',
      'ffmpeg',
      'tfjs',
    ])
    for (const { name, status, remedy } of cpu.values())
      expect([name, remedy === undefined]).toEqual([name, status === 'ok'])
    for (const name of ['node', 'onnxruntime-node', 'device cpu']) expect(cpu.get(name)!.status).toBe('ok')
    expect(cpu.get('onnxruntime-node')!.detail).toMatch(/^1\.\d+\.\d+, built for cpu/)
  })

  it('takes a missing device for a warning, and for a fault where it is the one that has to work', async () => {
    const source = `const [, name] = process.argv
      console.log(JSON.stringify({ name, status: /cuda/.test(name) ? 'fault' : 'ok', detail: '', remedy: 'Buy one.' }))`
    const noCard = [process.execPath, '-e', source, '--']
    expect((await findings({ command: noCard })).get('device cuda')).toMatchObject({
      status: 'warn',
      remedy: 'Buy one.',
    })
    expect((await findings({ command: noCard, device: 'cuda' })).get('device cuda')!.status).toBe('fault')
  })

  it.skipIf(!hasFfmpeg)('looks for ffprobe too, and at what they are', async () => {
    expect(cpu.get('ffmpeg')).toMatchObject({ status: 'ok', detail: expect.stringMatching(/^\S+, ffprobe \S+$/) })
    try {
      process.env.CANOPY_FFMPEG = process.execPath
      const other = (await findings({ command: dies })).get('ffmpeg')!
      expect(other).toMatchObject({ status: 'warn', remedy: expect.stringMatching(/both programs/) })
      expect(other.detail).toMatch(/is not FFmpeg's ffmpeg/)
    } finally {
      delete process.env.CANOPY_FFMPEG
    }
  })

  it.skipIf(!vulkan)('runs a graph on a device that works and compares it with the CPU', () => {
    expect(cpu.get('device webgpu')).toMatchObject({ status: 'ok' })
    expect(cpu.get('device webgpu')!.detail).toMatch(
      /differs from the CPU by \d\.\de-\d at most; all \d+ nodes ran on it/,
    )
  })

  it('outlives a library that ends the process or never answers', async () => {
    const found = await findings({ command: dies })
    expect(found.get('onnxruntime-node')).toMatchObject({ status: 'fault' })
    expect(found.get('onnxruntime-node')!.detail).toMatch(/ended in the middle \(SIGBUS\).*damaged/)
    expect(found.get('onnxruntime-node')!.remedy).toMatch(/npm ci/)
    expect(found.has('disk')).toBe(true)
    const hangs = [process.execPath, '-e', 'for (;;);', '--']
    expect((await checkApart('device webgpu', hangs, 300)).detail).toMatch(/gave no answer within 0\.3 s/)
    expect((await checkApart('device webgpu', ['/nowhere/node'])).detail).toMatch(/ENOENT/)
  })

  it('says so where the disk cannot be looked at', async () => {
    const disk = (await findings({ folder: '/nowhere/at/all', command: dies })).get('disk')!
    expect(disk).toMatchObject({ status: 'warn' })
    expect(disk.detail).toMatch(/ENOENT/)
  })

  it('would see results that are wrong, or no numbers', async () => {
    const { outputs } = await runProbe('cpu')
    expect(largestDifference(outputs, outputs)).toBe(0)
    const wrong = structuredClone(outputs)
    wrong.y!.data[3] = Number(outputs.y!.data[3]) + 0.5
    expect(largestDifference(wrong, outputs)).toBeCloseTo(0.5)
    wrong.y!.data[3] = Number.NaN
    expect(largestDifference(wrong, outputs)).toBe(Number.POSITIVE_INFINITY)
  })
})
