import { readdir, readFile } from 'node:fs/promises'
import { dirname, resolve } from 'node:path'
import { type Command, InvalidArgumentError, Option } from 'commander'
import { locateConfiguration } from '../encoder/index.ts'
import { markdownTable } from '../eval/index.ts'
import { InputError } from '../support/errors.ts'
import { readLimits } from '../support/limits.ts'
import { largestThatFits, type MemoryPlan, memoryPlan, type PhaseMemory } from '../train/index.ts'
import { number, whole } from './flags.ts'
import { createOutput, type Output } from './output.ts'

interface Flags {
  encoder: string
  tokenBudget: number
  nodeTokens?: number
  memory?: number
  gpu?: number
  dtype?: keyof typeof DTYPES
  rank: number
  targets?: string[]
  json?: boolean
}

const DTYPES = { fp32: 'float32', fp16: 'float16', bf16: 'bfloat16' } as const

/** Tokens of the longest node unless said otherwise, or as many as a budget or an encoder allows. */
const NODE_TOKENS = 512

/** Tokens that a picture has at most, and the patches of one token (Qwen3-VL-Embedding's limit on pixels). */
const LARGEST_PICTURE = { tokens: 1800, patches: 7200 }

export function register(program: Command): void {
  program
    .command('plan')
    .summary("say from an encoder's configuration what memory it needs, and what fits")
    .description(
      "Adds up from an encoder's config.json alone, whose weights need not be there,\n" +
        'what memory encoding, a training step and a whole training run take at their\n' +
        'peak, on the CPU and on a card: weights, activations, LoRA matrices and\n' +
        'optimizer. The graphs that would run are built, and the sizes of all values that\n' +
        'live in them at once are added up.',
    )
    .requiredOption(
      '--encoder <folder>',
      'checkpoint folder, its config.json alone, or Hugging Face id, of which only config.json is downloaded',
    )
    .option('--token-budget <n>', 'tokens computed at once, as "canopy train" takes it', whole(16), 4096)
    .option(
      '--node-tokens <n>',
      `tokens of the longest node; attention grows with its square (${NODE_TOKENS})`,
      whole(1),
    )
    .option('--memory <GiB>', 'memory of the CPU (default: what is free here)', memorySize)
    .option('--gpu <GiB>', 'memory of a card; plans for it, too', memorySize)
    .addOption(
      new Option(
        '--dtype <type>',
        'what the weights are stored in (default: what config.json says, else fp32)',
      ).choices(Object.keys(DTYPES)),
    )
    .option('--rank <n>', 'rank of the LoRA matrices', whole(1), 16)
    .option('--targets <pattern...>', "modules to adapt (default: the architecture's own)")
    .option('--json', 'print the plan as JSON, in bytes')
    .addHelpText(
      'after',
      `
On the CPU, weights in bf16 or fp16 of 256 MiB and more stay in their file and are cast to float32 where they are used: all sessions
share their pages, and the system can take them back. Programs that show a process's memory count them once a session. What a run of
training takes beyond its step is the embeddings of its validation, the optimizer and checkpoints; where some items have more tokens
than the budget, which take two passes, it takes a session more. What fits is said for such a run. Estimates for a card rest on
assumptions (CUDA's own memory, how its arena grows).

Exit status: 0, also when nothing fits; 1 bad input; 2 bad usage.

Examples:
  $ canopy plan --encoder Qwen/Qwen3-VL-Embedding-2B --rank 32
  $ canopy plan --encoder config.json --dtype bf16 --token-budget 2048 --gpu 24
  $ canopy plan --encoder models/all-MiniLM-L6-v2 --memory 4 --json`,
    )
    .action(run)
}

function memorySize(value: string): number {
  const gibibytes = number(value)
  if (gibibytes <= 0) throw new InvalidArgumentError('A number above 0 was expected.')
  return gibibytes
}

/** One device with the memory that it has. */
interface Place {
  name: string
  plan: MemoryPlan
  memory: number
  /** Whether that is what is free here, which nobody stated. */
  free: boolean
}

async function run(flags: Flags): Promise<void> {
  const out = createOutput(flags)
  const { config, file } = await readConfig(flags.encoder)
  const dtype = DTYPES[flags.dtype ?? storedType(config, file)]
  const common = { config, file, dtype, rank: flags.rank, targets: flags.targets }
  const memory = flags.memory === undefined ? (await readLimits()).memory.available : flags.memory * 2 ** 30
  const cpu = memoryPlan({ ...common, device: 'cpu', precision: 'fp32' })
  const places: Place[] = [{ name: 'CPU', plan: cpu, memory, free: flags.memory === undefined }]
  if (flags.gpu !== undefined)
    for (const precision of ['fp32', 'bf16'] as const) {
      const plan = memoryPlan({ ...common, device: 'cuda', precision })
      places.push({ name: `card, ${precision}`, plan, memory: flags.gpu * 2 ** 30, free: false })
    }
  const size = { tokenBudget: flags.tokenBudget, nodeTokens: nodeTokensOf(flags, cpu) }
  const reports = places.map((place) => reportOf(place, size, flags))
  out.json({
    encoder: file,
    architecture: config.model_type,
    dtype,
    parameters: cpu.parameters,
    rank: flags.rank,
    modules: cpu.targets.length,
    ...size,
    featureBytesPerToken: cpu.featureBytes,
    places: reports,
  })
  printModel(out, { ...cpu, file, architecture: String(config.model_type), dtype, rank: flags.rank })
  for (const report of reports) printReport(out, report, size)
  if (cpu.featureBytes > 0) printFeatures(out, cpu)
}

/** What is planned for: the run's budget, and its longest node. */
interface Size {
  tokenBudget: number
  nodeTokens: number
}

function nodeTokensOf({ nodeTokens, tokenBudget }: Flags, { maxLength }: MemoryPlan): number {
  if (nodeTokens !== undefined && nodeTokens > maxLength)
    throw new InputError(
      `--node-tokens is ${nodeTokens}, but an encoder of this configuration reads at most ${maxLength} tokens.`,
    )
  return nodeTokens ?? Math.min(NODE_TOKENS, tokenBudget, maxLength)
}

/** config.json of a folder, of a model on the hub, or the file itself. */
async function readConfig(encoder: string): Promise<{ config: Record<string, unknown>; file: string }> {
  const file = resolve(await locateConfiguration(encoder))
  const text = await readFile(file, 'utf8').catch((error: NodeJS.ErrnoException) => {
    throw new InputError(`the configuration cannot be read (${error.code ?? error.message})`, { file }, error)
  })
  let config: unknown
  try {
    config = JSON.parse(text)
  } catch (error) {
    throw new InputError(`this is no JSON: ${(error as Error).message}`, { file }, error)
  }
  if (typeof config !== 'object' || config === null || Array.isArray(config))
    throw new InputError('a configuration is a JSON object', { file })
  await refuseOnnxFolder(dirname(file))
  return { config: config as Record<string, unknown>, file }
}

async function refuseOnnxFolder(folder: string): Promise<void> {
  const names = await readdir(folder)
  if (names.includes('onnx') && !names.some((name) => name.endsWith('.safetensors')))
    throw new InputError(
      "This is an ONNX folder, whose graph runs as it is; memory is planned for the graphs that are built over a checkpoint. For the checkpoint's plan give its own folder, or copy config.json elsewhere.",
      { file: folder },
    )
}

/** What config.json says that the weights are stored in (`torch_dtype` before transformers 5), the whole model's or its text part's. */
function storedType(config: Record<string, unknown>, file: string): keyof typeof DTYPES {
  const inner = (config.text_config ?? {}) as Record<string, unknown>
  const named = config.dtype ?? config.torch_dtype ?? inner.dtype ?? inner.torch_dtype ?? 'float32'
  const found = (Object.keys(DTYPES) as (keyof typeof DTYPES)[]).find((name) => DTYPES[name] === named)
  if (found === undefined)
    throw new InputError(`"dtype" is ${JSON.stringify(named)}; say with --dtype what the weights are stored in.`, {
      file,
    })
  return found
}

/** A phase's memory with its name. */
interface Phase extends PhaseMemory {
  phase: string
}

interface Report {
  name: string
  memory: number
  free: boolean
  phases: Phase[]
  /** Bytes that one more token takes. */
  perToken: { encoding: number; step: number }
  /** Tokens of a row of the largest runs. */
  rowTokens: number
  /** Most tokens that fit: in a training run's budget, and in one node that is trained. */
  largest: { tokenBudget: number; nodeTokens: number }
  fits: boolean
  /** A training run whose longest node has as many tokens as the encoder reads, which videos come close to; where it reads them. */
  longestVideo?: { nodeTokens: number; total: number; fits: boolean }
  flags: string | undefined
}

function reportOf({ name, plan, memory, free }: Place, { tokenBudget, nodeTokens }: Size, flags: Flags): Report {
  const size = plan.runSize(tokenBudget, nodeTokens)
  const mixed = plan.mixedTraining(size)
  const need = (budget: number, longest: number): number => plan.mixedTraining(plan.runSize(budget, longest)).total
  const largest = {
    tokenBudget: largestThatFits(memory, (tokens) => need(tokens, nodeTokens)),
    nodeTokens: largestThatFits(memory, (tokens) => need(tokens, tokens), plan.maxLength),
  }
  const budget = Math.min(tokenBudget, largest.tokenBudget)
  const videoRun = plan.pictures === undefined ? undefined : need(tokenBudget, plan.maxLength)
  return {
    ...{ name, memory, free, largest },
    phases: [
      ...(plan.pictures === undefined
        ? []
        : [{ phase: 'pictures and frames', ...plan.pictures(LARGEST_PICTURE.patches) }]),
      { phase: 'encoding', ...plan.encoding(size) },
      { phase: 'one training step', ...plan.step(size) },
      { phase: 'a training run', ...plan.training(size) },
      { phase: 'with items over the budget', ...mixed },
    ],
    perToken: plan.perToken(size.rowTokens),
    rowTokens: size.rowTokens,
    fits: mixed.total <= memory,
    ...(videoRun !== undefined && {
      longestVideo: { nodeTokens: plan.maxLength, total: videoRun, fits: videoRun <= memory },
    }),
    flags: budget === 0 ? undefined : trainFlags(plan, budget, flags),
  }
}

/** What "canopy train" is told for a run as it was planned. */
function trainFlags({ device, precision }: MemoryPlan, tokenBudget: number, { rank, targets }: Flags): string {
  const quoted = targets?.map((pattern) => (/^[\w.-]+$/.test(pattern) ? pattern : `'${pattern}'`))
  return [
    `--rank ${rank}`,
    ...(quoted === undefined ? [] : [`--targets ${quoted.join(' ')}`]),
    `--token-budget ${tokenBudget}`,
    ...(device === 'cpu' ? [] : [`--device ${device} --precision ${precision}`]),
  ].join(' ')
}

function printModel(
  out: Output,
  {
    file,
    architecture,
    dtype,
    parameters,
    targets,
    rank,
  }: Pick<MemoryPlan, 'parameters' | 'targets'> & {
    file: string
    architecture: string
    dtype: (typeof DTYPES)[keyof typeof DTYPES]
    rank: number
  },
): void {
  const { checkpoint, vision, adapter } = parameters
  const tower = vision === 0 ? '' : `, ${millions(vision)} of them the vision tower's`
  const bytes = checkpoint * (dtype === 'float32' ? 4 : 2)
  out.line(`${file}: ${architecture}, ${millions(checkpoint)} parameters${tower}, ${gibibytes(bytes)} GiB in ${dtype}`)
  out.line(`LoRA of rank ${rank} on ${targets.length} linear maps: ${millions(adapter)} parameters`)
}

function printReport(
  out: Output,
  { name, memory, free, phases, perToken, rowTokens, largest, fits, longestVideo, flags }: Report,
  { tokenBudget, nodeTokens }: Size,
): void {
  out.line()
  out.line(
    markdownTable(
      [`${name}, GiB`, 'program', 'weights as stored', 'copies of weights', 'activations', 'LoRA, optimizer', 'peak'],
      phases.map((p) => [
        p.phase,
        ...[p.program, p.stored, p.copies, p.activations, p.adapter, p.total].map((bytes) => gibibytes(bytes)),
      ]),
    ),
  )
  out.line()
  out.line(
    `A token more takes ${mebibytes(perToken.encoding)} MiB in encoding and ${mebibytes(perToken.step)} MiB in training (rows of ${rowTokens} tokens).`,
  )
  const has = `${gibibytes(memory)} GiB${free ? ' (what is free here)' : ''}`
  if (largest.tokenBudget === 0)
    out.line(`Training on nodes of ${nodeTokens} tokens does not fit into ${has}, however small the token budget.`)
  else {
    out.line(
      `Training with a token budget of ${tokenBudget} ${fits ? 'fits' : 'does not fit'} into ${has}; the largest budget that does is ${largest.tokenBudget}, the longest single node ${largest.nodeTokens} tokens.`,
    )
    out.line(`Flags of "canopy train": ${flags}`)
  }
  if (longestVideo !== undefined)
    out.line(
      `The longest node of a video, ${longestVideo.nodeTokens} tokens at most, makes that run take ${gibibytes(longestVideo.total)} GiB, which ${longestVideo.fits ? 'fits' : 'does not fit'}; shorter videos and smaller frames take less (--node-tokens plans for them).`,
    )
}

function printFeatures(out: Output, { featureBytes }: MemoryPlan): void {
  const picture = mebibytes(featureBytes * LARGEST_PICTURE.tokens)
  out.line()
  out.line(
    `Visual features in the cache on disk: ${(featureBytes / 1024).toFixed(0)} KiB a visual token, ${picture} MiB a picture of ${LARGEST_PICTURE.tokens} tokens.`,
  )
}

const gibibytes = (bytes: number): string => (bytes / 2 ** 30).toFixed(2)
const mebibytes = (bytes: number): string => (bytes / 2 ** 20).toFixed(2)
const millions = (count: number): string => `${(count / 1e6).toFixed(1)} M`
