import { createHash } from 'node:crypto'
import { appendFile, readFile } from 'node:fs/promises'
import { basename } from 'node:path'
import { InputError } from '../support/errors.ts'
import { fileError } from '../support/files.ts'

/** One evaluation of a held-out split, as the log lists it. */
export interface Look {
  time: string
  /** What was held out: hashes of the split in every dataset. */
  split: string
  /** What was evaluated on it: encoders, adapter, rendering, branching. The same again shows nothing new. */
  configuration: string
}

/** How often a split was looked at. */
export interface LookCount {
  /** Place of this configuration among the different ones that saw the split, from 1; a repetition keeps its place. */
  configuration: number
  /** Evaluations of this very configuration, this one included. */
  repetitions: number
}

/**
 * The count that an evaluation of `configuration` on `split` has, the log being as it is; adds nothing.
 *
 * @throws InputError naming the line of a log that is not one
 */
export async function countLooks(file: string, { split, configuration }: Omit<Look, 'time'>): Promise<LookCount> {
  const seen = (await readLooks(file)).filter((look) => look.split === split).map((look) => look.configuration)
  const different = [...new Set([...seen, configuration])]
  return {
    configuration: different.indexOf(configuration) + 1,
    repetitions: seen.filter((one) => one === configuration).length + 1,
  }
}

/** Names a held-out split in the log: by its name and the hashes of it in every dataset. */
export function splitKey(split: string, hashes: readonly string[]): string {
  return createHash('sha256')
    .update(JSON.stringify([split, hashes]))
    .digest('hex')
}

/**
 * How often the log says that a split was evaluated, and with how many different configurations.
 *
 * @throws InputError naming the line of a log that is not one
 */
export async function totalLooks(
  file: string,
  split: string,
): Promise<{ evaluations: number; configurations: number }> {
  const seen = (await readLooks(file)).filter((look) => look.split === split).map((look) => look.configuration)
  return { evaluations: seen.length, configurations: new Set(seen).size }
}

/** Adds a line to the log. */
export async function appendLook(file: string, look: Look): Promise<void> {
  try {
    await appendFile(file, `${JSON.stringify(look)}\n`)
  } catch (error) {
    throw fileError(error, 'cannot write the log of evaluations', file)
  }
}

async function readLooks(file: string): Promise<Look[]> {
  let text: string
  try {
    text = await readFile(file, 'utf8')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return []
    throw fileError(error, 'cannot read the log of evaluations', file)
  }
  return text.split('\n').flatMap((line, i) => {
    if (line.trim() === '') return []
    try {
      const look = JSON.parse(line) as Look
      if (typeof look.split === 'string' && typeof look.configuration === 'string') return [look]
    } catch {
      // Said below.
    }
    throw new InputError(
      `Not a line of a log of evaluations; mend or delete the line, or ${basename(file)} as a whole to start counting again.`,
      { file, line: i + 1 },
    )
  })
}
