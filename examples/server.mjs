// Refinement over HTTP, by Node's own server: a start for a service, to be read in one sitting.
//
//   node examples/server.mjs <exported folder> [port]
//   curl localhost:8080/refine -d '{"question": "Who wound the clock?", "items": [{"title": "Tower", "text": "…"}]}'
//
// SIGHUP opens the folder again and goes over to what it finds there, without losing a call; SIGTERM finishes the calls that run.
// Texts and tables only: the paths of pictures would be the server's own, and are not for strangers to choose.
import { createServer } from 'node:http'
import { InputError, openEncoder, QueueFullError } from 'canopy-encoder'

const LARGEST_BODY = 4 << 20
const PATIENCE_MS = 10_000
class TooLargeError extends Error {}

const [folder = 'runs/quickstart/export', port = '8080'] = process.argv.slice(2)
const open = () => openEncoder(folder, { maxQueue: 32 })
// takes a moment, in which SIGHUP must not end the process
const opening = open()
let reopened = opening
process.on('SIGHUP', () => {
  reopened = reopened.then(reopen)
})
console.error(`Opening ${folder} …`)
let encoder = await opening.catch((error) => {
  if (!(error instanceof InputError)) throw error
  console.error(error.message)
  process.exit(1)
})
const calls = new Set()

// who sends a byte now and then is cut off
const limits = { requestTimeout: PATIENCE_MS, headersTimeout: PATIENCE_MS, connectionsCheckingInterval: 1_000 }
const server = createServer(limits, async (request, response) => {
  const answer = (status, body, headers = {}) => {
    if (response.destroyed) return
    // a connection that is kept alive would hold up the end
    const last = server.listening ? {} : { connection: 'close' }
    response
      .writeHead(status, { 'content-type': 'application/json', ...headers, ...last })
      .end(`${JSON.stringify(body)}\n`)
  }
  if ((request.method === 'GET' || request.method === 'HEAD') && request.url === '/health')
    return answer(200, { ok: true })
  if (request.method !== 'POST' || request.url !== '/refine')
    return answer(404, { error: 'POST /refine or GET /health' })

  // whoever hangs up gives the place in the queue back
  const gone = new AbortController()
  response.on('close', () => gone.abort())
  const signal = AbortSignal.any([gone.signal, AbortSignal.timeout(PATIENCE_MS)])
  try {
    const { question, items } = JSON.parse(await bodyOf(request)) ?? {}
    if (!Array.isArray(items)) throw new InputError('"items" is a list.')
    if (items.some((item) => item?.image !== undefined || item?.video !== undefined))
      throw new InputError('Texts and tables only.')
    const call = encoder.refine(question, items, { signal })
    calls.add(call)
    answer(200, { items: await call.finally(() => calls.delete(call)) })
  } catch (error) {
    if (error instanceof QueueFullError) answer(503, { error: 'busy' }, { 'retry-after': '1' })
    else if (error instanceof TooLargeError) answer(413, { error: error.message }, { connection: 'close' })
    else if (error instanceof InputError || error instanceof SyntaxError) answer(400, { error: error.message })
    else if (signal.aborted) answer(504, { error: 'it took too long' })
    else {
      console.error(error)
      answer(500, { error: 'something went wrong' })
    }
  }
})
server.listen(Number(port), () => console.log(`http://localhost:${server.address().port}/refine`))

async function bodyOf(request) {
  const parts = []
  let bytes = 0
  for await (const part of request) {
    bytes += part.length
    if (bytes > LARGEST_BODY) throw new TooLargeError(`A request has at most ${LARGEST_BODY} bytes.`)
    parts.push(part)
  }
  return Buffer.concat(parts).toString('utf8')
}

async function reopen() {
  try {
    const fresh = await open()
    // none begins between these: the old encoder is closed when the last of its calls has ended
    const [old, begun] = [encoder, [...calls]]
    encoder = fresh
    console.log('The encoder was opened again.')
    await Promise.allSettled(begun)
    await old.close()
  } catch (error) {
    console.error(`The encoder in use stays: ${error.message}`)
  }
}
for (const stop of ['SIGINT', 'SIGTERM']) process.once(stop, () => server.close(() => encoder.close()))
