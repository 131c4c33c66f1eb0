import type { Command } from 'commander'
import {
  type DatasetPart,
  type DistillLine,
  datasetPart,
  distill,
  type Measured,
  resolveDistillSettings,
} from '../distill/index.ts'
import { locateEncoder, readEncoder } from '../encoder/index.ts'
import { UsageError } from '../support/errors.ts'
import { number, whole } from './flags.ts'
import { interruptible } from './interrupt.ts'
import { createOutput, type Output } from './output.ts'

interface Flags {
  teacher: string
  text: string[]
  dataset: DatasetPart[]
  exclude: DatasetPart[]
  output: string
  from?: string
  config?: string
  json?: boolean
  seed?: number
  epochs?: number
  hidden?: number
  layers?: number
  heads?: number
  intermediate?: number
  vocabulary?: number
  learningRate?: number
  threads?: number
}

const parts = (value: string, before: DatasetPart[]): DatasetPart[] => [...before, datasetPart(value)]

export function register(program: Command): void {
  program
    .command('distill')
    .summary('train a small encoder from random weights towards the embeddings of a larger one')
    .description(
      'Learns a vocabulary from texts, embeds them with the teacher, and trains every weight of a small BERT towards these\n' +
        'embeddings. Each stage is kept in --output: the same command goes on after any interruption. The result is the folder\n' +
        '"model" there: a checkpoint in float16 with its model card.',
    )
    .requiredOption('--teacher <folder>', 'encoder whose embeddings are learned; folder or Hugging Face id')
    .requiredOption('--output <folder>', 'folder of the distillation; begun again where it was left')
    .option('--text <file...>', 'text files, one passage a line', [])
    .option('--dataset <folder:split>', 'items and questions of a split, too; may be given again', parts, [])
    .option('--exclude <folder:split>', 'learn nothing that is in this split; may be given again', parts, [])
    .option('--from <folder>', "folder of another distillation whose texts and teacher's embeddings are taken over")
    .option('--config <file>', 'YAML or JSON file of settings; flags win over it')
    .option('--json', 'print the result as JSON')
    .optionsGroup('Settings (default in parentheses; a --config file may give all of them):')
    .option('--hidden <n>', 'width of the student (256)', whole(1))
    .option('--layers <n>', 'layers (2)', whole(1))
    .option('--heads <n>', 'attention heads (4)', whole(1))
    .option('--intermediate <n>', 'width of the feed-forward layers (1024)', whole(1))
    .option('--vocabulary <n>', 'tokens of the vocabulary (8000)', whole(1))
    .option('--epochs <x>', 'passes over the texts (2)', number)
    .option('--learning-rate <x>', 'peak learning rate (0.001)', number)
    .option('--seed <n>', 'seed of weights, texts and their order (1)', whole(0))
    .option('--threads <n>', 'threads of ONNX Runtime (all processors)', whole(1))
    .addHelpText(
      'after',
      `
Examples:
  $ canopy distill --teacher sentence-transformers/all-MiniLM-L6-v2 --text texts/*.txt --output runs/mini
  $ canopy distill --teacher models/minilm --text news.txt --dataset datasets/mine:train --exclude datasets/mine:dev \\
      --config configs/canopy-mini.yaml --output runs/mini
  $ canopy distill --teacher models/minilm --text news.txt --from runs/mini --layers 4 --output runs/deeper`,
    )
    .action(run)
}

async function run(flags: Flags): Promise<void> {
  const { teacher, text, dataset, exclude, output, from, config, json, ...overrides } = flags
  if (text.length === 0 && dataset.length === 0)
    throw new UsageError('There is nothing to learn from: give text files (--text) or parts of data sets (--dataset).')
  const out = createOutput({ json })
  const settings = await resolveDistillSettings(config, overrides)
  const located = await locateEncoder(teacher, { onProgress: out.progress })
  const { folder, ...known } = located
  const result = await interruptible(
    async (signal) =>
      distill({
        ...{
          teacher: await readEncoder(folder, known),
          files: text,
          datasets: dataset,
          exclude,
          output,
          from,
          settings,
        },
        command: ['canopy', ...process.argv.slice(2)],
        ...{ onProgress: out.progress, note: out.line, onStep: reporter(out), signal },
      }),
    (name) => out.warn(`${name}: finishing what is being computed; the same command goes on from there.`),
  ).finally(out.done)
  out.json(result)
  print(out, result.measured)
  out.line(`The student is ${result.model}, with its model card in README.md.`)
}

/** A progress event for each step, and a line for each measurement. */
function reporter(out: Output) {
  let first: number | undefined
  let begun = 0
  return (line: DistillLine, totalSteps: number): void => {
    const { step, loss, cosine, held_out_cosine: held } = line
    if (first === undefined) {
      first = step
      begun = performance.now()
    }
    const left = ((performance.now() - begun) / 1000 / Math.max(1, step - first)) * (totalSteps - step)
    const time = step === first ? '' : `, ${Math.ceil(left / 60)} min left`
    out.progress({ phase: 'distilling', done: step, total: totalSteps, note: `loss ${loss.toFixed(3)}${time}` })
    if (held !== undefined)
      out.line(
        `step ${step}/${totalSteps}: loss ${loss.toFixed(4)}, cosine ${cosine.toFixed(4)}, held-out ${held.toFixed(4)}${time}`,
      )
  }
}

function print(out: Output, { all, kinds, bound, speed }: Measured): void {
  out.line(`\nMean cosine to the teacher on held-out texts (at most ${bound.toFixed(3)} at this width):`)
  for (const [name, { texts, mean, p5 }] of Object.entries({ all, ...kinds }))
    out.line(`  ${name.padEnd(9)} ${mean.toFixed(4)}   5th percentile ${p5.toFixed(4)}   ${texts} texts`)
  out.line(`${speed.student.toFixed(0)} texts a second; the teacher ${speed.teacher.toFixed(0)}.`)
}
