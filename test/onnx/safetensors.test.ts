import { link, mkdir, mkdtemp, readdir, readFile, rm, symlink, truncate, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import {
  float32ToBfloat16,
  float32ToFloat16,
  GraphBuilder,
  openSafetensors,
  openSession,
  type Tensor,
  writeSafetensors,
} from '../../src/onnx/index.ts'
import { InputError } from '../../src/support/errors.ts'

let folder: string
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'canopy-safetensors-'))
})
afterEach(async () => {
  await rm(folder, { recursive: true, force: true })
})

const floats = (...values: number[]): Tensor => ({
  dtype: 'float32',
  shape: [values.length],
  data: Float32Array.from(values),
})

/** A file of that header (an object, or its exact text) and that many bytes of data. */
async function fileOf(header: unknown, dataBytes: number, length?: bigint): Promise<string> {
  const json = Buffer.from(typeof header === 'string' ? header : JSON.stringify(header))
  const prefix = Buffer.alloc(8)
  prefix.writeBigUInt64LE(length ?? BigInt(json.length))
  const path = join(folder, 'hostile.safetensors')
  await writeFile(path, Buffer.concat([prefix, json, Buffer.alloc(dataBytes)]))
  return path
}

describe('safetensors, written and read', () => {
  test('every element type comes back as it was', async () => {
    const tensors = new Map<string, Tensor>([
      ['f32', { dtype: 'float32', shape: [2, 2], data: Float32Array.of(1, -2, 3.5, Number.NaN) }],
      ['f16', { dtype: 'float16', shape: [3], data: float32ToFloat16(Float32Array.of(1, -0.5, 65504)) }],
      ['bf16', { dtype: 'bfloat16', shape: [1, 3], data: float32ToBfloat16(Float32Array.of(1, -0.5, 3e38)) }],
      ['f64', { dtype: 'float64', shape: [1], data: Float64Array.of(Math.PI) }],
      ['i64', { dtype: 'int64', shape: [2], data: BigInt64Array.of(-1n, 7n) }],
      ['i32', { dtype: 'int32', shape: [], data: Int32Array.of(5) }],
      ['i8', { dtype: 'int8', shape: [3], data: Int8Array.of(-1, 2, 3) }],
      ['bool', { dtype: 'bool', shape: [1], data: Uint8Array.of(1) }],
      ['empty', { dtype: 'float32', shape: [0, 4], data: new Float32Array() }],
    ])
    const path = join(folder, 'all.safetensors')
    await writeSafetensors(path, tensors, { format: 'pt', note: 'é' })
    const file = await openSafetensors(path)
    for (const [name, tensor] of tensors) expect(await file.read(name), name).toEqual(tensor)
    expect(new Map(file.metadata)).toEqual(
      new Map([
        ['format', 'pt'],
        ['note', 'é'],
      ]),
    )
    expect(await file.readTensor('f16')).toEqual(Float32Array.of(1, -0.5, 65504))
    expect((await file.readTensor('bf16'))[1]).toBe(-0.5)
    expect(await file.readTensor('i64')).toEqual(Float32Array.of(-1, 7))
  })

  test('equal content gives equal bytes, whatever the order it came in, and data starts at a multiple of 8', async () => {
    const a: [string, Tensor][] = [
      ['b', floats(1, 2, 3)],
      ['a', { dtype: 'float16', shape: [1], data: Uint16Array.of(1) }],
      ['c', floats(4)],
    ]
    await writeSafetensors(join(folder, '1'), new Map(a), { x: '1', y: '2' })
    await writeSafetensors(join(folder, '2'), new Map(a.reverse()), { y: '2', x: '1' })
    const bytes = await readFile(join(folder, '1'))
    expect(bytes.equals(await readFile(join(folder, '2')))).toBe(true)
    expect(Number(bytes.readBigUInt64LE()) % 8).toBe(0)
  })

  test('a tensor that does not fit its shape is refused and leaves no file', async () => {
    const wrong: Tensor = { dtype: 'float32', shape: [3], data: Float32Array.of(1) }
    await expect(writeSafetensors(join(folder, 'x'), new Map([['w', wrong]]))).rejects.toThrow(/"w".*3 elements.*has 1/)
    expect(await readdir(folder)).toEqual([])
  })

  test('names such as __proto__ are names like any other', async () => {
    const path = await fileOf('{"__proto__":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', 4)
    const file = await openSafetensors(path)
    expect([...file.tensors.keys()]).toEqual(['__proto__'])
    expect(({} as Record<string, unknown>).dtype).toBeUndefined()
  })
})

describe('hostile or damaged safetensors files', () => {
  const f32 = (begin: number, end: number, shape = [(end - begin) / 4]) => ({
    dtype: 'F32',
    shape,
    data_offsets: [begin, end],
  })
  const bad: [string, () => Promise<string>, RegExp][] = [
    ['a header longer than any may be', () => fileOf({}, 0, 2n ** 62n), /header would take 4611686018427387904 bytes/],
    ['a header that ends after the file', () => fileOf({}, 0, 5000n), /cut short: its header ends at byte 5008/],
    ['a header that is no JSON', () => fileOf('{"a":', 0), /no JSON text/],
    ['a header that is a list', () => fileOf([1], 0), /no JSON object/],
    ['an entry that is no object', () => fileOf({ w: 3 }, 0), /"w" is no object/],
    ['an unknown element type', () => fileOf({ w: { ...f32(0, 4), dtype: 'Q4' } }, 4), /"w" has the element type "Q4"/],
    [
      'an inherited field for a real one',
      () => fileOf('{"w":{"__proto__":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}}', 4),
      /element type/,
    ],
    ['a negative size', () => fileOf({ w: f32(0, 4, [-1]) }, 4), /no shape of whole numbers/],
    ['sizes whose product overflows', () => fileOf({ w: f32(0, 4, [2 ** 40, 2 ** 40]) }, 4), /too large/],
    ['fewer bytes than the shape takes', () => fileOf({ w: f32(0, 8, [3]) }, 8), /12 bytes.*hold 8/],
    ['offsets in the wrong order', () => fileOf({ w: f32(4, 0, [1]) }, 8), /hold -4/],
    ['tensors that overlap', () => fileOf({ a: f32(0, 8), b: f32(4, 12) }, 12), /"b" starts at byte .* ends at/],
    ['a gap between tensors', () => fileOf({ a: f32(0, 4), b: f32(8, 12) }, 12), /"b" starts at byte/],
    ['a gap before the first tensor', () => fileOf({ a: f32(4, 8) }, 8), /"a" starts at byte/],
    ['bytes after the last tensor', () => fileOf({ a: f32(0, 4) }, 12), /tensors end at byte/],
    ['metadata that is no text', () => fileOf({ __metadata__: { a: 1 } }, 0), /metadata "a" is no string/],
  ]
  for (const [what, make, message] of bad)
    test(`${what}: an error that says so`, async () => {
      const path = await make()
      const error = await openSafetensors(path).catch((e: unknown) => e)
      expect(error).toBeInstanceOf(InputError)
      expect((error as InputError).message).toMatch(message)
      expect((error as InputError).file).toBe(path)
    })

  test('a file cut short: the error gives both sizes', async () => {
    const path = join(folder, 'model.safetensors')
    await writeSafetensors(path, new Map([['w', floats(1, 2, 3, 4)]]))
    const { length } = await readFile(path)
    await truncate(path, length - 3)
    await expect(openSafetensors(path)).rejects.toThrow(new RegExp(`cut short.*${length}, the file at ${length - 3}`))
    await truncate(path, 5)
    await expect(openSafetensors(path)).rejects.toThrow(/at least 8 bytes, this one 5/)
  })

  test('no file, no checkpoint in the folder: the error names the place and what was looked for', async () => {
    await expect(openSafetensors(join(folder, 'none'))).rejects.toThrow(/none: there is no safetensors file/)
    await expect(openSafetensors(folder)).rejects.toThrow(/model\.safetensors\.index\.json/)
  })
})

describe('checkpoint folders', () => {
  const shards = async (map: Record<string, unknown>) => {
    await writeSafetensors(join(folder, 'model-00001-of-00002.safetensors'), new Map([['a', floats(1, 2)]]))
    await writeSafetensors(join(folder, 'model-00002-of-00002.safetensors'), new Map([['b', floats(3)]]))
    await writeFile(join(folder, 'model.safetensors.index.json'), JSON.stringify({ weight_map: map }))
  }

  test('shards are read as one checkpoint', async () => {
    await shards({ b: 'model-00002-of-00002.safetensors', a: 'model-00001-of-00002.safetensors' })
    const checkpoint = await openSafetensors(folder)
    expect(checkpoint.files.length).toBe(2)
    expect(await checkpoint.readTensor('a')).toEqual(Float32Array.of(1, 2))
    expect(checkpoint.external('b').external.file).toBe('model-00002-of-00002.safetensors')
    await expect(checkpoint.readTensor('c')).rejects.toThrow(/no tensor "c"/)
  })

  test.each([['../outside.safetensors'], ['/etc/x.safetensors'], ['a/b.safetensors'], ['..'], ['x.bin'], [3]])(
    'an index that names %j is refused',
    async (name) => {
      await shards({ a: name })
      await expect(openSafetensors(folder)).rejects.toThrow(/no file name in this folder/)
    },
  )

  test('an index that names a missing file, or a tensor its file lacks', async () => {
    await shards({ a: 'model-00003-of-00003.safetensors' })
    await expect(openSafetensors(folder)).rejects.toThrow(/model-00003-of-00003.*missing/)
    await shards({ b: 'model-00001-of-00002.safetensors' })
    await expect(openSafetensors(folder)).rejects.toThrow(/"b" in this file, which lacks it/)
  })

  test("a hub cache's symbolic links resolve to the real file, which a session can load", async () => {
    await mkdir(join(folder, 'blobs'))
    await mkdir(join(folder, 'snapshots', 'main'), { recursive: true })
    await writeSafetensors(join(folder, 'blobs', '53aa51172d142c89'), new Map([['w', floats(10, 20)]]))
    await symlink('../../blobs/53aa51172d142c89', join(folder, 'snapshots', 'main', 'model.safetensors'))
    const checkpoint = await openSafetensors(join(folder, 'snapshots', 'main'))
    expect(checkpoint.external('w').external.file).toBe('53aa51172d142c89')
    const g = new GraphBuilder()
    const x = g.input('x', 'float32', [2])
    g.output(g.add(x, g.initializer('w', checkpoint.external('w'))), 'y')
    const session = await openSession(g.build(), { externalFolder: checkpoint.folder, threads: 1 })
    const { y } = await session.run({ x: floats(1, 2) })
    expect(y?.data).toEqual(Float32Array.of(11, 22))
    await session.release()
  })

  test('shards whose links lead to different folders are refused, since a session takes one', async () => {
    await shards({ b: 'model-00002-of-00002.safetensors', a: 'model-00001-of-00002.safetensors' })
    await mkdir(join(folder, 'elsewhere'))
    const shard = join(folder, 'model-00002-of-00002.safetensors')
    await link(shard, join(folder, 'elsewhere', 'x'))
    await rm(shard)
    await symlink('elsewhere/x', shard)
    await expect(openSafetensors(folder)).rejects.toThrow(/different folders/)
  })

  test.each(['float32', 'bfloat16', 'float16'] as const)(
    'a graph uses %s weights at an odd offset of the file',
    async (dtype) => {
      const values = Float32Array.of(1, -0.5, 0.25)
      const data =
        dtype === 'float32' ? values : dtype === 'float16' ? float32ToFloat16(values) : float32ToBfloat16(values)
      // One byte before the weights; the writer would place it last.
      const bytes = new Uint8Array(data.buffer)
      const header = Buffer.from(
        JSON.stringify({
          pad: { dtype: 'U8', shape: [1], data_offsets: [0, 1] },
          w: {
            dtype: { float32: 'F32', float16: 'F16', bfloat16: 'BF16' }[dtype],
            shape: [3],
            data_offsets: [1, 1 + bytes.length],
          },
        }),
      )
      const prefix = Buffer.alloc(8)
      prefix.writeBigUInt64LE(BigInt(header.length))
      const path = join(folder, 'odd.safetensors')
      await writeFile(path, Buffer.concat([prefix, header, Buffer.of(9), bytes]))
      const checkpoint = await openSafetensors(path)
      expect(await checkpoint.readTensor('w')).toEqual(values)
      const g = new GraphBuilder()
      const x = g.input('x', 'float32', ['n', 3])
      g.output(g.mul(x, g.floatInitializer('w', checkpoint.external('w'))), 'y')
      const session = await openSession(g.build(), { externalFolder: checkpoint.folder, threads: 1 })
      const { y } = await session.run({ x: { dtype: 'float32', shape: [1, 3], data: Float32Array.of(2, 2, 2) } })
      expect(y).toEqual({ dtype: 'float32', shape: [1, 3], data: Float32Array.of(2, -1, 0.5) })
      await session.release()
    },
  )
})
