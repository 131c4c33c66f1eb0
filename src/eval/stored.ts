import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { z } from 'zod'
import { parseWith } from '../data/index.ts'
import { InputError } from '../support/errors.ts'
import { fileError } from '../support/files.ts'

const encoder = z.object({ name: z.string(), fingerprint: z.string() })

/** What every metrics.json says of its evaluation: what was measured, on what. */
export const evaluationIdentity = {
  schema: z.literal('canopy-evaluation/1'),
  split: z.string(),
  datasets: z.array(z.object({ name: z.string(), hash: z.string() })),
  encoders: z.object({
    query: encoder.exactOptional(),
    frozen: encoder.exactOptional(),
    'fine-tuned': encoder.exactOptional(),
  }),
  branching: z.int(),
  tokenizer: z.string(),
}

const schema = z.object({
  evaluation: z.object({
    ...evaluationIdentity,
    tokens: z.enum(['tokenizer', 'given', 'words']),
  }),
})

/** What an evaluation's folder says of itself. */
export type StoredEvaluation = z.infer<typeof schema>['evaluation']

/**
 * The description in a folder of results, from its `metrics.json`.
 *
 * @throws InputError naming the file when it is missing, or is not what an evaluation of this version writes
 */
export async function readEvaluation(folder: string): Promise<StoredEvaluation> {
  const file = join(folder, 'metrics.json')
  let text: string
  try {
    text = await readFile(file, 'utf8')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') {
      throw new InputError('There is no such file; "canopy evaluate" writes one into its --output.', { file }, error)
    }
    throw fileError(error, 'cannot read the results', file)
  }
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch (error) {
    throw new InputError(`Not JSON (${(error as Error).message}); evaluate again.`, { file }, error)
  }
  return parseWith(schema, value, { file }, 'file of results (evaluate again with this version)').evaluation
}
