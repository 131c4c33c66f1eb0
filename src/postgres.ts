/**
 * Node embeddings in PostgreSQL with pgvector: a store for `openPair` and `openEncoder`, over any client that has `query`, and a table
 * that serves similarity search in SQL.
 *
 * @packageDocumentation
 */
export {
  type EmbeddingSpace,
  type EmbeddingStore,
  openPostgresStore,
  type PostgresClient,
  type PostgresStore,
  type PostgresStoreOptions,
  type PostgresTable,
  postgresTables,
  vectorText,
} from './store/index.ts'
