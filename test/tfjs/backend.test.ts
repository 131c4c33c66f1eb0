import { describe, expect, it } from 'vitest'
import { loadTfjs, type PackageLoader } from '../../src/tfjs/backend.ts'

/** A TensorFlow.js that only tells which backend it was given. */
function pretend(): { chosen: () => string; module: object } {
  let backend = ''
  return {
    chosen: () => backend,
    module: {
      version_core: '4.22.0',
      enableProdMode() {},
      getKernel: () => undefined,
      registerKernel() {},
      getBackend: () => backend,
      async setBackend(name: string) {
        backend = name
        return true
      },
    },
  }
}

function loader(installed: string[], more: Partial<PackageLoader> = {}): PackageLoader & { chosen: () => string } {
  const { chosen, module } = pretend()
  const names = installed.map((name) => `@tensorflow/${name}`)
  return {
    isInstalled: (name) => names.includes(name),
    load: () => module,
    nodeVersion: '20.19.0',
    chosen,
    ...more,
  }
}

const core = ['tfjs-core', 'tfjs-layers']

describe('the backend of TensorFlow.js', () => {
  it.each([
    [['tfjs-node-gpu', 'tfjs-node', ...core, 'tfjs-backend-wasm'], 'node-gpu', 'tensorflow'],
    [['tfjs-node', ...core, 'tfjs-backend-wasm', 'tfjs-backend-cpu'], 'node', 'tensorflow'],
    [[...core, 'tfjs-backend-wasm', 'tfjs-backend-cpu'], 'wasm', 'wasm'],
    [[...core, 'tfjs-backend-cpu'], 'cpu', 'cpu'],
  ])('is the best of those that are installed: %j', async (installed, backend, registered) => {
    const packages = loader(installed)
    expect((await loadTfjs(undefined, packages)).backend).toBe(backend)
    expect(packages.chosen()).toBe(registered)
  })

  it('is the one that is asked for', async () => {
    const packages = loader(['tfjs-node', ...core, 'tfjs-backend-cpu'])
    expect((await loadTfjs('cpu', packages)).backend).toBe('cpu')
  })

  it('has to be installed: the error says what to install', async () => {
    await expect(loadTfjs(undefined, loader([]))).rejects.toThrow(
      'npm install @tensorflow/tfjs-core@4.22.0 @tensorflow/tfjs-layers@4.22.0 @tensorflow/tfjs-backend-wasm@4.22.0',
    )
    // tfjs-core alone has no gradients in Node
    await expect(loadTfjs('wasm', loader(['tfjs-core', 'tfjs-backend-wasm']))).rejects.toThrow(
      /needs @tensorflow\/tfjs-layers, not installed here: npm install/,
    )
    await expect(loadTfjs('node', loader(core))).rejects.toThrow('npm install @tensorflow/tfjs-node@4.22.0')
  })

  it('is refused where it does not run, instead of quietly taking another one', async () => {
    const packages = ['tfjs-node', ...core, 'tfjs-backend-wasm']
    await expect(loadTfjs(undefined, loader(packages, { nodeVersion: '24.1.0' }))).rejects.toThrow(
      /tfjs-node does not run on Node 24\.1\.0.*Node 20 or 22.*--tfjs-backend wasm/,
    )
    expect((await loadTfjs('wasm', loader(packages, { nodeVersion: '24.1.0' }))).backend).toBe('wasm')
  })

  it('says why it does not load', async () => {
    const load = () => {
      throw new Error('The specified module could not be found.\n/a/path/tfjs_binding.node')
    }
    await expect(loadTfjs(undefined, loader(['tfjs-node'], { load }))).rejects.toThrow(
      /tfjs-node is installed but does not load: The specified module could not be found\. Its native library/,
    )
  })
})
