// Puts embeddings into a folder's store, a few at a time, and says after each how far it is: index.js of the store, folder, first key,
// how many keys, most bytes of the folder (0: without end).
const [entry, folder, first, count, maxBytes] = process.argv.slice(2)
const { openDiskStore } = await import(entry)

const space = { fingerprint: 'ab'.repeat(32), dimension: 3 }
function key(n) {
  const bytes = new Uint8Array(16)
  const view = new DataView(bytes.buffer)
  for (let i = 0; i < 4; i++) view.setUint32(4 * i, Math.imul(n + 1, 0x9e3779b1 + 2 * i))
  view.setUint32(12, n)
  return bytes
}
const vector = (n) => [0, 1, 2].map((k) => Math.fround((n + 1) / (k + 3)) * (k % 2 === 0 ? 1 : -1))

const say = (message) => new Promise((resolve) => process.stdout.write(`${message}\n`, resolve))
const store = openDiskStore(folder, maxBytes === '0' ? {} : { maxBytes: Number(maxBytes) })
const end = Number(first) + Number(count)
try {
  for (let n = Number(first); n < end; n += 3) {
    const numbers = [n, n + 1, n + 2].filter((n) => n < end)
    await store.putMany(space, numbers.map(key), Float32Array.from(numbers.flatMap(vector)))
    await say(numbers.at(-1))
  }
} catch (error) {
  await say(`failed: ${error.message}`)
}
await store.close()
