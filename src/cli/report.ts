import type { Command } from 'commander'
import { writeReport } from '../report/index.ts'
import { whole } from './flags.ts'
import { interruptible } from './interrupt.ts'
import { createOutput } from './output.ts'

interface Flags {
  dataset?: string[]
  output?: string
  questions: number
  seed: number
  images?: boolean
  json?: boolean
}

export function register(program: Command): void {
  program
    .command('report')
    .summary('write one HTML file of figures, tables and a viewer of the evidence')
    .description(
      'Writes one HTML file that needs no network: curves of training, figures and tables of an evaluation, and a viewer in\n' +
        'which refinement can be followed step by step on the items of each question.',
    )
    .argument('<folder...>', 'folders of training runs and of evaluations; a run brings its eval/ along')
    .option(
      '--dataset <folder...>',
      'datasets that were evaluated (default: where the run had them, and below datasets/)',
    )
    .option('--output <file>', 'the HTML file (default: report.html in the first folder)')
    .option('--questions <n>', 'questions in the viewer at most, as many of each benchmark', whole(0), 500)
    .option('--seed <n>', 'seed by which they are drawn', whole(0), 1)
    .option('--images', 'put small pictures of images and video segments into the file')
    .option('--json', 'print what the report holds as JSON')
    .addHelpText(
      'after',
      `
Examples:
  $ canopy report runs/minilm
  $ canopy report runs/minilm runs/minilm/eval-mmqa --dataset datasets/mmqa --images --output minilm.html`,
    )
    .action(run)
}

async function run(folders: string[], flags: Flags): Promise<void> {
  const out = createOutput({ json: flags.json })
  const summary = await interruptible((signal) =>
    writeReport({
      folders,
      datasets: flags.dataset,
      output: flags.output,
      questions: flags.questions,
      seed: String(flags.seed),
      images: flags.images,
      onProgress: out.progress,
      signal,
    }),
  ).finally(out.done)
  out.json(summary)
  for (const note of summary.notes) out.warn(note)
  if (summary.evaluations === 0)
    out.warn(
      'no evaluation lies in these folders, so that there are no questions to show; run "canopy evaluate" first.',
    )
  out.line(
    `${summary.output}: ${summary.questions} of ${summary.questionsOf} questions, ${summary.items} items, ${(summary.bytes / 1e6).toFixed(1)} MB`,
  )
}
