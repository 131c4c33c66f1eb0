import { spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { createRequire } from 'node:module'
import { constants, tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { brotliDecompressSync } from 'node:zlib'

/** Of glibc's dlfcn.h; Node has no name for it. */
const RTLD_NODELETE = 0x1000

/**
 * Gives this process a WebGPU adapter that computes in software: SwiftShader, a Vulkan driver that the tests' Chromium brings along.
 * Call it before the first session. False where there is none for this platform, and tests that need it are skipped.
 */
export function softwareVulkan(): boolean {
  if (process.platform !== 'linux' || process.arch !== 'x64') return false
  const chromium = dirname(createRequire(import.meta.url).resolve('@sparticuz/chromium'))
  const packed = join(chromium.slice(0, chromium.lastIndexOf('chromium') + 8), 'bin', 'swiftshader.tar.br')
  const folder = mkdtempSync(join(tmpdir(), 'canopy-vulkan-'))
  process.on('exit', () => rmSync(folder, { recursive: true, force: true }))
  const { status, stderr } = spawnSync('tar', ['-x', '-C', folder], {
    input: brotliDecompressSync(readFileSync(packed)),
  })
  if (status !== 0) throw new Error(`SwiftShader cannot be unpacked: ${stderr}`)
  process.env.VK_ICD_FILENAMES = join(folder, 'vk_swiftshader_icd.json')
  // For the processes that this one starts.
  process.env.LD_LIBRARY_PATH = [folder, process.env.LD_LIBRARY_PATH].filter(Boolean).join(':')
  try {
    // Whoever asks for libvulkan.so.1 from now on gets this one, whether or not the machine has its own: Node drops a library that is
    // no addon, and this flag keeps it.
    process.dlopen({ exports: {} }, join(folder, 'libvulkan.so.1'), constants.dlopen.RTLD_NOW | RTLD_NODELETE)
  } catch (error) {
    if (!/did not self-register/.test((error as Error).message)) throw error
  }
  return true
}
