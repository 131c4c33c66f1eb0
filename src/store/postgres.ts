import { InputError } from '../support/errors.ts'
import { entryBytes, type Names, namesOf, type PostgresTable, SQL_VERSION, statements } from './postgres-sql.ts'
import { checkEntries, checkRequest, type EmbeddingSpace, type EmbeddingStore } from './store.ts'

/** What runs SQL: a Client or a Pool of `pg`, a PGlite, or anything else with this one function. */
export interface PostgresClient {
  query(text: string, values?: unknown[]): Promise<{ rows: unknown[] }>
}

export interface PostgresStoreOptions extends PostgresTable {
  /**
   * It stays its owner's to end. A store sends it one statement at a time; open several stores of a table over a pool where several
   * should be under way at once.
   */
  client: PostgresClient
  /** Make the tables with the first embedding where they are missing; true where absent. */
  create?: boolean
  /**
   * Never write: what the store lacks is computed and not kept. For replicas, and for users who may only read. Without it such a user's
   * first new embedding is an error.
   */
  readOnly?: boolean
  /** Most bytes of embeddings, see `prune`; beyond it the least recently used ones are removed, down to nine tenths of it. */
  maxBytes?: number
}

/** Embeddings of one encoder in a table of PostgreSQL. */
export interface PostgresStore extends EmbeddingStore {
  /**
   * Removes the least recently used embeddings until the others take no more than `maxBytes`, each counted as 4 bytes a number and 200
   * for the rest of its row and its place in the indexes. The disk has the room again when the table was vacuumed.
   *
   * @returns how many were removed
   */
  prune(maxBytes: number): Promise<number>
  close(): Promise<void>
}

/** Embeddings of one statement take about that many bytes as text. */
const BATCH_BYTES = 1 << 20
const KEYS_AT_ONCE = 1000
/** Rows that one statement removes. */
const PRUNED_AT_ONCE = 10_000
const KEPT_SHARE = 0.9
/** Most numbers of pgvector's `vector`. */
const MOST_NUMBERS = 16_000

/**
 * Opens an embedding store in a table of PostgreSQL, as a `vector(dimension)` of pgvector, so that the table serves similarity search
 * in SQL, too. Numbers come back bit for bit. A table belongs to one encoder: the first whose embeddings it took; any other one is
 * refused. Any number of programs may use a table at once. When a row was used last is known to the day.
 *
 * A statement that fails fails what was asked of the store, which may be asked again: rows are whole, and known ones stay.
 *
 * @throws InputError where the database lacks the extension `vector` or does not answer, and for names that are none
 * @example
 * import { Pool } from 'pg'
 * import { openPostgresStore } from 'canopy-encoder/postgres'
 *
 * const pool = new Pool({ connectionString: process.env.DATABASE_URL })
 * const store = await openPostgresStore({ client: pool })
 * const { query, node, close } = await openPair(pair, { store })
 */
export async function openPostgresStore(options: PostgresStoreOptions): Promise<PostgresStore> {
  const { client, create = true, readOnly = false, maxBytes = Number.POSITIVE_INFINITY } = options
  if (typeof client?.query !== 'function')
    throw new InputError('"client" has no function "query"; give a Pool or a Client of pg, or a PGlite.')
  if (!(maxBytes > 0)) throw new RangeError('"maxBytes" is a number above 0.')
  const names = namesOf(options)
  /** The encoder that the table was found to belong to. */
  let owner: EmbeddingSpace | undefined
  const run = async (doing: string, text: string, values: unknown[] = []): Promise<Record<string, unknown>[]> => {
    try {
      return (await client.query(text, values)).rows as Record<string, unknown>[]
    } catch (error) {
      if (codeOf(error) === TABLE_MISSING) owner = undefined
      throw databaseError(error, doing, names)
    }
  }
  const [extension] = await run('cannot be opened', EXTENSION)
  if (extension === undefined)
    throw new InputError(
      'The database has no pgvector, which embeddings are stored with. Run CREATE EXTENSION vector; in it, as a user who may; where PostgreSQL does not know the extension, install pgvector on its machine first.',
    )
  const sql = statements(names, String(extension.schema))

  let added = Number.POSITIVE_INFINITY
  let turn: Promise<unknown> = Promise.resolve()
  let closed = false
  let marks = !readOnly
  const inTurn = <T>(action: () => Promise<T>): Promise<T> => {
    const result = turn.then(() => {
      if (closed) throw new Error('The embedding store is closed.')
      return action()
    })
    turn = result.catch(() => {})
    return result
  }

  /** Whether the table is there, and is this encoder's. */
  const ready = async (space: EmbeddingSpace): Promise<boolean> => {
    if (owner === undefined) {
      const [there] = await run('cannot be read', sql.exists)
      if (there?.meta == null) {
        if (there?.embeddings == null) return false
        throw new InputError(
          `The table ${names.shown} is there without ${names.shownMeta}, which would say whose embeddings it has: it was not made by this program. Name another table.`,
        )
      }
      const [found] = await run('cannot be read', sql.owner)
      if (found === undefined || there.embeddings == null) return false
      owner = ownerOf(found, names)
    }
    if (owner.fingerprint !== space.fingerprint || owner.dimension !== space.dimension)
      throw new InputError(
        `The table ${names.shown} holds embeddings of another encoder (${described(owner)}) than the one that asks (${described(space)}). Name another table, one for each encoder.`,
      )
    return true
  }

  const makeTables = async (space: EmbeddingSpace): Promise<void> => {
    const { fingerprint, dimension, name = null } = space
    if (dimension > MOST_NUMBERS)
      throw new InputError(
        `pgvector stores at most ${MOST_NUMBERS} numbers a vector, the embeddings of ${described(space)} have more. Use a store on disk.`,
      )
    if (!create)
      throw new InputError(
        `The table ${names.shown} is missing and "create" is false. Make it as postgresTables says, or leave "create" out.`,
      )
    await run('cannot be made', sql.makeMeta)
    // whoever is first owns the table
    await run('cannot be made', sql.claim, [fingerprint, dimension, name])
    const [found] = await run('cannot be read', sql.owner)
    const claimed = ownerOf(found ?? {}, names)
    if (claimed.fingerprint === fingerprint && claimed.dimension === dimension)
      await run('cannot be made', sql.makeEmbeddings(dimension))
    owner = undefined
    await ready(space)
  }

  /** Sets the day of rows that were not used yet today. Who may not write reads all the same. */
  const markUsed = async (stale: readonly string[]): Promise<void> => {
    for (let from = 0; marks && from < stale.length; from += KEYS_AT_ONCE)
      await run('cannot be written', sql.touch, [stale.slice(from, from + KEYS_AT_ONCE).join(',')]).catch(
        (error: Error) => {
          const code = codeOf(error.cause)
          if (code !== '42501' && code !== '25006') throw error
          marks = false
        },
      )
  }

  const prune = async (limit: number, dimension: number): Promise<number> => {
    const most = Math.floor(limit / entryBytes(dimension))
    const [counted] = await run('cannot be read', sql.count)
    const excess = Number(counted?.rows) - most
    let removed = 0
    while (removed < excess) {
      const [result] = await run('cannot be pruned', sql.removeOldest, [Math.min(PRUNED_AT_ONCE, excess - removed)])
      const rows = Number(result?.removed)
      removed += rows
      // what is left is locked by others, who remove it, too
      if (rows === 0) break
    }
    return removed
  }

  return {
    getMany: (space, keys) =>
      inTurn(async () => {
        checkRequest(space, keys)
        const found: (Float32Array | undefined)[] = new Array(keys.length).fill(undefined)
        if (!(await ready(space))) return found
        const stale: string[] = []
        for (let from = 0; from < keys.length; from += KEYS_AT_ONCE) {
          const names = keys.slice(from, from + KEYS_AT_ONCE).map(hexOf)
          for (const row of await run('cannot be read', sql.find, [names.join(','), space.fingerprint])) {
            const place = from + Number(row.place) - 1
            found[place] = numbersOf(row.embedding, space)
            if (row.stale === true) stale.push(names[place - from] as string)
          }
        }
        await markUsed(stale)
        return found
      }),
    putMany: (space, keys, embeddings) =>
      inTurn(async () => {
        checkEntries(space, keys, embeddings)
        if (readOnly || keys.length === 0) return
        if (!embeddings.every(Number.isFinite))
          throw new RangeError('An embedding has a number that is not finite, which pgvector does not take.')
        if (!(await ready(space))) await makeTables(space)
        const { dimension } = space
        const atOnce = Math.max(1, Math.floor(BATCH_BYTES / (12 * dimension + 40)))
        // in the order of the keys, so that no two programs wait for each other
        const order = keys
          .map((key, place) => ({ hex: hexOf(key), place }))
          .sort((a, b) => (a.hex < b.hex ? -1 : a.hex > b.hex ? 1 : a.place - b.place))
        for (let from = 0; from < order.length; from += atOnce) {
          const batch = order.slice(from, from + atOnce)
          await run('cannot be written', sql.add, [
            batch.map(({ hex }) => hex).join(','),
            space.fingerprint,
            batch
              .map(({ place }) => vectorText(embeddings.subarray(place * dimension, (place + 1) * dimension)))
              .join(';'),
          ])
        }
        if (maxBytes === Number.POSITIVE_INFINITY) return
        added += keys.length * entryBytes(dimension)
        // counting reads a whole index
        if (added < ((1 - KEPT_SHARE) / 2) * maxBytes) return
        added = 0
        const [counted] = await run('cannot be read', sql.count)
        if (Number(counted?.rows) * entryBytes(dimension) > maxBytes) await prune(KEPT_SHARE * maxBytes, dimension)
      }),
    prune: (limit) =>
      inTurn(async () => {
        if (!(limit >= 0)) throw new RangeError('"maxBytes" is a number from 0.')
        const [there] = await run('cannot be read', sql.exists)
        if (there?.meta == null || there.embeddings == null) return 0
        const [found] = await run('cannot be read', sql.owner)
        return found === undefined ? 0 : prune(limit, ownerOf(found, names).dimension)
      }),
    close() {
      turn = turn.then(() => {
        closed = true
      })
      return turn as Promise<void>
    },
  }
}

const EXTENSION =
  "SELECT n.nspname AS schema FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'vector'"

/** An embedding as pgvector reads it, `[1,0.5]`, for a parameter of a statement: `… <=> $1::vector`. */
export function vectorText(embedding: Float32Array): string {
  let text = '['
  for (const [i, x] of embedding.entries()) {
    if (i > 0) text += ','
    // nine digits tell any float32 from all others
    text += Object.is(x, -0) ? '-0' : Number.isInteger(x) && Math.abs(x) < 1e9 ? String(x) : x.toPrecision(9)
  }
  return `${text}]`
}

/** As pgvector sends a vector, in base64: uint16 numbers, uint16 unused, float32 numbers, all of them big-endian. */
function numbersOf(sent: unknown, { dimension }: EmbeddingSpace): Float32Array {
  const bytes = Buffer.from(typeof sent === 'string' ? sent : '', 'base64')
  if (bytes.length !== 4 + 4 * dimension)
    throw new InputError(
      `The database client gives an embedding as ${typeof sent === 'string' ? `${bytes.length} bytes` : typeof sent}; the base64 of ${4 + 4 * dimension} bytes was expected.`,
    )
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  const embedding = new Float32Array(dimension)
  for (let i = 0; i < dimension; i++) embedding[i] = view.getFloat32(4 + 4 * i)
  return embedding
}

function hexOf({ buffer, byteOffset, byteLength }: Uint8Array): string {
  return Buffer.from(buffer, byteOffset, byteLength).toString('hex')
}

function ownerOf(row: Record<string, unknown>, names: Names): EmbeddingSpace {
  const { fingerprint, dimension, name, dtype, version } = row
  if (version !== SQL_VERSION || dtype !== 'float32')
    throw new InputError(
      `The table ${names.shown} was made by another version of this program (layout ${version}, ${dtype}; this one has ${SQL_VERSION}, float32). Name another table.`,
    )
  return {
    fingerprint: String(fingerprint).trim(),
    dimension: Number(dimension),
    ...(typeof name === 'string' ? { name } : {}),
  }
}

function described({ fingerprint, dimension, name }: EmbeddingSpace): string {
  return `${name === undefined ? '' : `${name}, `}fingerprint ${fingerprint}, ${dimension} numbers`
}

const TABLE_MISSING = '42P01'

const codeOf = (error: unknown): unknown => (error as { code?: unknown } | null | undefined)?.code

/** What to do about errors of PostgreSQL, by their SQLSTATE. */
const WAYS_OUT: Record<string, string> = {
  '42501': 'Grant the user what is missing, or open the store with "readOnly" where it only reads.',
  '25006': 'The server or the user only reads: open the store with "readOnly".',
  '3F000': 'Make the schema first: CREATE SCHEMA …;',
  [TABLE_MISSING]: 'The table was removed meanwhile. What was asked for may be asked again.',
  '53100': 'The disk of the server is full: free some space, or prune the store.',
  '57014': 'The statement took longer than the server or the client lets it. What was asked for may be asked again.',
}

function databaseError(error: unknown, doing: string, names: Names): InputError {
  const code = codeOf(error)
  const message = error instanceof Error ? error.message : String(error)
  const wayOut = typeof code === 'string' ? WAYS_OUT[code] : undefined
  const reason = message === '' ? String(code ?? 'the database does not answer') : message
  return new InputError(
    `The embedding store in the table ${names.shown} ${doing}: ${reason.replace(/[.\s]+$/, '')}${typeof code === 'string' ? ` (${code})` : ''}.${wayOut === undefined ? '' : ` ${wayOut}`}`,
    {},
    error,
  )
}
