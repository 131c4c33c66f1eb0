import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { availableParallelism, tmpdir, totalmem } from 'node:os'
import { dirname, join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { readLimits } from '../../src/support/limits.ts'

const MIB = 2 ** 20
let root: string
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'canopy-limits-'))
})
afterEach(() => rmSync(root, { recursive: true, force: true }))

/** The kernel's files, by path from the root. */
function kernel(files: Record<string, string>): void {
  for (const [path, content] of Object.entries(files)) {
    mkdirSync(dirname(join(root, path)), { recursive: true })
    writeFileSync(join(root, path), content)
  }
}

describe('the limits of this process', () => {
  it('are the machine, where no container lowers them', async () => {
    kernel({
      'proc/meminfo': 'MemTotal: 8000 kB\nMemFree:  10 kB\nMemAvailable:  4096 kB\n',
      'proc/self/cgroup': '0::/\n',
      'sys/fs/cgroup/memory.max': 'max\n',
      'sys/fs/cgroup/cpu.max': 'max 100000\n',
    })
    expect(await readLimits(root)).toEqual({
      memory: { total: totalmem(), available: 4096 * 1024, container: false },
      processors: { count: availableParallelism(), container: false },
    })
  })

  it('are those of control groups of version 2, what file caches hold counted as free', async () => {
    kernel({
      'proc/meminfo': 'MemAvailable:  99999999999 kB\n',
      'proc/self/cgroup': '0::/system.slice/job\n',
      'sys/fs/cgroup/system.slice/job/memory.max': 'max\n',
      'sys/fs/cgroup/system.slice/memory.max': `${64 * MIB}\n`,
      'sys/fs/cgroup/system.slice/memory.current': `${60 * MIB}\n`,
      'sys/fs/cgroup/system.slice/memory.stat': `anon 1\ninactive_file ${16 * MIB}\nactive_file 5\n`,
      'sys/fs/cgroup/system.slice/job/cpu.max': '50000 100000\n',
    })
    expect(await readLimits(root)).toEqual({
      memory: { total: 64 * MIB, available: 20 * MIB, container: true },
      processors: { count: 0.5, container: true },
    })
  })

  it('are those of a group whose path has colons', async () => {
    kernel({
      'proc/self/cgroup': '0::/pods.slice:cri:abc\n',
      'sys/fs/cgroup/pods.slice:cri:abc/memory.max': `${64 * MIB}\n`,
    })
    expect((await readLimits(root)).memory.total).toBe(64 * MIB)
  })

  it('are those of control groups of version 1, also where only the mount of a container is seen', async () => {
    kernel({
      'proc/self/cgroup': '5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n',
      'sys/fs/cgroup/memory/memory.limit_in_bytes': `${32 * MIB}\n`,
      'sys/fs/cgroup/memory/memory.usage_in_bytes': `${12 * MIB}\n`,
      'sys/fs/cgroup/memory/memory.stat': `total_inactive_file ${2 * MIB}\n`,
      'sys/fs/cgroup/cpu/cpu.cfs_quota_us': '75000\n',
      'sys/fs/cgroup/cpu/cpu.cfs_period_us': '100000\n',
    })
    const { memory, processors } = await readLimits(root)
    expect(memory).toEqual({ total: 32 * MIB, available: 22 * MIB, container: true })
    expect(processors).toEqual({ count: 0.75, container: true })
  })

  it('are what Node.js says, where the system has no such files', async () => {
    const { memory, processors } = await readLimits(root)
    expect(memory.total).toBe(totalmem())
    expect(memory.available).toBeGreaterThan(0)
    expect(processors).toEqual({ count: availableParallelism(), container: false })
  })
})
