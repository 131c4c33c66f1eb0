import { InvalidArgumentError, Option } from 'commander'
import type { Pooling, StatedSettings } from '../encoder/index.ts'
import { TABLE_FORMAT_NAMES } from '../hierarchy/index.ts'
import { DEVICES, PRECISIONS } from '../onnx/index.ts'

/** Reads a flag's value as a whole number of at least `least`. */
export function whole(least: number): (value: string) => number {
  return (value) => {
    const n = Number(value)
    if (value.trim() === '' || !Number.isSafeInteger(n) || n < least)
      throw new InvalidArgumentError(`A whole number, at least ${least}, was expected.`)
    return n
  }
}

/** Reads a flag's value as a number. */
export function number(value: string): number {
  const n = Number(value)
  if (value.trim() === '' || !Number.isFinite(n)) throw new InvalidArgumentError('A number was expected.')
  return n
}

/** Reads a margin of refinement. */
export function margin(value: string): number {
  const n = number(value)
  if (n < 0) throw new InvalidArgumentError('A margin is a number, 0 or more, as 0.03.')
  return n
}

/** `--margin`: how far below its parent a child may score and still be entered. */
export function marginOption(what: string): Option {
  return new Option('--margin <x>', what).argParser(margin)
}

/** Reads a token budget: a whole number, or `auto`. */
export function tokenBudget(value: string): number | 'auto' {
  return value === 'auto' ? 'auto' : whole(16)(value)
}

/** `--device`: where graphs run. */
export function deviceOption(what: string): Option {
  return new Option('--device <name>', `${what}; "canopy doctor" says which work here (cpu)`).choices(DEVICES)
}

/** `--precision`: what matrix products are computed in. */
export function precisionOption(): Option {
  return new Option(
    '--precision <type>',
    'what matrix products are computed in, on cuda (fp16: webgpu too) (fp32)',
  ).choices(PRECISIONS)
}

/** What picks a file of an encoder's folder, and says what the folder may leave open. */
export interface EncoderFlags {
  onnxFile?: string
  pooling?: Pooling
  normalize?: boolean
}

/** `--onnx-file`: which of the ONNX graphs of an encoder's folder. */
export function onnxFileOption(): Option {
  return new Option(
    '--onnx-file <name>',
    'ONNX graph in onnx/ of --encoder, as model_quantized.onnx (default: the checkpoint, else the first type of an export, else model.onnx)',
  ).argParser((value: string) => {
    const name = value.replace(/^(?:\.\/)?onnx\//, '')
    if (!/^[^\\/]+\.onnx$/.test(name))
      throw new InvalidArgumentError('The name of a file in the folder onnx/ was expected, as model_quantized.onnx.')
    return name
  })
}

/** `--pooling` and `--normalize`: what folders of transformers.js do not say. */
export function poolingOptions(): [Option, Option] {
  return [
    new Option('--pooling <mode>', 'how token vectors become an embedding, for folders without modules.json').choices([
      'mean',
      'cls',
      'last',
    ]),
    new Option('--normalize', 'with --pooling: embeddings have length 1'),
  ]
}

/** What an encoder is told to do, and how much of its embeddings counts. */
export interface StatedFlags {
  queryInstruction?: string | undefined
  nodeInstruction?: string | undefined
  dimensions?: number | undefined
}

/** `--query-instruction`, `--node-instruction` and `--dimensions`. */
export function statedOptions(standard: string): [Option, Option, Option] {
  const instruction = (side: string, what: string): Option =>
    new Option(
      `--${side}-instruction <text>`,
      `what an encoder of conversations is told to do with ${what} (${standard}, else the encoder's own)`,
    )
  return [
    instruction('query', 'a question'),
    instruction('node', 'a node'),
    new Option(
      '--dimensions <n>',
      `numbers of an embedding that count, the first ones (${standard}, else all)`,
    ).argParser(whole(1)),
  ]
}

/** What the flags state of the encoders; what they do not, the encoder's own files decide. */
export function statedFlags({ queryInstruction, nodeInstruction, dimensions }: StatedFlags): StatedSettings {
  const instructions = {
    ...(queryInstruction !== undefined && { query: queryInstruction }),
    ...(nodeInstruction !== undefined && { node: nodeInstruction }),
  }
  return {
    ...(Object.keys(instructions).length > 0 && { instructions }),
    ...(dimensions !== undefined && { dimensions }),
  }
}

/** `--on-error`: what a picture or a video that cannot be read does. */
export function onErrorOption(): Option {
  return new Option(
    '--on-error <what>',
    'on a picture or video that cannot be read: stop, or leave its item out and count it (stop)',
  ).choices(['stop', 'skip'])
}

/** `--table-format`: how tables become text. */
export function tableFormatOption(standard: string): Option {
  return new Option('--table-format <name>', `how a table's header and rows become text (${standard})`).choices(
    TABLE_FORMAT_NAMES,
  )
}
