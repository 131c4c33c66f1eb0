import { InputError } from '../support/errors.ts'

/** Which table. */
export interface PostgresTable {
  /** The table's schema; the first of the search path where absent. */
  schema?: string
  /** `canopy_embeddings` where absent. A second table, `<table>_encoder`, says whose embeddings it has. */
  table?: string
}

/** Layout of the tables. */
export const SQL_VERSION = 1

const META_SUFFIX = '_encoder'
/** Bytes of the longest name that PostgreSQL keeps whole. */
const NAME_BYTES = 63

/** Names of the tables, quoted, and as people read them. */
export interface Names {
  embeddings: string
  meta: string
  lastUsed: string
  shown: string
  shownMeta: string
}

/**
 * @throws InputError for names that are not letters, digits and underlines, or are too long
 */
export function namesOf({ schema, table = 'canopy_embeddings' }: PostgresTable): Names {
  check('schema', schema ?? 'public', NAME_BYTES)
  check('table', table, NAME_BYTES - '_last_used_idx'.length)
  const inSchema = (name: string): string => (schema === undefined ? `"${name}"` : `"${schema}"."${name}"`)
  const shown = schema === undefined ? table : `${schema}.${table}`
  return {
    embeddings: inSchema(table),
    meta: inSchema(`${table}${META_SUFFIX}`),
    lastUsed: `"${table}_last_used_idx"`,
    shown,
    shownMeta: `${shown}${META_SUFFIX}`,
  }
}

function check(what: string, name: unknown, longest: number): void {
  if (typeof name === 'string' && /^[A-Za-z_][A-Za-z0-9_]*$/.test(name) && name.length <= longest) return
  throw new InputError(
    `The ${what} ${JSON.stringify(name)} is no name of a ${what}: letters without accents, digits and underlines were expected, not beginning with a digit, ${longest} at most.`,
  )
}

/** What an embedding counts as: its numbers; and its key, the row's header and its places in two indexes. */
export const entryBytes = (dimension: number): number => 4 * dimension + 200

export interface Statements {
  exists: string
  owner: string
  makeMeta: string
  /** $1 fingerprint, $2 dimension, $3 name */
  claim: string
  makeEmbeddings(dimension: number): string
  /** $1 keys, hexadecimal, with commas between, $2 fingerprint */
  find: string
  /** $1 keys as above, $2 fingerprint, $3 embeddings as pgvector reads them, with semicolons between */
  add: string
  /** $1 keys as above */
  touch: string
  count: string
  /** $1 how many */
  removeOldest: string
}

/**
 * The statements over some tables. Lists are sent as one text, which every client can send alike; embeddings are read in pgvector's
 * binary form, which is exact, as base64, which every client takes for text.
 *
 * @param extension the schema that pgvector lies in, which need not be in the search path; where absent it is
 */
export function statements(names: Names, extension?: string): Statements {
  const { embeddings, meta, lastUsed } = names
  const vector = extension === undefined ? '' : `"${extension.replaceAll('"', '""')}".`
  const keys = (parameter: string): string =>
    `(SELECT pg_catalog.decode(k, 'hex') AS key FROM pg_catalog.unnest(pg_catalog.string_to_array(${parameter}::text, ',')) AS k)`
  // should the tables be made anew for another encoder while a program has them open
  const isOwner = `EXISTS (SELECT FROM ${meta} WHERE fingerprint = $2::text)`
  return {
    exists: `SELECT pg_catalog.to_regclass('${meta}')::text AS meta, pg_catalog.to_regclass('${embeddings}')::text AS embeddings`,
    owner: `SELECT fingerprint, dimension, name, dtype, version FROM ${meta}`,
    // programs that begin at once: IF NOT EXISTS does not keep them from each other
    makeMeta: inTurn(
      `CREATE TABLE IF NOT EXISTS ${meta} (single boolean PRIMARY KEY DEFAULT true CHECK (single), fingerprint text NOT NULL, dimension integer NOT NULL, name text, dtype text NOT NULL, version integer NOT NULL, created_at timestamptz NOT NULL DEFAULT now())`,
    ),
    claim: `INSERT INTO ${meta} (fingerprint, dimension, name, dtype, version) VALUES ($1, $2, $3, 'float32', ${SQL_VERSION}) ON CONFLICT DO NOTHING`,
    makeEmbeddings: (dimension) =>
      inTurn(
        `CREATE TABLE IF NOT EXISTS ${embeddings} (key bytea PRIMARY KEY CHECK (octet_length(key) = 16), embedding ${vector}vector(${dimension}) NOT NULL, last_used date NOT NULL DEFAULT current_date)`,
        `CREATE INDEX IF NOT EXISTS ${lastUsed} ON ${embeddings} (last_used)`,
      ),
    find: `SELECT w.place::integer AS place, pg_catalog.encode(${vector}vector_send(e.embedding), 'base64') AS embedding, e.last_used < current_date AS stale FROM pg_catalog.unnest(pg_catalog.string_to_array($1::text, ',')) WITH ORDINALITY AS w(key, place) JOIN ${embeddings} e ON e.key = pg_catalog.decode(w.key, 'hex') WHERE ${isOwner}`,
    add: `INSERT INTO ${embeddings} (key, embedding) SELECT pg_catalog.decode(n.key, 'hex'), n.embedding::${vector}vector FROM ROWS FROM (pg_catalog.unnest(pg_catalog.string_to_array($1::text, ',')), pg_catalog.unnest(pg_catalog.string_to_array($3::text, ';'))) AS n(key, embedding) WHERE ${isOwner} ON CONFLICT (key) DO NOTHING`,
    // rows that another program is marking just now need not be marked again
    touch: `UPDATE ${embeddings} SET last_used = current_date WHERE key IN (SELECT e.key FROM ${embeddings} e JOIN ${keys('$1')} w ON w.key = e.key WHERE e.last_used < current_date FOR UPDATE OF e SKIP LOCKED)`,
    count: `SELECT count(*) AS rows FROM ${embeddings}`,
    removeOldest: `WITH removed AS (DELETE FROM ${embeddings} WHERE key IN (SELECT key FROM ${embeddings} ORDER BY last_used LIMIT $1::integer FOR UPDATE SKIP LOCKED) RETURNING 1) SELECT count(*) AS removed FROM removed`,
  }
}

/** Statements without parameters that no two programs run at once. */
function inTurn(...all: string[]): string {
  const body = ['PERFORM pg_catalog.pg_advisory_xact_lock(1128353616, 1)', ...all].map((one) => `${one};`).join(' ')
  return `DO $canopy$ BEGIN ${body} END $canopy$`
}

/**
 * The statements that make the tables of an encoder's embeddings, for those who make tables themselves and open the store with
 * `create: false`: run them with the schema of the extension `vector` in the search path.
 *
 * @param space of `Embedder.fingerprint`, `Embedder.dimension` and a name for messages
 */
export function postgresTables(
  space: { fingerprint: string; dimension: number; name?: string },
  options: PostgresTable = {},
): string[] {
  const { fingerprint, dimension, name } = space
  if (!/^[0-9a-f]{64}$/.test(fingerprint)) throw new RangeError('A fingerprint has 64 hexadecimal digits.')
  if (!Number.isInteger(dimension) || dimension < 1) throw new RangeError('A dimension is a whole number above 0.')
  const names = namesOf(options)
  const { makeMeta, makeEmbeddings } = statements(names)
  const literal = name === undefined ? 'NULL' : `E'${name.replaceAll('\\', '\\\\').replaceAll("'", "\\'")}'`
  return [
    makeMeta,
    `INSERT INTO ${names.meta} (fingerprint, dimension, name, dtype, version) VALUES ('${fingerprint}', ${dimension}, ${literal}, 'float32', ${SQL_VERSION})`,
    makeEmbeddings(dimension),
  ]
}
