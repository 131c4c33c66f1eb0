import { join } from 'node:path'
import { expect, it } from 'vitest'
import { distillation, distillationGraph } from '../../src/distill/graph.ts'
import { readStudent, type Student } from '../../src/distill/student.ts'
import { toUnit } from '../../src/distill/teacher.ts'
import { createRandomBert, readEncoder, textSequence } from '../../src/encoder/index.ts'
import { lower, openSession, type Tensor } from '../../src/onnx/index.ts'
import { createRandom } from '../../src/support/random.ts'
import { openTfjs } from '../../src/tfjs/index.ts'
import { temporaryFolder } from '../support/temporary.ts'

const WIDTH = 8
/** Token sequences of several lengths, one of them twice. */
const sequences = [
  [2, 10, 11, 12, 3],
  [2, 20, 3],
  [2, 30, 31, 10, 32, 33, 3],
  [2, 20, 3],
].map((ids) => textSequence(Int32Array.from(ids)))

async function tinyStudent(layers: number): Promise<Student> {
  const folder = join(temporaryFolder(), 'bert')
  await createRandomBert(folder, {
    ...{ seed: 3, vocabularyFrom: ['the keeper lit the lamp'], vocabularySize: 60 },
    ...{ hidden: WIDTH, heads: 2, layers, intermediate: 12, maxLength: 10 },
  })
  const student = await readStudent(await readEncoder(folder), 0)
  const random = createRandom('weights')
  // larger than createRandomBert's, so that every weight has a say
  for (const [name, data] of student.weights)
    if (name.includes('encoder.')) for (let i = 0; i < data.length; i++) data[i]! += 0.3 * random.normal()
  return student
}

const random = createRandom('targets')
const targets = Float32Array.from({ length: sequences.length * WIDTH }, () => random.normal())
toUnit(targets, WIDTH)

function feedsFor(student: Student): Record<string, Tensor> {
  const weights = [...student.weights].map(([name, data]): [string, Tensor] => [
    name,
    { dtype: 'float32', shape: student.shapes.get(name)!, data },
  ])
  return {
    ...Object.fromEntries(weights),
    ...student.feeds(sequences),
    [distillation.targets]: { dtype: 'float32', shape: [sequences.length, WIDTH], data: targets },
    [distillation.weight]: { dtype: 'float32', shape: [], data: Float32Array.of(1 / sequences.length) },
  }
}

/** The loss as its definition has it. */
function lossOf(embeddings: Float32Array, relations: number): number {
  const n = sequences.length
  const dot = (a: Float32Array, i: number, b: Float32Array, j: number): number => {
    let sum = 0
    for (let k = 0; k < WIDTH; k++) sum += a[i * WIDTH + k]! * b[j * WIDTH + k]!
    return sum
  }
  let loss = 0
  for (let i = 0; i < n; i++) {
    loss += 1 - dot(embeddings, i, targets, i)
    for (let j = 0; j < n; j++)
      loss += (relations / n) * (dot(embeddings, i, embeddings, j) - dot(targets, i, targets, j)) ** 2
  }
  return loss / n
}

it('every weight of a BERT that an embedding depends on is trained, tables and norms included', async () => {
  const { shapes } = await tinyStudent(2)
  expect(shapes.size).toBe(5 + 2 * 16)
  for (const name of [
    'word_embeddings.weight',
    'position_embeddings.weight',
    'token_type_embeddings.weight',
    'LayerNorm.weight',
  ])
    expect([...shapes.keys()]).toContain(`embeddings.${name}`)
})

it.each([
  [1, 0],
  [2, 0.7],
])('loss, cosines and every gradient are right (%i layers, relations %d)', async (layers, relations) => {
  const student = await tinyStudent(layers)
  const names = [...student.shapes.keys()]
  const { graph, gradients } = distillationGraph(student.graph, names, { unitLength: student.unitLength, relations })
  const session = await openSession(graph, { threads: 1 })
  const forward = await openSession({ ...student.graph, outputs: ['embeddings'] }, { threads: 1 })
  const feeds = feedsFor(student)
  const needed = (inputs: ReadonlyMap<string, unknown>) =>
    Object.fromEntries(Object.entries(feeds).filter(([name]) => inputs.has(name)))
  const embeddings = async () => (await forward.run(needed(forward.inputs))).embeddings!.data as Float32Array
  const outputs = await session.run(needed(session.inputs))
  expect(Number(outputs[distillation.loss]!.data[0])).toBeCloseTo(lossOf(await embeddings(), relations), 5)
  const mean = (outputs[distillation.cosines]!.data as Float32Array).reduce((a, b) => a + b, 0) / sequences.length
  expect(mean).toBeCloseTo(1 - lossOf(await embeddings(), 0), 5)

  // the second engine differentiates the forward part of the same loss by itself
  const oracle = await openTfjs(lower({ ...graph, outputs: [distillation.loss] }).graph, { backend: 'cpu' })
  const theirs = await oracle.gradients(feeds, { of: distillation.loss, wrt: names })
  oracle.close()

  for (const name of names) {
    const gradient = outputs[gradients.get(name)!]!.data as Float32Array
    const norm = Math.hypot(...gradient)
    const other = theirs.gradients.get(name)!
    expect(Math.hypot(...gradient.map((x, i) => x - other[i]!)), name).toBeLessThan(1e-4 * norm + 1e-6)
    if (norm < 1e-5) continue
    // along its own direction a function rises by its gradient's length, and by less along any other
    const data = student.weights.get(name)!
    const at = data.slice()
    const along = async (h: number): Promise<number> => {
      for (let i = 0; i < data.length; i++) data[i] = at[i]! + (h * gradient[i]!) / norm
      const loss = lossOf(await embeddings(), relations)
      data.set(at)
      return loss
    }
    const h = 0.02
    const rise =
      (8 * ((await along(h)) - (await along(-h))) - ((await along(2 * h)) - (await along(-2 * h)))) / (12 * h)
    expect(Math.abs(rise - norm), `${name}: ${rise}, not ${norm}`).toBeLessThan(0.01 * norm + 3e-4)
  }
  await session.release()
  await forward.release()
})
