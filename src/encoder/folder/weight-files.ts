import { readdir } from 'node:fs/promises'
import { basename, dirname, join, relative } from 'node:path'
import { z } from 'zod'
import { modelContents } from '../../onnx/index.ts'
import { InputError } from '../../support/errors.ts'
import { exists, resolveInside } from '../../support/files.ts'
import { MAIN_PART, partFiles } from '../qwen3-vl/part-files.ts'
import { check, readJsonObject } from './json-files.ts'
import { openedGraph } from './opened-graph.ts'
import type { EncoderProfile, ReadEncoderOptions } from './profile.ts'
import { HOW_TO_GET } from './sentence-files.ts'

type FoundWeights = Pick<EncoderProfile, 'kind' | 'weights' | 'weightFiles'>

/**
 * Finds an encoder's weights: model.safetensors, all parts of a sharded one, or an ONNX graph with its external data: the one that is
 * asked for, the one that the folder's canopy.json names, or model.onnx.
 *
 * @param inParts whether an ONNX folder of this architecture holds several graphs, see {@link partFiles}
 * @throws InputError naming what was looked for, or the part that is missing
 */
export async function findWeights(
  root: string,
  modelFolder: string,
  options: Pick<ReadEncoderOptions, 'kind' | 'onnxFile'>,
  inParts = false,
): Promise<FoundWeights> {
  const single = join(modelFolder, 'model.safetensors')
  const index = join(modelFolder, 'model.safetensors.index.json')
  if (options.kind !== 'onnx') {
    if (await exists(single)) return { kind: 'checkpoint', weights: single, weightFiles: [single] }
    if (await exists(index)) {
      const { weight_map } = check(
        z.looseObject({ weight_map: z.record(z.string(), z.string()) }),
        await readJsonObject(index, ''),
        index,
      )
      const names = [...new Set(Object.values(weight_map))].sort()
      const files = names.map((name) => resolveInside(modelFolder, name))
      for (const file of files)
        if (!(await exists(file)))
          throw new InputError(
            `The model's part ${basename(file)}, which ${basename(index)} names, is missing. ${HOW_TO_GET}`,
            { file },
          )
      return { kind: 'checkpoint', weights: index, weightFiles: files }
    }
    if (options.kind === 'checkpoint')
      throw new InputError(
        `Neither model.safetensors nor model.safetensors.index.json is in ${modelFolder}. ${HOW_TO_GET}`,
      )
  }
  const standard = inParts ? `${MAIN_PART}.onnx` : 'model.onnx'
  const onnx = join(root, 'onnx', options.onnxFile ?? (await openedGraph(root)) ?? standard)
  if (await exists(onnx)) {
    const parts = inParts ? partFiles(onnx) : { model: onnx }
    if (parts === undefined)
      throw new InputError(
        `An encoder of this architecture is opened by its ${MAIN_PART}, beside which its parts lie.`,
        { file: onnx },
      )
    const weightFiles: string[] = []
    for (const file of Object.values(parts)) weightFiles.push(...(await withExternalData(file)))
    return { kind: 'onnx', weights: onnx, weightFiles }
  }
  const graphs = (await readdir(join(root, 'onnx')).catch(() => []))
    .filter((name) => name.endsWith('.onnx') && (!inParts || partFiles(name) !== undefined))
    .sort()
  if (options.kind === 'onnx' || graphs.length > 0)
    throw new InputError(
      `No ${onnx}. ${graphs.length === 0 ? HOW_TO_GET : `The graphs in that folder that can be chosen are ${graphs.join(', ')}: name one (--onnx-file, in a program "onnxFile").`}`,
    )
  const shards = (await readdir(modelFolder)).filter((name) => /^model-\d+-of-\d+\.safetensors$/.test(name))
  if (shards.length > 0)
    throw new InputError(
      `${shards.length} parts of the weights are there, but not ${basename(index)}, which says what is in which. ${HOW_TO_GET}`,
      { file: index },
    )
  const pickled = await exists(join(modelFolder, 'pytorch_model.bin'))
  throw new InputError(
    `No weights in ${modelFolder}: looked for model.safetensors, model.safetensors.index.json and ${relative(root, onnx)}. ${
      pickled ? 'pytorch_model.bin is not read, since it can run code: convert it to safetensors. ' : ''
    }${HOW_TO_GET}`,
  )
}

/** A graph's file and those of its external data. */
async function withExternalData(graph: string): Promise<string[]> {
  if (!(await exists(graph)))
    throw new InputError(`The encoder's part ${basename(graph)} is missing. ${HOW_TO_GET}`, { file: graph })
  const { externalFiles } = await modelContents(graph)
  const data = externalFiles.map((name) => resolveInside(dirname(graph), name))
  for (const [i, file] of data.entries())
    if (!(await exists(file)))
      throw new InputError(
        `The weights of ${basename(graph)} lie in ${externalFiles[i]}, which is missing. Download it from the model's repository and put it beside.`,
        { file },
      )
  return [graph, ...data]
}
