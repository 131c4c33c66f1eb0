import { realpath } from 'node:fs/promises'
import { dirname, resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import type { PairKind } from '../../preferences/index.ts'
import { InputError } from '../../support/errors.ts'
import type { TrainSettings } from '../settings.ts'
import { hashLossModule } from './files.ts'

/** A node of an instance's tree. */
export interface LossNode {
  /** Its leaves, `[from, to)`. */
  readonly from: number
  readonly to: number
  /** Place of its parent among the instance's nodes; -1 for the root. */
  readonly parent: number
  /** Places of its children, left to right; none where gold does not lead. */
  readonly children: readonly number[]
  /** Whether all, some or none of its leaves are gold. */
  readonly gold: 'all' | 'some' | 'none'
}

/** `preferred` shall score higher than `other`. */
export interface LossPair {
  /** Places among the instance's nodes. */
  readonly preferred: number
  readonly other: number
  readonly kind: PairKind
  /** Place of the decision node that the pair belongs to. */
  readonly decision: number
  /**
   * The pair's share of the batch, from `weighting`, `kindWeights` and `benchmarkWeights`: the built-in losses are
   * Σ weight · ℓ(d) over all pairs of all instances. 0 for a pair of equal token sequences, whose scores are equal whatever is
   * learned.
   */
  readonly weight: number
}

/** A question and a gold item of it: the tree that ideal refinement walks through, with scores. */
export interface LossInstance {
  /** Ids of the question and the item, and the benchmark's name. */
  readonly question: string
  readonly item: string
  readonly benchmark: string
  /** The decision nodes and their children, in pre-order: the root first. */
  readonly nodes: readonly LossNode[]
  readonly pairs: readonly LossPair[]
  /** s(q, v) = cos(f0(q), fθ(v)) of each node. */
  readonly scores: Float64Array
}

/** What a loss module is called with: a whole optimizer step, whatever the token budget. */
export interface LossInput {
  readonly instances: readonly LossInstance[]
  /** `lossOptions` of the settings, as the module's `options` function returns them if it has one. */
  readonly options: Readonly<Record<string, unknown>>
  /** All settings of the run: `tau` and `margin` among them. */
  readonly settings: Readonly<TrainSettings>
}

export interface LossOutput {
  /** L, of the whole step. */
  loss: number
  /** dL/ds, a number for each node of each instance, in their order. */
  gradients: readonly ArrayLike<number>[]
}

/**
 * The default export of a loss module: a pure function of what it is given, in double precision. The same input gives the
 * same numbers, and nothing else is read: training is repeatable to the byte only then.
 */
export type Loss = (input: LossInput) => LossOutput

/** What a loss module gave for a step, checked. */
export interface LossOutcome {
  loss: number
  gradients: Float64Array[]
  /** What is not a finite number, as the subject of a sentence; undefined when everything is finite. */
  notFinite: string | undefined
}

/** A loss module, loaded. */
export interface LossModule {
  /** Absolute path. */
  path: string
  /** SHA-256 over the module and every local file that it names; see `hashLossModule`. */
  sha256: string
  /** Those files and the SHA-256 of each, by path relative to the module. */
  files: Record<string, string>
  /**
   * @throws InputError naming the module, and the instance where there is one, when it throws or returns something else than a loss
   */
  run(instances: readonly LossInstance[]): LossOutcome
}

/** Whether a `loss` setting names a module; the built-in ones are named by a word. */
export function isLossModule(loss: string): boolean {
  return /\.(mjs|cjs|js)$/.test(loss)
}

/** SHA-256 of the files that this process has imported for loss modules, by path. */
const imported = new Map<string, string>()

/**
 * Imports a loss module, and so runs its code: `path` comes from the user's own settings, never from data.
 *
 * @throws InputError when it cannot be imported, has no default function or refuses its options, and when this process has
 *   imported another text of it before
 */
export async function loadLossModule(settings: TrainSettings): Promise<LossModule> {
  const path = settings.loss
  // Hashed first: whoever edits it meanwhile gets a hash that fits nothing.
  const { sha256, files } = await hashLossModule(path)
  await requireUnchanged(path, files)
  const fault = (what: string, cause?: unknown): InputError =>
    new InputError(`The loss module ${what}`, { file: path, line: lineOf(cause, path) }, cause)
  const exported = (await import(/* @vite-ignore */ `${pathToFileURL(path).href}?sha256=${sha256}`).catch(
    (error: unknown) => {
      const hint = error instanceof SyntaxError ? ' "node --check" shows the line.' : ''
      throw fault(`cannot be imported: ${messageOf(error)}.${hint}`, error)
    },
  )) as { default?: unknown; options?: unknown }
  const loss = exported.default
  if (typeof loss !== 'function')
    throw fault(
      'has no default export that is a function; it needs one, as in "export default function loss({ instances }) { … }".',
    )
  const complete = exported.options
  if (complete !== undefined && typeof complete !== 'function')
    throw fault('exports "options", which is no function; it takes lossOptions and returns them, completed.')

  const given = structuredClone(settings.lossOptions)
  let options: unknown = given
  try {
    if (complete !== undefined) options = complete(given)
  } catch (error) {
    throw fault(`refuses "lossOptions": ${messageOf(error)}`, error)
  }
  if (typeof options !== 'object' || options === null || isPromise(options))
    throw fault(`exports "options", which returned ${describe(options)} instead of an object.`)
  const shared = { options: Object.freeze(options), settings: Object.freeze(structuredClone(settings)) }
  return {
    path,
    sha256,
    files,
    run(instances) {
      try {
        return checked(loss({ instances, ...shared }), instances, fault)
      } catch (error) {
        throw error instanceof InputError ? error : fault(`failed: ${messageOf(error)}`, error)
      }
    },
  }
}

/**
 * Node reads a file that is imported or required once in a process, so that another text of it would be trained on under a hash
 * that is not its own. (Only an ES module itself is read anew, for its hash is part of its URL.)
 */
async function requireUnchanged(path: string, files: Record<string, string>): Promise<void> {
  const start = await realpath(path)
  for (const [name, sha256] of Object.entries(files)) {
    const file = resolve(dirname(start), name)
    if (file === start && file.endsWith('.mjs')) continue
    if ((imported.get(file) ?? sha256) !== sha256)
      throw new InputError(
        'This file of a loss module has changed since this process imported it, and Node reads it once. Train in a new process.',
        { file },
      )
    imported.set(file, sha256)
  }
}

/** The numbers of a module's output, copied. */
function checked(
  output: unknown,
  instances: readonly LossInstance[],
  fault: (what: string) => InputError,
): LossOutcome {
  if (isPromise(output)) throw fault('returned a promise; a loss is a plain function, not an async one.')
  if (typeof output !== 'object' || output === null)
    throw fault(`returned ${describe(output)}; { loss, gradients } was expected.`)
  const { loss, gradients } = output as Partial<LossOutput>
  if (typeof loss !== 'number') throw fault(`returned a "loss" that is ${describe(loss)}; a number was expected.`)
  if (!Array.isArray(gradients) || gradients.length !== instances.length)
    throw fault(
      `returned "gradients" that are ${describe(gradients)}; a list of ${instances.length}, one for each instance, was expected.`,
    )
  let notFinite = Number.isFinite(loss) ? undefined : `the loss (${loss})`
  const copies = instances.map((instance, i) => {
    const rows: unknown = gradients[i]
    const of = `the gradient of ${nameOf(instance)}`
    if (!isArrayOfNumbers(rows)) throw fault(`returned as ${of} ${describe(rows)}; an array of numbers was expected.`)
    if (rows.length !== instance.nodes.length)
      throw fault(
        `returned as ${of} ${rows.length} numbers; ${instance.nodes.length}, one for each node, were expected.`,
      )
    const copy = Float64Array.from(rows)
    const bad = copy.findIndex((x) => !Number.isFinite(x))
    if (bad !== -1) notFinite ??= `the gradient at ${nodeName(instance, bad)} (${copy[bad]})`
    return copy
  })
  return { loss, gradients: copies, notFinite }
}

function isArrayOfNumbers(value: unknown): value is ArrayLike<number> {
  return (
    value instanceof Float64Array ||
    value instanceof Float32Array ||
    (Array.isArray(value) && value.every((x) => typeof x === 'number'))
  )
}

/** The first instance with a score that is not finite, which no module is asked about. */
export function unscored(instances: readonly LossInstance[]): LossInstance | undefined {
  return instances.find(({ scores }) => !scores.every(Number.isFinite))
}

/** An instance, for a message. */
export function nameOf({ question, item }: LossInstance): string {
  return `the question "${question}" with the item "${item}"`
}

/** A node of an instance, for a message. */
export function nodeName(instance: LossInstance, node: number): string {
  const { from, to } = instance.nodes[node]!
  return `the node [${from}, ${to}) of ${nameOf(instance)}`
}

function describe(value: unknown): string {
  if (Array.isArray(value)) return `a list of ${value.length}`
  if (value instanceof Promise) return 'a promise'
  if (value === null || value === undefined || typeof value === 'number' || typeof value === 'boolean')
    return String(value)
  return typeof value === 'object' ? `an object (${Object.keys(value).slice(0, 5).join(', ')})` : `a ${typeof value}`
}

/** Whether it is a promise, whose rejection is then nobody's concern. */
function isPromise(value: unknown): boolean {
  if (!(value instanceof Promise)) return false
  value.catch(() => {})
  return true
}

/** The line of a file in which an error was thrown, or which called what threw it. */
function lineOf(error: unknown, path: string): number | undefined {
  const frames = error instanceof Error ? (error.stack ?? '').split('\n') : []
  const names = [path, pathToFileURL(path).href]
  const frame = frames.find((text) => /^\s+at /.test(text) && names.some((name) => text.includes(name)))
  const line = /:(\d+):\d+\)?$/.exec(frame ?? '')?.[1]
  return line === undefined ? undefined : Number(line)
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}
