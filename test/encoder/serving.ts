// What the tests of openEncoder share. The worker thread runs compiled files, so they are about the package as it is built.
import { existsSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import { afterAll, beforeAll, onTestFinished } from 'vitest'
import {
  createRandomBert,
  type Encoder,
  type OpenEncoderOptions,
  openPair,
  type RefineInput,
  readEncoderPair,
  refineItems,
} from '../../src/encoder/index.ts'

export const ROOT = resolve(import.meta.dirname, '..', '..')
/** Another build than dist/ where CANOPY_DIST says so. */
const ENTRY = join(resolve(ROOT, process.env.CANOPY_DIST ?? 'dist'), 'index.js')
export const ENTRY_URL = pathToFileURL(ENTRY).href
export type Library = typeof import('../../src/index.ts')

export const QUESTION = 'Who wound the clock of the tower?'
export const TOWER =
  'The tower stands by the river. Its clock was wound by Ada Brennick. She climbed the stairs every morning. The bell was cast later.'
export const MILL: [string, string] = ['The mill ground rye for the town.', ' Floods took the wheel in spring.']
export const ITEMS: RefineInput[] = [
  TOWER,
  { id: 'tower', title: 'Brennick tower', text: TOWER },
  {
    id: 'mill',
    text: MILL.join(''),
    sentences: [
      [0, MILL[0].length],
      [MILL[0].length, MILL.join('').length],
    ],
  },
  'One sentence only.',
]
export const TABLE: RefineInput = {
  title: 'Mills',
  caption: 'By the river',
  header: ['Mill', 'Ground'],
  rows: [
    ['Upper mill', 'rye'],
    ['Lower mill', 'oats'],
    ['Wind mill', 'wheat'],
  ],
}
/** Enough to keep a thread busy for a while. */
export const LONG: RefineInput[] = Array.from({ length: 40 }, (_, i) => ({
  title: `Page ${i}`,
  text: Array.from({ length: 24 }, (_, n) => `${TOWER.split('. ')[(i + n) % 4]} on day ${i * 24 + n}.`).join(' '),
}))

export interface Serving {
  library: Library
  /** Folder of a small random encoder. */
  checkpoint: string
  /** Opens an encoder, the small one unless told, that is closed when the test is over. */
  open(folder?: string, options?: OpenEncoderOptions): Promise<Encoder>
}

/** The compiled package and an encoder for the tests of a file. */
export function serving(): Serving {
  const shared: Serving = {
    library: undefined as never,
    checkpoint: undefined as never,
    async open(folder = shared.checkpoint, options = {}) {
      const encoder = await shared.library.openEncoder(folder, { threads: 1, ...options })
      onTestFinished(() => encoder.close())
      return encoder
    },
  }
  let folder: string
  beforeAll(async () => {
    if (!existsSync(ENTRY))
      throw new Error(`${ENTRY} is missing: these tests run the compiled package. Run "npm run build".`)
    shared.library = (await import(ENTRY_URL)) as Library
    folder = mkdtempSync(join(tmpdir(), 'canopy-serve-'))
    shared.checkpoint = join(folder, 'encoder')
    await createRandomBert(shared.checkpoint, { seed: 1, vocabularyFrom: [QUESTION, TOWER, ...MILL], maxLength: 128 })
  })
  afterAll(() => {
    if (folder !== undefined) rmSync(folder, { recursive: true })
  })
  return shared
}

/** What refinement gives in this thread, which remembers nothing. */
export async function refineHere(
  folder: string,
  options: { title?: boolean; branching?: number; margin?: number; tokenBudget?: number } = {},
  items: readonly RefineInput[] = ITEMS,
  question = QUESTION,
): Promise<Awaited<ReturnType<typeof refineItems>>> {
  const { tokenBudget = 4096, ...settings } = options
  const pair = await readEncoderPair(folder)
  const encoders = await openPair(pair, { threads: 1, tokenBudget })
  try {
    return await refineItems(encoders, { ...pair.settings, ...settings }, question, items)
  } finally {
    await encoders.close()
  }
}
