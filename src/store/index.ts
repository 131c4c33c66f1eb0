/**
 * Embedding stores: where node embeddings stay between questions and between programs.
 *
 * - `store.ts` what a store is; `disk.ts` one in the files of a folder (`record-file.ts` a file, `key-index.ts` what is in memory of
 *   it, `lock.ts` who may write to it)
 * - `postgres.ts` one in a table of PostgreSQL with pgvector, `postgres-sql.ts` its statements
 *
 * @packageDocumentation
 */
export { type DiskStore, type DiskStoreOptions, openDiskStore } from './disk.ts'
export {
  openPostgresStore,
  type PostgresClient,
  type PostgresStore,
  type PostgresStoreOptions,
  vectorText,
} from './postgres.ts'
export { type PostgresTable, postgresTables } from './postgres-sql.ts'
export { type EmbeddingSpace, type EmbeddingStore, KEY_BYTES } from './store.ts'
