// The thread that computes, so that the page goes on answering.
import { openWebEncoder } from './encoder.js'

/** @type {Promise<Awaited<ReturnType<typeof openWebEncoder>>> | undefined} */
let encoder

self.addEventListener('message', async ({ data }) => {
  try {
    if (data.kind === 'open') {
      const report = (file, loaded, total) => self.postMessage({ kind: 'progress', file, loaded, total })
      encoder = openWebEncoder(new URL('.', self.location.href).href, data.device, report)
      const { settings, threads } = await encoder
      self.postMessage({ kind: 'ready', settings, threads })
    } else {
      const { refine } = await encoder
      const begun = performance.now()
      const item = await refine(data.question, data.item)
      self.postMessage({ kind: 'refined', id: data.id, item, milliseconds: performance.now() - begun })
    }
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error)
    self.postMessage({ kind: data.kind === 'open' ? 'failed' : 'error', id: data.id, message })
  }
})
