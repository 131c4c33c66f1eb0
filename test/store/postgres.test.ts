import { once } from 'node:events'
import { type AddressInfo, createServer } from 'node:net'
import { join } from 'node:path'
import { PGlite } from '@electric-sql/pglite'
import { vector as pgvector } from '@electric-sql/pglite-pgvector'
import { PGLiteSocketServer } from '@electric-sql/pglite-socket'
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { openPair, readEncoderPair } from '../../src/encoder/index.ts'
import { openPostgresStore, type PostgresClient, postgresTables, vectorText } from '../../src/postgres.ts'
import { expected, tinyBert } from '../encoder/fixtures.ts'
import { describeStore, key, keys, otherSpace, space, vector, vectors } from './contract.ts'

let db: PGlite
let server: PGLiteSocketServer
let connection: pg.ClientConfig
/** What opening a store said before there was the extension. */
let withoutExtension: unknown
let tables = 0
const newTable = (): string => `embeddings_${tables++}`

beforeAll(async () => {
  db = await PGlite.create({ extensions: { vector: pgvector } })
  withoutExtension = await openPostgresStore({ client: db }).catch((error: Error) => error)
  await db.query('CREATE EXTENSION vector')
  // a port that is free
  const probe = createServer().listen(0, '127.0.0.1')
  await once(probe, 'listening')
  const { port } = probe.address() as AddressInfo
  probe.close()
  await once(probe, 'close')
  server = new PGLiteSocketServer({ db, host: '127.0.0.1', port, maxConnections: 20 })
  await server.start()
  connection = { host: '127.0.0.1', port, user: 'postgres', database: 'postgres', ssl: false }
})

afterAll(async () => {
  await server?.stop()
  await db?.close()
})

async function newClient(): Promise<pg.Client> {
  const client = new pg.Client(connection)
  await client.connect()
  onTestFinished(() => client.end().catch(() => {}))
  return client
}

function newPool(): pg.Pool {
  const pool = new pg.Pool({ ...connection, max: 4 })
  onTestFinished(() => pool.end())
  return pool
}

const tableOf = (client: () => Promise<PostgresClient>) => async () => {
  const table = newTable()
  return { open: async () => openPostgresStore({ client: await client(), table }) }
}

describeStore(
  'openPostgresStore over PGlite',
  tableOf(async () => db),
)
describeStore('openPostgresStore over a client of pg, by TCP', tableOf(newClient))
describeStore(
  'openPostgresStore over a pool of pg, by TCP',
  tableOf(async () => newPool()),
)

const rowsOf = async (text: string, values: unknown[] = []): Promise<Record<string, unknown>[]> =>
  (await db.query(text, values)).rows as Record<string, unknown>[]
const daysAgo = (table: string, days: number, numbers: readonly number[]): Promise<unknown> =>
  db.query(`UPDATE ${table} SET last_used = current_date - ${days} WHERE key = ANY($1)`, [numbers.map(key)])
const found = (embeddings: readonly (Float32Array | undefined)[]): number[] =>
  embeddings.flatMap((embedding, n) => (embedding === undefined ? [] : [n]))

describe('a table of embeddings', () => {
  it('is made with the first embedding, and says whose they are', async () => {
    const table = newTable()
    const store = await openPostgresStore({ client: db, table })
    expect(await store.getMany(space, keys(0, 1))).toEqual([undefined])
    expect(await rowsOf('SELECT to_regclass($1) AS there', [table])).toEqual([{ there: null }])
    await store.putMany(space, keys(0, 2), vectors(0, 2))
    const [meta] = await rowsOf(`SELECT * FROM ${table}_encoder`)
    expect(meta).toMatchObject({ ...space, dtype: 'float32', version: 1, created_at: expect.any(Date) })
    expect(await rowsOf(`SELECT count(*)::int AS rows FROM ${table}`)).toEqual([{ rows: 2 }])
  })

  it('refuses another encoder, naming both, before anything is written', async () => {
    const table = newTable()
    const store = await openPostgresStore({ client: db, table })
    await store.putMany(space, keys(0, 2), vectors(0, 2))
    const refused = new RegExp(
      `table ${table} holds embeddings of another encoder \\(tests/one, fingerprint ${space.fingerprint}, 3 numbers\\) than the one that asks \\(tests/other, fingerprint ${otherSpace.fingerprint}`,
    )
    for (const again of [store, await openPostgresStore({ client: db, table })]) {
      await expect(again.getMany(otherSpace, [])).rejects.toThrow(refused)
      await expect(again.getMany(otherSpace, keys(0, 1))).rejects.toThrow(refused)
      await expect(again.putMany(otherSpace, keys(5, 6), vectors(5, 6))).rejects.toThrow(refused)
      await expect(again.getMany({ ...space, dimension: 4 }, [])).rejects.toThrow(/4 numbers/)
    }
    expect(await rowsOf(`SELECT count(*)::int AS rows FROM ${table}`)).toEqual([{ rows: 2 }])
  })

  it('belongs to one of two encoders that begin at once', async () => {
    const table = newTable()
    const puts = [space, otherSpace, { ...space, dimension: 6 }].map(async (of) => {
      const store = await openPostgresStore({ client: await newClient(), table })
      await store.putMany(of, keys(0, 2), vectors(0, of.dimension === 6 ? 4 : 2))
    })
    const ends = await Promise.allSettled(puts)
    const refused = ends.filter((end) => end.status === 'rejected').map(({ reason }) => String(reason))
    expect(refused).toHaveLength(2)
    for (const reason of refused) expect(reason).toMatch(/holds embeddings of another encoder/)
  })

  it('never mixes encoders, though the table was made anew while a program had it open', async () => {
    const table = newTable()
    const store = await openPostgresStore({ client: db, table })
    await store.putMany(space, keys(0, 2), vectors(0, 2))
    await db.query(`UPDATE ${table}_encoder SET fingerprint = $1`, [otherSpace.fingerprint])
    expect(await store.getMany(space, keys(0, 2))).toEqual([undefined, undefined])
    await store.putMany(space, keys(2, 3), vectors(2, 3))
    expect(await rowsOf(`SELECT count(*)::int AS rows FROM ${table}`)).toEqual([{ rows: 2 }])
  })

  it('does not take a table that is something else, or of another layout', async () => {
    const table = newTable()
    await db.query(`CREATE TABLE ${table} (id integer)`)
    const store = await openPostgresStore({ client: db, table })
    await expect(store.putMany(space, keys(0, 1), vectors(0, 1))).rejects.toThrow(/not made by this program/)
    const newer = newTable()
    await (await openPostgresStore({ client: db, table: newer })).putMany(space, keys(0, 1), vectors(0, 1))
    await db.query(`UPDATE ${newer}_encoder SET version = 9`)
    const late = await openPostgresStore({ client: db, table: newer })
    await expect(late.getMany(space, [])).rejects.toThrow(/layout 9/)
  })

  it('lies in the schema that is named, whatever the search path', async () => {
    await db.query('CREATE SCHEMA IF NOT EXISTS "Shelf"')
    const client = await newClient()
    await client.query("SET search_path = ''")
    onTestFinished(async () => {
      await client.query('RESET search_path')
    })
    const table = newTable()
    const store = await openPostgresStore({ client, schema: 'Shelf', table })
    await store.putMany(space, keys(0, 2), vectors(0, 2))
    expect(await store.getMany(space, keys(0, 2))).toEqual([vector(0), vector(1)])
    expect(await rowsOf(`SELECT count(*)::int AS rows FROM "Shelf".${table}`)).toEqual([{ rows: 2 }])
    const nowhere = await openPostgresStore({ client: db, schema: 'nowhere', table })
    await expect(nowhere.putMany(space, keys(0, 1), vectors(0, 1))).rejects.toThrow(/CREATE SCHEMA/)
  })

  it('takes identifiers as names and nothing else', async () => {
    const wrong = ['', 'a b', 'x"; DROP TABLE y; --', "x' OR '1'='1", '1st', 'naïve', 'a.b', 'x'.repeat(60), 7 as never]
    for (const table of wrong)
      await expect(openPostgresStore({ client: db, table })).rejects.toThrow(/is no name of a table/)
    await expect(openPostgresStore({ client: db, schema: 'a"b' })).rejects.toThrow(/is no name of a schema/)
    // words of SQL are names when they are quoted
    const store = await openPostgresStore({ client: db, table: 'select' })
    await store.putMany({ ...space, name: `Robert'); DROP TABLE "select";--` }, keys(0, 1), vectors(0, 1))
    expect(await store.getMany(space, keys(0, 1))).toEqual([vector(0)])
  })

  it('is made by those who make tables themselves', async () => {
    const table = newTable()
    const store = await openPostgresStore({ client: db, table, create: false })
    await expect(store.putMany(space, keys(0, 1), vectors(0, 1))).rejects.toThrow(/is missing and "create" is false/)
    for (const statement of postgresTables({ ...space, name: "it's" }, { table })) await db.query(statement)
    await store.putMany(space, keys(0, 1), vectors(0, 1))
    expect(await store.getMany(space, keys(0, 1))).toEqual([vector(0)])
    expect(await rowsOf(`SELECT name FROM ${table}_encoder`)).toEqual([{ name: "it's" }])
  })

  it('is made where pgvector lies in a schema of its own', () => {
    expect(postgresTables(space).join(' ')).not.toContain('"public"')
  })

  it('that is removed meanwhile is made anew when it is asked again', async () => {
    const table = newTable()
    const store = await openPostgresStore({ client: db, table })
    await store.putMany(space, keys(0, 1), vectors(0, 1))
    await db.exec(`DROP TABLE ${table}, ${table}_encoder`)
    await expect(store.getMany(space, keys(0, 1))).rejects.toThrow(/was removed meanwhile.*asked again/)
    expect(await store.getMany(space, keys(0, 1))).toEqual([undefined])
    await store.putMany(space, keys(0, 1), vectors(0, 1))
    expect(await store.getMany(space, keys(0, 1))).toEqual([vector(0)])
  })

  it('serves similarity search, with an index and without', async () => {
    const table = newTable()
    const store = await openPostgresStore({ client: db, table })
    const four = { ...space, dimension: 4 }
    const embeddings = Float32Array.of(...[1, 0, 0, 0], ...[0.6, 0.8, 0, 0], ...[0, 0, 1, 0], ...[-1, 0, 0, 0])
    await store.putMany(four, keys(0, 4), embeddings)
    const search = `SELECT key, 1 - (embedding <=> $1::vector) AS cosine FROM ${table} ORDER BY embedding <=> $1::vector LIMIT 2`
    for (const index of [undefined, `CREATE INDEX ON ${table} USING hnsw (embedding vector_cosine_ops)`]) {
      if (index !== undefined) await db.query(index)
      const rows = await rowsOf(search, [vectorText(Float32Array.of(2, 0.1, 0, 0))])
      expect(rows.map((row) => [...(row.key as Uint8Array)])).toEqual([[...key(0)], [...key(1)]])
      expect(rows[0]?.cosine).toBeCloseTo(0.99875, 5)
    }
  })
})

describe('an encoder over a table', () => {
  const pairOf = () => readEncoderPair(tinyBert('mean'), { adapter: join(tinyBert('mean'), 'adapter') })

  it('computes a node once for all programs, and finds nodes for a question in SQL', async () => {
    const table = newTable()
    const { texts } = expected('mean')
    const cold = await openPair(await pairOf(), {
      store: await openPostgresStore({ client: newPool(), table }),
      threads: 1,
    })
    const computed = await cold.node.embedTexts(texts, 'node')
    await cold.close()
    const warm = await openPair(await pairOf(), { store: await openPostgresStore({ client: db, table }), threads: 1 })
    expect((await warm.node.embedTexts(texts, 'node')).embeddings).toEqual(computed.embeddings)
    const asked = await warm.query.embedTexts(['a question'], 'query')
    expect([warm.query.loaded, warm.node.loaded]).toEqual([true, false])

    const passages = `${table}_passages`
    await db.query(`CREATE TABLE ${passages} (id integer, node_key bytea)`)
    const nodeKeys = await warm.node.keys(
      texts.map((text) => ({ text })),
      'node',
    )
    for (const [id, nodeKey] of nodeKeys.entries())
      await db.query(`INSERT INTO ${passages} VALUES ($1, $2)`, [id, nodeKey])
    const ranked = await rowsOf(
      `SELECT p.id, 1 - (e.embedding <=> $1::vector) AS cosine FROM ${table} e JOIN ${passages} p ON p.node_key = e.key ORDER BY e.embedding <=> $1::vector, p.id`,
      [vectorText(asked.embeddings)],
    )
    const dimension = warm.node.dimension
    const dot = (id: number): number =>
      asked.embeddings.reduce((sum, x, k) => sum + x * (computed.embeddings[id * dimension + k] as number), 0)
    expect(ranked).toHaveLength(texts.length)
    for (const { id, cosine } of ranked) expect(cosine).toBeCloseTo(dot(id as number), 5)
    await warm.close()
  })

  it('refuses another encoder before it computes anything', async () => {
    const table = newTable()
    const store = await openPostgresStore({ client: db, table })
    await store.putMany(otherSpace, keys(0, 1), vectors(0, 1))
    await expect(openPair(await pairOf(), { store, threads: 1 })).rejects.toThrow(
      /another encoder \(tests\/other, .*than the one that asks \(mean, /,
    )
  })
})

describe('pruning a table', () => {
  const bytes = (entries: number): number => entries * (4 * 3 + 200)

  it('removes what was not used for longest', async () => {
    const table = newTable()
    const store = await openPostgresStore({ client: db, table })
    await store.putMany(space, keys(0, 10), vectors(0, 10))
    await daysAgo(table, 5, [0, 1, 2, 3, 4, 5])
    await daysAgo(table, 9, [6, 7])
    // reading is using
    await store.getMany(space, keys(0, 2))
    expect(await store.prune(bytes(10))).toBe(0)
    expect(await store.prune(bytes(4))).toBe(6)
    expect(found(await store.getMany(space, keys(0, 10)))).toEqual([0, 1, 8, 9])
    expect(await store.prune(0)).toBe(4)
  })

  it('keeps a table under its limit', async () => {
    const table = newTable()
    const store = await openPostgresStore({ client: db, table, maxBytes: bytes(100) })
    for (let n = 0; n < 400; n += 20) {
      await store.putMany(space, keys(n, n + 20), vectors(n, n + 20))
      await daysAgo(
        table,
        400 - n,
        Array.from({ length: 20 }, (_, i) => n + i),
      )
      const [count] = await rowsOf(`SELECT count(*)::int AS rows FROM ${table}`)
      expect(count?.rows).toBeLessThanOrEqual(100)
      expect(found(await store.getMany(space, keys(n, n + 20)))).toHaveLength(20)
      await daysAgo(
        table,
        400 - n,
        Array.from({ length: 20 }, (_, i) => n + i),
      )
    }
  })

  it('removes nothing of a table that is not there', async () => {
    expect(await (await openPostgresStore({ client: db, table: newTable() })).prune(0)).toBe(0)
  })
})

describe('a database that does not do what it is asked', () => {
  it('says that pgvector is missing and how to get it', () => {
    expect(String(withoutExtension)).toMatch(/no pgvector.*CREATE EXTENSION vector;/)
  })

  it('lets a user read who may not write, and says what to grant', async () => {
    const table = newTable()
    await (await openPostgresStore({ client: db, table })).putMany(space, keys(0, 2), vectors(0, 2))
    await daysAgo(table, 3, [0, 1])
    await db.exec(`CREATE ROLE reader_${table}; GRANT SELECT ON ${table}, ${table}_encoder TO reader_${table}`)
    await db.exec(`SET ROLE reader_${table}`)
    onTestFinished(async () => {
      await db.exec('RESET ROLE')
    })
    const store = await openPostgresStore({ client: db, table })
    expect(found(await store.getMany(space, keys(0, 3)))).toEqual([0, 1])
    await expect(store.putMany(space, keys(2, 3), vectors(2, 3))).rejects.toThrow(/permission denied.*\(42501\).*Grant/)
    const reader = await openPostgresStore({ client: db, table, readOnly: true })
    await reader.putMany(space, keys(2, 3), vectors(2, 3))
    expect(found(await reader.getMany(space, keys(0, 3)))).toEqual([0, 1])
  })

  it('passes on a connection that breaks, and goes on over the next', async () => {
    const table = newTable()
    const pool = newPool()
    pool.on('error', () => {})
    const store = await openPostgresStore({ client: pool, table })
    await store.putMany(space, keys(0, 2), vectors(0, 2))
    // the first of the pool's connections to be used is cut
    const lent = await pool.connect()
    lent.on('error', () => {})
    ;(lent as unknown as { connection: { stream: { destroy(): void } } }).connection.stream.destroy()
    const cut = await openPostgresStore({ client: lent, table }).catch((error: Error) => error)
    expect(cut).toBeInstanceOf(Error)
    expect((cut as Error).message).toMatch(/embedding store in the table .* cannot be opened: .*onnection/)
    lent.release(true)
    expect(await store.getMany(space, keys(0, 2))).toEqual([vector(0), vector(1)])
  })

  it('passes on a statement that takes too long', async () => {
    const table = newTable()
    const slow: PostgresClient = {
      query: (text, values) =>
        text.startsWith('INSERT') && values?.length === 3 && String(values[0]).length === 32
          ? Promise.reject(Object.assign(new Error('canceling statement due to statement timeout'), { code: '57014' }))
          : db.query(text, values),
    }
    const store = await openPostgresStore({ client: slow, table })
    await store.putMany(space, keys(0, 2), vectors(0, 2))
    const late = store.putMany(space, keys(2, 3), vectors(2, 3))
    await expect(late).rejects.toThrow(/statement timeout \(57014\)\. The statement took longer/)
    expect(found(await store.getMany(space, keys(0, 3)))).toEqual([0, 1])
  })

  it('says what a client is', async () => {
    await expect(openPostgresStore({ client: {} as PostgresClient })).rejects.toThrow(/no function "query"/)
    const mute: PostgresClient = { query: () => Promise.reject(new Error('connect ECONNREFUSED 127.0.0.1:5432')) }
    await expect(openPostgresStore({ client: mute })).rejects.toThrow(/cannot be opened: connect ECONNREFUSED/)
  })

  it('refuses what pgvector cannot have', async () => {
    const store = await openPostgresStore({ client: db, table: newTable() })
    await expect(store.putMany(space, keys(0, 1), Float32Array.of(1, Number.NaN, 0))).rejects.toThrow(/not finite/)
    const long = { ...space, dimension: 16_001 }
    await expect(store.putMany(long, keys(0, 1), new Float32Array(16_001))).rejects.toThrow(/at most 16000 numbers/)
  })

  it('does not take what is no embedding for one', async () => {
    const table = newTable()
    await (await openPostgresStore({ client: db, table })).putMany(space, keys(0, 1), vectors(0, 1))
    const odd: PostgresClient = {
      async query(text, values) {
        const { rows } = await db.query(text, values)
        return {
          rows: rows.map((row) => (Object.hasOwn(row as object, 'embedding') ? { place: 1, embedding: 5 } : row)),
        }
      },
    }
    const store = await openPostgresStore({ client: odd, table })
    await expect(store.getMany(space, keys(0, 1))).rejects.toThrow(
      /gives an embedding as number; the base64 of 16 bytes/,
    )
  })
})
