import { expect, it, vi } from 'vitest'
import { textSequence } from '../../src/encoder/index.ts'
import { openEngine } from '../../src/train/engine/engine.ts'
import { DIMENSION, normal, rowsOf, toyEncoder, toyTensors, unitRows } from './toy-encoder.ts'

const sessions = vi.hoisted(() => ({ open: 0, failing: false }))

vi.mock('../../src/onnx/index.ts', async (original) => {
  const onnx = await original<typeof import('../../src/onnx/index.ts')>()
  return {
    ...onnx,
    async openSession(...given: Parameters<typeof onnx.openSession>) {
      const session = await onnx.openSession(...given)
      sessions.open++
      return {
        ...session,
        async run(feeds: Parameters<typeof session.run>[0]) {
          if (sessions.failing) throw new Error('Failed to allocate memory for requested buffer of size 1638400000')
          return session.run(feeds)
        },
        async release() {
          sessions.open--
          await session.release()
        },
      }
    },
  }
})

it('gives back what its sessions hold when memory runs out, and goes on to the same results', async () => {
  const queries = rowsOf(unitRows(normal('questions', DIMENSION), DIMENSION), DIMENSION)
  const loss = { loss: 'logistic', tau: 0.3, margin: 0.1 } as const
  const engine = await openEngine({ encoder: toyEncoder(), queries, loss, tokenBudget: 1000, threads: 1 })
  const sequences = [Int32Array.of(1, 2), Int32Array.of(3)].map(textSequence)
  const batch = { sequences, pairs: [{ preferred: 0, other: 1, question: 0, weight: 1 }] }
  try {
    const expected = await engine.onePass(batch, toyTensors())
    await engine.embed(sequences, toyTensors())
    expect(sessions.open).toBe(2)
    sessions.failing = true
    await expect(engine.onePass(batch, toyTensors())).rejects.toThrow(/allocate memory/)
    expect(sessions.open).toBe(0)
    sessions.failing = false
    expect(await engine.onePass(batch, toyTensors())).toEqual(expected)
  } finally {
    await engine.close()
  }
  expect(sessions.open).toBe(0)
})
