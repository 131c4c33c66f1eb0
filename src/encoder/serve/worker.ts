// The thread behind openEncoder: holds both encoders and answers calls one after the other, in the order they were made.
import { setImmediate } from 'node:timers/promises'
import { parentPort, workerData } from 'node:worker_threads'
import { openPair, readEncoderPair } from '../embedding/pair.ts'
import { DEFAULT_MEMORY, openMemory } from './memory.ts'
import { type CallMessage, type FromWorker, sentError, type ToWorker, type WorkerData } from './messages.ts'
import { prepareItems, refinePacked } from './refine-items.ts'
import { remoteStore } from './remote-store.ts'

const port = parentPort
if (port === null) throw new Error('This file is the thread behind openEncoder and is not run by itself.')

const { folder, options, store: hasStore } = workerData as WorkerData
const send = (message: FromWorker, moved: ArrayBuffer[] = []): void => port.postMessage(message, moved)

const store = hasStore ? remoteStore(send) : undefined

async function open(): Promise<(message: Exclude<ToWorker, { kind: 'stored' }>) => void> {
  const pair = await readEncoderPair(folder, { ...options, onProgress: (event) => send({ kind: 'progress', event }) })
  const { threads, device, precision, tokenBudget, cache, cacheBytes, storedFrom } = options
  const encoders = await openPair(pair, {
    ...(threads === undefined ? {} : { threads }),
    ...(device === undefined ? {} : { device }),
    ...(precision === undefined ? {} : { precision }),
    ...(tokenBudget === undefined ? {} : { tokenBudget }),
    ...(cache === undefined ? {} : { cache }),
    ...(cacheBytes === undefined ? {} : { cacheBytes }),
    ...(store === undefined ? {} : { store }),
    ...(storedFrom === undefined ? {} : { storedFrom }),
  })
  const settings = {
    title: options.title ?? pair.settings.title,
    tableFormat: options.tableFormat ?? pair.settings.tableFormat,
    branching: options.branching ?? pair.settings.branching,
    margin: options.margin ?? pair.settings.margin,
  }
  const memory = options.memory === 0 ? undefined : openMemory(options.memory ?? DEFAULT_MEMORY)

  const answer = async (call: CallMessage, signal: AbortSignal): Promise<void> => {
    const { id, items } = call
    try {
      if (call.kind === 'prepare') {
        await prepareItems(encoders, settings, items, { signal, memory })
        send({ kind: 'done', id, refined: undefined })
        return
      }
      const margin = call.margin ?? settings.margin
      const refined = await refinePacked(encoders, { ...settings, margin }, call.question, items, { signal, memory })
      send({ kind: 'done', id, refined }, [refined.nodes.buffer])
    } catch (error) {
      send({ kind: 'failed', id, error: sentError(error) })
    }
  }

  /** Calls by their ids, in the order they were made; the first one may be running. */
  const calls = new Map<number, { call: CallMessage; controller: AbortController }>()
  let running: number | undefined
  const work = async (): Promise<void> => {
    // calls that arrive meanwhile are met at the end, those taken out are not
    for (const [id, { call, controller }] of calls) {
      running = id
      await answer(call, controller.signal)
      running = undefined
      calls.delete(id)
      // what is remembered is answered without any pause: let aborts and the end in
      if (calls.size > 0) await setImmediate()
    }
  }
  let working: Promise<void> | undefined
  const abort = (id: number): void => {
    if (id === running) calls.get(id)?.controller.abort()
    else calls.delete(id)
  }

  const end = async (): Promise<void> => {
    for (const id of [...calls.keys()]) abort(id)
    store?.abandon(new Error('The encoder is closed.'))
    await working
    await encoders.close()
    port?.close()
  }

  return (message) => {
    if (message.kind === 'abort') abort(message.id)
    else if (message.kind === 'close') void end()
    else {
      calls.set(message.id, { call: message, controller: new AbortController() })
      working ??= work().finally(() => {
        working = undefined
      })
    }
  }
}

let received: Awaited<ReturnType<typeof open>> | undefined
port.on('message', (message: ToWorker) => {
  // the store answers while the encoders are being opened, too; nothing else comes before they are
  if (message.kind === 'stored') store?.answer(message)
  else received?.(message)
})
// a call that does not arrive would never be answered
port.on('messageerror', (error) => {
  throw error
})
open().then(
  (opened) => {
    received = opened
    send({ kind: 'ready' })
  },
  (error: unknown) => {
    send({ kind: 'failed', id: undefined, error: sentError(error) })
    port.close()
  },
)
