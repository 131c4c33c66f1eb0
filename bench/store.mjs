// Embedding stores: on disk and in PostgreSQL over PGlite (in the process, and over TCP with pg), and what a warm start saves.
//
//   npm run build && CANOPY_MINILM=<folder of all-MiniLM-L6-v2> node bench/store.mjs [--entries 20000] [--disk-only] [--output <file.json>]
//
// PGlite is PostgreSQL compiled to WebAssembly, on one thread: a server answers faster; statements and driver are the same.
import { spawnSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { parseArgs } from 'node:util'

const { values: flags } = parseArgs({
  options: {
    entries: { type: 'string', default: '20000' },
    output: { type: 'string' },
    'disk-only': { type: 'boolean', default: false },
    // one query in a process of its own: how the pair is opened, and the folder of its cache
    open: { type: 'string' },
    cache: { type: 'string' },
  },
})
const DIMENSION = 384
/** Nodes of ten items of ten leaves. */
const QUERY = 190
/** About what a batch of the embedder has. */
const PUT = 64
const SPACE = { fingerprint: 'ab'.repeat(32), dimension: DIMENSION }
const minilm = process.env.CANOPY_MINILM
/** CANOPY_DIST names another build. */
const dist = resolve(process.env.CANOPY_DIST ?? fileURLToPath(new URL('../dist', import.meta.url)))
const load = (path) => import(pathToFileURL(join(dist, path)).href)

if (flags.open !== undefined) console.log(JSON.stringify(await openAndAsk(flags.open, flags.cache)))
else await main()

async function main() {
  const folder = mkdtempSync(join(tmpdir(), 'canopy-store-'))
  try {
    const results = {
      ...{ entries: Number(flags.entries), dimension: DIMENSION, node: process.version },
      stores: await measureStores(folder, Number(flags.entries)),
      opening: await measureOpening(join(folder, 'disk')),
      starts: minilm === undefined ? [] : measureStarts(join(folder, 'cache')),
    }
    print(results)
    if (flags.output !== undefined) writeFileSync(flags.output, `${JSON.stringify(results, undefined, 2)}\n`)
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

async function measureStores(folder, entries) {
  const { openDiskStore } = await load('store/index.js')
  const { openPostgresStore } = await load('postgres.js')
  const { PGlite } = await import('@electric-sql/pglite')
  const { vector } = await import('@electric-sql/pglite-pgvector')
  const { PGLiteSocketServer } = await import('@electric-sql/pglite-socket')
  const { default: pg } = await import('pg')

  const disk = join(folder, 'disk')
  const onDisk = async () => readdirSync(disk).reduce((sum, name) => sum + statSync(join(disk, name)).size, 0)
  const rows = [await measureStore('disk', () => openDiskStore(disk), entries, onDisk)]
  if (flags['disk-only']) return rows

  const db = await PGlite.create({ dataDir: join(folder, 'pglite'), extensions: { vector } })
  await db.query('CREATE EXTENSION vector')
  const inTable = (table) => async () =>
    Number((await db.query('SELECT pg_total_relation_size($1) AS bytes', [table])).rows[0].bytes)
  const inProcess = () => openPostgresStore({ client: db, table: 'in_process' })
  rows.push(await measureStore('PGlite, in the process', inProcess, entries, inTable('in_process')))

  const port = 54_329
  const server = new PGLiteSocketServer({ db, host: '127.0.0.1', port, maxConnections: 4 })
  await server.start()
  const pool = new pg.Pool({ host: '127.0.0.1', port, user: 'postgres', database: 'postgres', ssl: false })
  const byTcp = () => openPostgresStore({ client: pool, table: 'by_tcp' })
  rows.push(await measureStore('PGlite, pg over TCP', byTcp, entries, inTable('by_tcp')))
  await pool.end()
  await server.stop()
  await db.close()
  return rows
}

async function measureStore(name, open, entries, bytes) {
  const keys = Array.from({ length: entries }, () => new Uint8Array(randomBytes(16)))
  const block = Float32Array.from({ length: PUT * DIMENSION }, () => (Math.random() - 0.5) / 10)
  const fill = async (store, times) => {
    for (let from = 0; from < entries; from += PUT) {
      const batch = keys.slice(from, from + PUT)
      const started = performance.now()
      await store.putMany(SPACE, batch, block.subarray(0, batch.length * DIMENSION))
      times.push(performance.now() - started)
    }
  }
  const store = await open()
  const puts = []
  await fill(store, puts)
  await store.close()
  const size = await bytes()

  const reader = await open()
  await reader.getMany(SPACE, keys.slice(0, QUERY))
  const gets = []
  for (let n = 0; n < 200; n++) {
    // an item's nodes were put together; ten items lie anywhere
    const asked = Array.from({ length: QUERY / 19 }, () => Math.floor(Math.random() * (entries - 19))).flatMap((from) =>
      keys.slice(from, from + 19),
    )
    const started = performance.now()
    const found = await reader.getMany(SPACE, asked)
    gets.push(performance.now() - started)
    if (found.includes(undefined)) throw new Error(`${name} lost an embedding.`)
  }
  let started = performance.now()
  for (let from = 0; from < entries; from += 1000) await reader.getMany(SPACE, keys.slice(from, from + 1000))
  const readMs = performance.now() - started
  started = performance.now()
  await reader.prune(name === 'disk' ? size / 2 : (entries / 2) * (4 * DIMENSION + 200))
  const pruneMs = performance.now() - started
  await fill(reader, [])
  await reader.close()
  const total = puts.reduce((sum, ms) => sum + ms, 0)
  return {
    ...{ name, putsPerSecond: (1000 * entries) / total, getsPerSecond: (1000 * entries) / readMs },
    ...{ put: percentiles(puts), get: percentiles(gets), bytesEach: size / entries, pruneMs },
  }
}

/** Opening a folder's store with the index that a closed store leaves, and without it, as after a crash. */
async function measureOpening(disk) {
  const { openDiskStore } = await load('store/index.js')
  const measured = []
  for (const index of [true, false]) {
    if (!index) for (const name of readdirSync(disk)) if (name.endsWith('.index')) rmSync(join(disk, name))
    const times = []
    for (let n = 0; n < 5; n++) {
      const store = openDiskStore(disk)
      const started = performance.now()
      await store.getMany(SPACE, [])
      times.push(performance.now() - started)
      await store.close()
    }
    measured.push({ index, ms: percentiles(times).p50 })
  }
  return measured
}

/** One query over ten passages by a process of its own: all computed, and with f0 alone. The first run fills the cache. */
function measureStarts(cache) {
  const measured = { 'no store': [], cold: [], warm: [], 'warm, question known': [] }
  ask('cold', cache)
  for (let n = 0; n < 3; n++)
    for (const kind of Object.keys(measured)) measured[kind].push(ask(kind, kind === 'cold' ? `${cache}-${n}` : cache))
  return Object.entries(measured).map(([kind, runs]) => ({
    kind,
    loaded: runs[0].loaded,
    ...Object.fromEntries(
      ['openMs', 'queryMs', 'rssMiB'].map((name) => [name, percentiles(runs.map((run) => run[name])).p50]),
    ),
  }))
}

function ask(kind, cache) {
  const words = [fileURLToPath(import.meta.url), '--open', kind, '--cache', cache]
  const { stdout, stderr, status } = spawnSync(process.execPath, words, { encoding: 'utf8' })
  if (status !== 0) throw new Error(stderr)
  return JSON.parse(stdout)
}

async function openAndAsk(kind, cache) {
  const { encoderModules, initialLora, openPair, readEncoder, refineItems } = await load('encoder/index.js')
  const { openDiskStore } = await load('store/index.js')
  const profile = await readEncoder(minilm)
  // an adapter before its first step computes what f0 does, and is another encoder all the same
  const targets = (await encoderModules(profile))
    .filter(({ standard }) => standard)
    .map(({ module, inputs, outputs }) => ({ module, inputs, outputs, rank: 8, alpha: 16 }))
  const adapter = { targets, tensors: initialLora(targets, 'bench'), baseFingerprint: profile.fingerprint }
  const pair = { encoder: profile, adapter, query: profile, settings: undefined, trained: false }
  const settings = { title: true, tableFormat: 'markdown', branching: 2 }
  const items = Array.from({ length: 10 }, (_, i) => ({
    title: `Clock ${i}`,
    text: Array.from(
      { length: 10 },
      (_, s) => `Sentence ${s} of passage ${i} says who wound the clock in the year ${1800 + 10 * i + s}, and why.`,
    ).join(' '),
  }))
  const store = kind === 'no store' ? undefined : openDiskStore(cache)
  const started = performance.now()
  const encoders = await openPair(pair, {
    threads: 1,
    ...(store === undefined ? {} : { store }),
    ...(kind === 'warm, question known' || kind === 'cold' ? { questionStore: store } : {}),
  })
  const openMs = performance.now() - started
  const asked = performance.now()
  await refineItems(encoders, settings, 'Who wound the clock in 1825?', items)
  const queryMs = performance.now() - asked
  const loaded =
    [encoders.query.loaded && 'f0', encoders.node.loaded && 'fθ'].filter(Boolean).join(' and ') || 'neither'
  const { rss } = process.memoryUsage()
  await encoders.close()
  await store?.close()
  return { openMs, queryMs, rssMiB: rss / 2 ** 20, loaded }
}

function percentiles(times) {
  const sorted = times.toSorted((a, b) => a - b)
  const at = (share) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))]
  return { p50: at(0.5), p95: at(0.95) }
}

function print({ entries, dimension, stores, opening, starts }) {
  const n = (x, digits = 1) => x.toFixed(digits)
  console.log(`${entries} embeddings of ${dimension} numbers; put ${PUT} at a time; a query asks for ${QUERY}.\n`)
  console.log('| store | puts/s | gets/s | put p50 / p95 ms | query p50 / p95 ms | bytes each | prune to half ms |')
  console.log('|---|---|---|---|---|---|---|')
  for (const s of stores)
    console.log(
      `| ${s.name} | ${n(s.putsPerSecond, 0)} | ${n(s.getsPerSecond, 0)} | ${n(s.put.p50)} / ${n(s.put.p95)} | ${n(s.get.p50, 2)} / ${n(s.get.p95, 2)} | ${n(s.bytesEach, 0)} | ${n(s.pruneMs, 0)} |`,
    )
  console.log()
  for (const { index, ms } of opening)
    console.log(`Opening the folder ${index ? 'with' : 'without'} its index: ${n(ms)} ms.`)
  if (starts.length === 0) return console.log('\nCANOPY_MINILM names no checkpoint: warm starts were not measured.')
  console.log('\n| start | in memory | open ms | query ms | memory MiB |')
  console.log('|---|---|---|---|---|')
  for (const s of starts)
    console.log(`| ${s.kind} | ${s.loaded} | ${n(s.openMs, 0)} | ${n(s.queryMs, 0)} | ${n(s.rssMiB, 0)} |`)
}
