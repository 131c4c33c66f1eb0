// What an encoder takes on disk.
import { readdirSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { openSafetensors } from '../../dist/onnx/index.js'

/** Bytes of an encoder's weight files and of its whole folder; parameters, of a checkpoint, are its floating-point numbers. */
export async function sizeOf({ id, kind, folder, weightFiles, dimension, maxLength }) {
  const bytes = (path) => statSync(path).size
  const files = readdirSync(folder, { recursive: true }).map((name) => join(folder, name))
  const tensors = kind === 'checkpoint' ? [...(await openSafetensors(folder)).tensors.values()] : undefined
  return {
    id,
    dimension,
    maxLength,
    weights: weightFiles.reduce((sum, file) => sum + bytes(file), 0),
    folder: files.reduce((sum, file) => sum + (statSync(file).isFile() ? bytes(file) : 0), 0),
    parameters: tensors
      ?.filter(({ dtype }) => /^B?F\d/.test(dtype))
      .reduce((sum, { shape }) => sum + shape.reduce((a, b) => a * b, 1), 0),
  }
}
