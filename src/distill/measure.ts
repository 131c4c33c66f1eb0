import { type EncoderProfile, openEmbedder, readEncoder } from '../encoder/index.ts'
import { type Axes, project } from './axes.ts'
import { KINDS, type TextKind } from './sources.ts'
import { type EmbeddingFile, toUnit } from './teacher.ts'
import type { DistillText } from './texts.ts'

export interface Closeness {
  texts: number
  /** Mean cosine to the teacher, in the teacher's space. */
  mean: number
  /** A twentieth of the texts lies below this. */
  p5: number
}

/** What the finished student is worth on the held-out texts. */
export interface Measured {
  all: Closeness
  kinds: Partial<Record<TextKind, Closeness>>
  /** The most that a student of this width can reach: mean length of the teacher's embeddings on the axes. */
  bound: number
  /** Texts a second, one after the other on the same texts and threads. */
  speed: { student: number; teacher: number }
}

export interface MeasureOptions {
  teacher: EncoderProfile
  heldOut: readonly DistillText[]
  axes: Axes
  threads: number
  teacherRows: EmbeddingFile
  signal?: AbortSignal | undefined
}

/** Measures a student as its users will run it: from its folder, through the same embedder as any encoder. */
export async function measureFolder(folder: string, options: MeasureOptions): Promise<Measured> {
  const { teacher, heldOut, axes, threads, teacherRows, signal } = options
  const texts = heldOut.map(({ text }) => text)
  const targets = project(await teacherRows.read(texts.map((_, i) => i)), axes)
  const timed = async (profile: EncoderProfile): Promise<{ embeddings: Float32Array; speed: number }> => {
    const embedder = await openEmbedder(profile, { threads })
    try {
      await embedder.embedTexts(texts.slice(0, 32), 'node')
      const started = performance.now()
      const { embeddings } = await embedder.embedTexts(texts, 'node', signal === undefined ? {} : { signal })
      return { embeddings, speed: (texts.length / (performance.now() - started)) * 1000 }
    } finally {
      await embedder.close()
    }
  }
  const student = await timed(await readEncoder(folder))
  toUnit(student.embeddings, axes.width)
  const cosines = new Float64Array(texts.length)
  let bound = 0
  for (let row = 0; row < texts.length; row++) {
    let squares = 0
    for (let k = row * axes.width; k < (row + 1) * axes.width; k++) {
      cosines[row]! += student.embeddings[k]! * targets[k]!
      squares += targets[k]! ** 2
    }
    bound += Math.sqrt(squares) / texts.length
  }
  const kinds: Measured['kinds'] = {}
  for (const kind of KINDS) {
    const own = cosines.filter((_, i) => heldOut[i]!.kind === kind)
    if (own.length > 0) kinds[kind] = closeness(own)
  }
  const { speed } = await timed(teacher)
  return { all: closeness(cosines), kinds, bound, speed: { student: student.speed, teacher: speed } }
}

function closeness(cosines: Float64Array): Closeness {
  const sorted = cosines.slice().sort()
  const mean = cosines.reduce((a, b) => a + b, 0) / Math.max(1, cosines.length)
  return { texts: cosines.length, mean, p5: sorted[Math.floor(sorted.length / 20)] ?? Number.NaN }
}
