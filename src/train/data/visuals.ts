import { setImmediate as nextTurn } from 'node:timers/promises'
import { beyondSkipping, type InputReader, stoppedBy, UnreadableError } from '../../encoder/index.ts'
import { type RenderOptions, readsAsText } from '../../hierarchy/index.ts'
import type { Progress } from '../../support/progress.ts'
import { instanceInputs, type TrainingSet } from './training-set.ts'

/** Instances that are not trained on, because of what their items are. */
export interface LeftOut {
  /** Numbers of the instances. */
  instances: ReadonlySet<number>
  /** How many of them show something that the encoder does not read. */
  notRead: number
  /** Items whose picture or video cannot be read, and why: sentences without a full stop. */
  unreadable: { item: string; reason: string }[]
}

/** The instances whose items are pictures or videos; of pictures there are none with pairs. */
export async function visualInstances(
  set: TrainingSet,
  options: { onProgress?: Progress | undefined; signal?: AbortSignal | undefined } = {},
): Promise<number[]> {
  const found: number[] = []
  const total = set.index.count
  for (let instance = 0; instance < total; instance++) {
    options.signal?.throwIfAborted()
    if ((await set.mayBeVisual(instance)) && !readsAsText(await set.item(instance))) found.push(instance)
    options.onProgress?.({ phase: 'reading items', done: instance + 1, total })
  }
  return found
}

/**
 * Has the visual features of instances computed, as far as they are not in the cache from before: afterwards their nodes are
 * tokenised without looking at a pixel, and a training step runs the language model alone.
 *
 * @param open opens a reader with the cache; it is closed in the end, so that its vision tower takes no memory in training
 * @param options.onError `stop` throws for an item whose file cannot be read; `skip` leaves its instances out
 * @throws UnreadableError naming item and file
 * @throws InputError where FFmpeg is missing, and as opening a reader and its cache does
 */
export async function computeVisuals(
  set: TrainingSet,
  instances: readonly number[],
  open: () => Promise<Pick<InputReader, 'encode' | 'close'>>,
  options: {
    rendering: RenderOptions
    onError: 'stop' | 'skip'
    onProgress?: Progress | undefined
    signal?: AbortSignal | undefined
  },
): Promise<LeftOut> {
  const { rendering, onError, onProgress, signal } = options
  // items of two datasets may have one id
  const places: string[] = []
  const faults = new Map<string, LeftOut['unreadable'][number]>()
  const reader = instances.length === 0 ? undefined : await open()
  try {
    for (const [done, instance] of instances.entries()) {
      const now = { phase: 'visual features', done, total: instances.length }
      onProgress?.(now)
      const raw = await set.read(instance)
      const { item } = raw.preferences
      const place = `${raw.folder}\0${item}`
      places.push(place)
      try {
        if (!faults.has(place))
          await reader?.encode(instanceInputs(raw, rendering), 'node', {
            ...(signal !== undefined && { signal }),
            // a long video takes minutes by itself
            onProgress: (seen) => onProgress?.({ ...now, note: `node ${seen.done} of ${seen.total}` }),
          })
      } catch (error) {
        if (!(error instanceof UnreadableError)) throw beyondSkipping(error, onError)
        if (onError === 'stop') throw stoppedBy(item, error)
        faults.set(place, { item, reason: error.message.replace(/\.$/, '') })
      }
      // runs of the vision tower hold up the event loop: signals come in between
      await nextTurn()
      signal?.throwIfAborted()
    }
  } finally {
    await reader?.close()
  }
  if (instances.length > 0) onProgress?.({ phase: 'visual features', done: instances.length, total: instances.length })
  return {
    instances: new Set(instances.filter((_, i) => faults.has(places[i]!))),
    notRead: 0,
    unreadable: [...faults.values()],
  }
}

/** How many unreadable items are named. */
const NAMED = 3

/** What is left out, as sentences without a full stop. */
export function leftOutNotes({ instances, notRead, unreadable }: LeftOut): string[] {
  if (notRead > 0)
    return [
      `${counted(notRead, 'instance')} of videos ${notRead === 1 ? 'is' : 'are'} left out: the encoder reads only texts and tables`,
    ]
  if (unreadable.length === 0) return []
  const named = unreadable.slice(0, NAMED).map(({ item, reason }) => `item "${item}": ${reason}`)
  const more = unreadable.length > NAMED ? `; and ${unreadable.length - NAMED} more` : ''
  const [one, all] = [instances.size === 1, counted(unreadable.length, 'item')]
  return [
    `${counted(instances.size, 'instance')} of ${all} ${one ? 'is' : 'are'} left out, whose videos cannot be read (${named.join('; ')}${more})`,
  ]
}

const counted = (count: number, noun: string): string => `${count} ${noun}${count === 1 ? '' : 's'}`
