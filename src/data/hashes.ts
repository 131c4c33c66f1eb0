// Apart from what the package's declarations lead to: these name Buffer, a type that a program may do without.
import { createHash } from 'node:crypto'

export function sha256(text: string): Buffer {
  return createHash('sha256').update(text).digest()
}

/** Bytes of a hashed key: 16 of SHA-256, so that two ids never meet in practice. */
export const KEY_BYTES = 16

export const hashedKey = (key: string): Buffer => sha256(key).subarray(0, KEY_BYTES)
