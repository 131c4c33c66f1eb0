import { join } from 'node:path'
import { z } from 'zod'
import { readOptional } from './json-files.ts'

const schema = z.looseObject({
  onnxFile: z
    .string()
    .regex(/^\w[\w.-]*\.onnx$/, 'expected the name of a graph inside onnx/')
    .optional(),
})

/**
 * Name of the graph inside `onnx/` that an exported folder is opened by unless another one is asked for; undefined where its canopy.json
 * does not say it.
 *
 * @throws InputError for a canopy.json that cannot be read, or names none
 */
export async function openedGraph(folder: string): Promise<string | undefined> {
  return (await readOptional(join(folder, 'canopy.json'), schema))?.onnxFile
}
