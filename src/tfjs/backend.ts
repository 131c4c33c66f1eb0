import { createRequire } from 'node:module'
import { InputError } from '../support/errors.ts'
import { TFJS_BACKENDS, type TfjsBackend } from './backend-names.ts'
import { registerKernels } from './kernels.ts'
import type { Tfjs } from './values.ts'

/** The version of TensorFlow.js that this was written for. */
const VERSION = '4.22.0'
/** tfjs-node calls functions that Node 23 removed (`util.isNullOrUndefined`). */
const FIRST_NODE_WITHOUT_TFJS_NODE = 23

/** tfjs-core alone registers no gradients in Node; the layers package brings them along. */
const CORE = ['@tensorflow/tfjs-core', '@tensorflow/tfjs-layers']
const packages: Record<TfjsBackend, string[]> = {
  'node-gpu': ['@tensorflow/tfjs-node-gpu'],
  node: ['@tensorflow/tfjs-node'],
  wasm: [...CORE, '@tensorflow/tfjs-backend-wasm'],
  cpu: [...CORE, '@tensorflow/tfjs-backend-cpu'],
}

/** The names under which TensorFlow.js itself knows the backends. */
const registered: Record<TfjsBackend, string> = {
  'node-gpu': 'tensorflow',
  node: 'tensorflow',
  wasm: 'wasm',
  cpu: 'cpu',
}

export interface LoadedTfjs {
  tf: Tfjs
  backend: TfjsBackend
  /** The version of TensorFlow.js. */
  version: string
  /** Makes this backend the current one, which is global to TensorFlow.js: before every run. */
  activate(): Promise<void>
}

/** How packages are found and loaded; Node's own `require` unless a test puts another in its place. */
export interface PackageLoader {
  isInstalled(name: string): boolean
  load(name: string): unknown
  nodeVersion: string
}

const nodeLoader = (): PackageLoader => {
  // TensorFlow.js is CommonJS in Node.
  const require = createRequire(import.meta.url)
  return {
    isInstalled(name) {
      try {
        require.resolve(name)
        return true
      } catch {
        return false
      }
    },
    load: (name) => require(name),
    nodeVersion: process.versions.node,
  }
}

/**
 * Loads TensorFlow.js with a backend: the one that is asked for, or else the first of {@link TFJS_BACKENDS} that is installed.
 *
 * @throws InputError that says what to install, where nothing (or not the backend asked for) is installed, and for tfjs-node on
 * a Node that it does not run on
 */
export async function loadTfjs(wanted?: TfjsBackend, loader: PackageLoader = nodeLoader()): Promise<LoadedTfjs> {
  const installed = (backend: TfjsBackend) => packages[backend].every((name) => loader.isInstalled(name))
  const backend = wanted ?? TFJS_BACKENDS.find(installed)
  if (backend === undefined || !installed(backend)) throw notInstalled(wanted, loader)
  const native = backend === 'node' || backend === 'node-gpu'
  if (native && Number.parseInt(loader.nodeVersion, 10) >= FIRST_NODE_WITHOUT_TFJS_NODE)
    throw new InputError(
      `${packages[backend][0]} does not run on Node ${loader.nodeVersion}: it needs one before ${FIRST_NODE_WITHOUT_TFJS_NODE}. Use Node 20 or 22, or another backend (--tfjs-backend wasm).`,
    )
  const modules = packages[backend].map((name) => loadPackage(name, native, loader))
  const tf = modules[0] as Tfjs
  // also silences the advice to install tfjs-node
  tf.enableProdMode()
  if (!native) registerKernels(tf, registered[backend])
  const activate = async () => {
    if (tf.getBackend() !== registered[backend] && !(await tf.setBackend(registered[backend])))
      throw new InputError(`TensorFlow.js cannot start its ${backend} backend on this machine.`)
  }
  await activate()
  return { tf, backend, version: tf.version_core, activate }
}

function notInstalled(wanted: TfjsBackend | undefined, loader: PackageLoader): InputError {
  const line = (backend: TfjsBackend) =>
    `npm install ${packages[backend].map((name) => `${name}@${VERSION}`).join(' ')}`
  if (wanted === undefined)
    return new InputError(
      `The engine "tfjs" needs TensorFlow.js, which is not installed. Next to CANOPY: ${line('wasm')} (or, for its native library and Node before ${FIRST_NODE_WITHOUT_TFJS_NODE}: ${line('node')}).`,
    )
  const missing = packages[wanted].filter((name) => !loader.isInstalled(name))
  return new InputError(
    `The TensorFlow.js backend "${wanted}" needs ${missing.join(' and ')}, not installed here: ${line(wanted)}.`,
  )
}

function loadPackage(name: string, native: boolean, loader: PackageLoader): unknown {
  try {
    return loader.load(name)
  } catch (error) {
    const hint = native
      ? `Its native library is downloaded when it is installed; with install scripts turned off, run "npm rebuild ${name} --ignore-scripts=false", or use --tfjs-backend wasm.`
      : `Install it again: npm install ${name}@${VERSION}.`
    throw new InputError(`${name} is installed but does not load: ${firstLine(error)}. ${hint}`, {}, error)
  }
}

function firstLine(error: unknown): string {
  return (error instanceof Error ? error.message : String(error)).split('\n')[0]?.replace(/\.$/, '') ?? ''
}
