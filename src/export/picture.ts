import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { crc32, deflateSync } from 'node:zlib'
import { fileError } from '../support/files.ts'

const [WIDTH, HEIGHT] = [96, 64]

/** Runs with the path of a small picture, a red square on a ground that turns from blue to green, which is there meanwhile. */
export async function withPicture<T>(use: (path: string) => Promise<T>): Promise<T> {
  const folder = await mkdtemp(join(tmpdir(), 'canopy-picture-'))
  try {
    const path = join(folder, 'square.png')
    await writeFile(path, png()).catch((error: unknown) => {
      throw fileError(error, 'cannot write a file of the self-check', path)
    })
    return await use(path)
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
}

/** The picture as a PNG file of 8-bit colours (W3C Portable Network Graphics, third edition). */
function png(): Buffer {
  const rows = Buffer.alloc(HEIGHT * (1 + 3 * WIDTH))
  for (let y = 0; y < HEIGHT; y++)
    for (let x = 0; x < WIDTH; x++) {
      const inSquare = Math.abs(x - 32) < 16 && Math.abs(y - 32) < 16
      const colour = inSquare ? [200, 30, 30] : [20, Math.floor((255 * x) / WIDTH), Math.floor((255 * y) / HEIGHT)]
      rows.set(colour, y * (1 + 3 * WIDTH) + 1 + 3 * x)
    }
  const header = Buffer.alloc(13)
  header.writeUInt32BE(WIDTH, 0)
  header.writeUInt32BE(HEIGHT, 4)
  header.set([8, 2, 0, 0, 0], 8)
  const signature = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a])
  return Buffer.concat([
    signature,
    chunk('IHDR', header),
    chunk('IDAT', deflateSync(rows)),
    chunk('IEND', Buffer.alloc(0)),
  ])
}

function chunk(type: string, data: Buffer): Buffer {
  const content = Buffer.concat([Buffer.from(type, 'latin1'), data])
  const frame = Buffer.alloc(8)
  frame.writeUInt32BE(data.length, 0)
  frame.writeUInt32BE(crc32(content), 4)
  return Buffer.concat([frame.subarray(0, 4), content, frame.subarray(4)])
}
