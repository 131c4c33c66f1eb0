import { resolve } from 'node:path'
import { type Command, InvalidArgumentError, Option } from 'commander'
import {
  type CheckedVariant,
  checksText,
  comparedText,
  EXPORT_TYPES,
  type ExportedEncoder,
  type ExportType,
  MOST_LOST,
} from '../export/index.ts'
import type { TableFormatName } from '../hierarchy/index.ts'
import type { Device } from '../onnx/index.ts'
import { exportAdapter } from '../pipeline/index.ts'
import {
  deviceOption,
  type EncoderFlags,
  marginOption,
  number,
  onnxFileOption,
  poolingOptions,
  type StatedFlags,
  statedFlags,
  statedOptions,
  tableFormatOption,
  whole,
} from './flags.ts'
import { interruptible } from './interrupt.ts'
import { createOutput } from './output.ts'

interface Flags extends EncoderFlags, StatedFlags {
  encoder: string
  adapter?: string
  queryEncoder?: string
  output: string
  dtype: ExportType[]
  bundle?: boolean
  keepAdapter?: boolean
  margin?: number
  maxAccuracyLoss: number
  force?: boolean
  title?: boolean
  tableFormat?: TableFormatName
  checkItems: number
  checkDataset?: string
  checkSplit: string
  threads?: number
  device?: Device
  json?: boolean
}

export function register(program: Command): void {
  program
    .command('export')
    .summary('write the merged node encoder as an ONNX folder')
    .description(
      'Merges the adapter into its encoder and writes a folder that onnxruntime, transformers.js and sentence-transformers\n' +
        '(backend="onnx") load as it is. The written files are then compared with the trained encoder, embeddings and decisions, on\n' +
        'held-out items of the run or on --check-dataset; a folder that fails the comparison is not kept.',
    )
    .requiredOption(
      '--encoder <folder>',
      'encoder that the adapter was trained over: checkpoint or ONNX folder, or Hugging Face id',
    )
    .option('--adapter <folder>', 'LoRA adapter, as runs/name/adapter (default: export the encoder as it is)')
    .option('--query-encoder <folder>', 'frozen encoder of the questions (default: --encoder without any adapter)')
    .addOption(onnxFileOption())
    .addOption(poolingOptions()[0])
    .addOption(poolingOptions()[1])
    .requiredOption('--output <folder>', 'folder to write')
    .addOption(
      new Option(
        '--dtype <types...>',
        'types of the weights, each a graph of its own, the first one what the folder is opened by; of an ONNX folder fp32 stands for its graph as it is, and the others take a plain float32 graph',
      )
        .choices(EXPORT_TYPES)
        .default(['fp32'], 'fp32'),
    )
    .option('--bundle', 'put the query encoder into the folder too, so that it refines by itself')
    .option(
      '--keep-adapter',
      'write the adapter beside the weights, too: graphs in the first type that take other adapters over the same encoder',
    )
    .addOption(marginOption('margin of refinement that the folder is used with (default: as trained, else 0)'))
    .option('--no-title', 'without an adapter that says so: regions do not start with their title')
    .addOption(tableFormatOption('without an adapter that says so; default: markdown'))
    .addOption(statedOptions('default: as trained')[0])
    .addOption(statedOptions('default: as trained')[1])
    .addOption(statedOptions('default: as trained')[2])
    .option('--check-items <n>', 'held-out items in the comparison, at most', whole(0), 200)
    .option('--check-dataset <folder>', "data set with gold to compare on, in place of the run's held-out items")
    .option('--check-split <name>', 'its split', 'dev')
    .option(
      '--max-accuracy-loss <points>',
      'decision accuracy that a graph may lose against the trained encoder, in points; more than chance explains fails',
      points,
      MOST_LOST,
    )
    .option('--force', 'keep a folder that loses more; its card says so')
    .option('--threads <n>', 'threads of ONNX Runtime (default: all processors)', whole(1))
    .addOption(deviceOption('where the comparison runs'))
    .option('--json', 'print the comparison as JSON')
    .addHelpText(
      'after',
      `
Example:
  $ canopy export --encoder models/all-MiniLM-L6-v2 --adapter runs/minilm/adapter --bundle --output runs/minilm/export
  $ canopy export --encoder models/all-MiniLM-L6-v2 --adapter adapters/from-peft --dtype fp32 int8 --check-dataset datasets/hotpotqa --output exports/int8
  $ canopy export --encoder models/Qwen3-VL-Embedding-2B --adapter runs/qwen/adapter --dtype fp16 int4 --output runs/qwen/export`,
    )
    .action(run)
}

async function run(flags: Flags): Promise<void> {
  const out = createOutput({ json: flags.json })
  const { checkDataset: dataset, checkSplit: split, checkItems: items } = flags
  const check = await interruptible((signal) =>
    exportAdapter({
      ...flags,
      ...statedFlags(flags),
      ...{ types: flags.dtype, check: { dataset, split, items } },
      onChecked: (found) => out.line(checkText(found)),
      ...{ onProgress: out.progress, warn: out.warn, signal },
    }),
  ).finally(out.done)
  out.json({ output: resolve(flags.output), ...check })
  for (const { name, loss } of graphsOf(check)) {
    if (loss.verdict === 'lost') out.warn(`The graph in ${name} was kept because of --force: ${loss.why}.`)
    if (loss.verdict === 'doubtful')
      out.warn(
        `The graph in ${name}: ${loss.why}. Give the comparison more items (--check-items, --check-dataset), or measure it on your data before you use it (canopy evaluate).`,
      )
  }
  out.line(`Exported encoder: ${flags.output}`)
}

function points(value: string): number {
  const n = number(value)
  if (n < 0) throw new InvalidArgumentError('Points of decision accuracy were expected, 0 or more.')
  return n
}

const graphsOf = (check: ExportedEncoder): CheckedVariant[] => [
  check,
  ...Object.values(check.others ?? {}),
  ...(check.adapterGraph === undefined ? [] : [check.adapterGraph]),
]

export function checkText(check: ExportedEncoder): string {
  const { merged, beside, dequantised, refinement } = check
  const on = (n: number, what: string): string => `${n} held-out ${n === 1 ? what : `${what}s`}`
  const graphs = graphsOf(check)
  const lines = [
    `Self-check against the trained encoder. Inputs compared: ${comparedText(check)}${refinement === undefined ? '' : `; ${on(refinement.instances, 'item')} with ${refinement.decisions} decisions, shares in per cent`}.`,
    checksText(graphs),
  ]
  for (const { name, unrounded } of graphs)
    if (unrounded !== undefined)
      lines.push(
        `${name} without rounding: smallest cosine ${unrounded.minCosine.toFixed(7)}, largest difference ${unrounded.maxDifference.toExponential(1)}.`,
      )
  if (beside > 0)
    lines.push(
      `The weights of ${beside} modules are quantised, or have other uses: their updates stand beside them${merged > 0 ? `, those of ${merged} others are merged` : ''}.`,
    )
  if (dequantised > 0)
    lines.push(
      `${dequantised} fused attentions (QAttention) have no place beside their quantised weights: these are float32 now.`,
    )
  return lines.join('\n')
}
