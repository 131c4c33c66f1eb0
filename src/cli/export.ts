import { readFileSync } from 'node:fs'
import { dirname, resolve } from 'node:path'
import { type Command, Option } from 'commander'
import { changesNothing, readEncoderPair } from '../encoder/index.ts'
import { readTrainingData } from '../eval/index.ts'
import {
  type CheckInstance,
  type Comparison,
  comparedText,
  concerns,
  EXPORT_TYPES,
  type ExportedEncoder,
  type ExportType,
  exportEncoder,
  measuredTable,
  type SelfCheck,
} from '../export/index.ts'
import type { TableFormatName } from '../hierarchy/index.ts'
import type { Device } from '../onnx/index.ts'
import { InputError } from '../support/errors.ts'
import { heldOutInstances } from '../train/index.ts'
import {
  deviceOption,
  type EncoderFlags,
  onnxFileOption,
  poolingOptions,
  type StatedFlags,
  statedFlags,
  statedOptions,
  tableFormatOption,
  whole,
} from './flags.ts'
import { interruptible } from './interrupt.ts'
import { createOutput, type Output } from './output.ts'

interface Flags extends EncoderFlags, StatedFlags {
  encoder: string
  adapter?: string
  queryEncoder?: string
  output: string
  dtype: ExportType[]
  bundle?: boolean
  title?: boolean
  tableFormat?: TableFormatName
  checkItems: number
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
        '(backend="onnx") load as it is. The written files are then compared with the trained encoder, on held-out items of the\n' +
        'run where they are still there; a folder that fails the comparison is not kept.',
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
        'types of the weights of a checkpoint, each a graph of its own, the first one what the folder is opened by; an ONNX graph keeps its own',
      )
        .choices(EXPORT_TYPES)
        .default(['fp32'], 'fp32'),
    )
    .option('--bundle', 'put the query encoder into the folder too, so that it refines by itself')
    .option('--no-title', 'without an adapter that says so: regions do not start with their title')
    .addOption(tableFormatOption('without an adapter that says so; default: markdown'))
    .addOption(statedOptions('default: as trained')[0])
    .addOption(statedOptions('default: as trained')[1])
    .addOption(statedOptions('default: as trained')[2])
    .option('--check-items <n>', 'held-out items in the comparison, at most', whole(0), 200)
    .option('--threads <n>', 'threads of ONNX Runtime (default: all processors)', whole(1))
    .addOption(deviceOption('where the comparison runs'))
    .option('--json', 'print the comparison as JSON')
    .addHelpText(
      'after',
      `
Example:
  $ canopy export --encoder models/all-MiniLM-L6-v2 --adapter runs/minilm/adapter --bundle --output runs/minilm/export
  $ canopy export --encoder models/Qwen3-VL-Embedding-2B --adapter runs/qwen/adapter --dtype fp16 int4 --output runs/qwen/export`,
    )
    .action(run)
}

async function run(flags: Flags): Promise<void> {
  const out = createOutput({ json: flags.json })
  const { adapter, queryEncoder, onnxFile, pooling, normalize } = flags
  const pair = await readEncoderPair(flags.encoder, {
    ...{ adapter, queryEncoder, onnxFile, pooling, normalize },
    ...statedFlags(flags),
    onProgress: out.progress,
  })
  if (pair.adapter !== undefined && changesNothing(pair.adapter))
    out.warn(
      `The adapter ${adapter} changes nothing: no step of its run did better than the frozen encoder. What is exported is the encoder as it was.`,
    )
  const runFolder = adapter === undefined ? undefined : dirname(resolve(adapter))
  const settings = pair.trained
    ? pair.settings
    : { ...pair.settings, title: flags.title ?? true, tableFormat: flags.tableFormat ?? 'markdown' }
  const instances =
    runFolder === undefined ? [] : await heldOutItems(runFolder, settings.branching, flags.checkItems, out)
  const { version } = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as {
    version: string
  }
  const check = await interruptible(async (signal) =>
    exportEncoder({
      encoder: pair.encoder,
      adapter: pair.adapter,
      queryEncoder: pair.query,
      settings,
      output: flags.output,
      bundle: flags.bundle,
      instances,
      trainingData: adapter === undefined ? undefined : await readTrainingData(adapter),
      table: runFolder === undefined ? undefined : await measuredTable(runFolder),
      types: [...new Set(flags.dtype)],
      version,
      threads: flags.threads,
      device: flags.device,
      onProgress: out.progress,
      signal,
    }),
  ).finally(out.done)
  out.json({ output: resolve(flags.output), ...check })
  out.line(checkText(check))
  const { type, others = {} } = check
  for (const [name, found] of Object.entries({ [type]: check, ...others })) {
    const why = concerns(name as ExportType, found)
    if (why.length > 0)
      out.warn(`The graph in ${name}: ${why.join('; ')}. Measure it on your data before you use it (canopy evaluate).`)
  }
  out.line(`Exported encoder: ${flags.output}`)
}

/** The run's validation items with their questions; none, with a warning, where its data are gone. */
async function heldOutItems(runFolder: string, branching: number, most: number, out: Output): Promise<CheckInstance[]> {
  try {
    return await heldOutInstances(runFolder, branching, most)
  } catch (error) {
    if (!(error instanceof InputError)) throw error
    out.warn(`The run's held-out items cannot be read (${error.message}); comparing on built-in texts only.`)
    return []
  }
}

export function checkText(check: ExportedEncoder): string {
  const { type, others = {}, merged, beside, dequantised } = check
  const several = Object.keys(others).length > 0
  const lines = closenessLines(check, several ? `${type}: ` : '')
  for (const [name, other] of Object.entries(others)) lines.push(...closenessLines(other, `${name}: `))
  if (beside > 0)
    lines.push(
      `The weights of ${beside} modules are quantised: their updates stand beside them${merged > 0 ? `, those of ${merged} others are merged` : ''}.`,
    )
  if (dequantised > 0)
    lines.push(
      `${dequantised} fused attentions (QAttention) have no place beside their quantised weights: these are float32 now.`,
    )
  return lines.join('\n')
}

/** With fewer held-out items than this, a single one changes the figures by 5 % and more. */
const FEW_ITEMS = 20

function closenessLines(check: SelfCheck, begin: string): string[] {
  const { unrounded, refinement } = check
  const close = ({ minCosine, maxDifference, bounds }: Comparison): string =>
    `smallest cosine ${minCosine.toFixed(7)}, largest difference ${maxDifference.toExponential(1)} (at least ${Number(bounds.minCosine.toPrecision(6))}, at most ${bounds.maxDifference.toExponential(1)})`
  const percent = (x: number): string => `${(100 * x).toFixed(1)} %`
  const lines = [`${begin}Self-check: inputs compared ${comparedText(check)}, ${close(check)}.`]
  if (unrounded !== undefined) lines.push(`The same without rounding: ${close(unrounded)}.`)
  if (refinement !== undefined) {
    const { trained, exported, instances, sameKept } = refinement
    const few = instances < FEW_ITEMS ? ', too few to judge by' : ''
    lines.push(
      `${begin}On ${instances} held-out ${instances === 1 ? 'item' : 'items'} with ${trained.decisions} decisions${few}: decision accuracy ${percent(trained.decisionAccuracy)} trained, ${percent(exported.decisionAccuracy)} exported; the same ranges kept for ${Math.round(sameKept * instances)} of ${instances}.`,
    )
  }
  return lines
}
