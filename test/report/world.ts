import { cpSync, mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { type EvaluateScoresOptions, evaluateScores } from '../../src/eval/index.ts'
import { buildHierarchy, goldLeaves, type Item, type Question } from '../../src/hierarchy/index.ts'
import { createRandom } from '../../src/support/random.ts'
import { lines } from '../support/temporary.ts'

/** Text that would do something if anything read it as HTML or as a script. */
export const HOSTILE = [
  '<img src=x onerror="window.hacked = 1">',
  '</script><script>window.hacked = 2</script>',
  '"><svg onload="window.hacked = 3">',
  '<!-- <script> \u2028\u2029 {{window.hacked = 4}} &lt;b&gt; javascript:alert(1)',
] as const

/** Writes a dataset folder and returns it. */
export function writeDataset(
  folder: string,
  name: string,
  items: readonly Item[],
  questions: readonly Question[],
): string {
  mkdirSync(folder, { recursive: true })
  writeFileSync(join(folder, 'items.jsonl'), lines(...items))
  writeFileSync(join(folder, 'questions.jsonl'), lines(...questions))
  const meta = {
    schema: 'canopy-dataset/1',
    name,
    benchmark: name,
    splits: { dev: { questions: questions.length } },
    counts: { items: items.length, questions: questions.length },
  }
  writeFileSync(join(folder, 'dataset.json'), JSON.stringify(meta))
  return folder
}

/** One question of each modality, every string of them hostile, and a plain one. */
export function hostileWorld(): { items: Item[]; questions: Question[] } {
  const [image, script, svg, rest] = HOSTILE
  const items: Item[] = [
    {
      id: `text ${image}`,
      modality: 'text',
      title: `Title ${script}`,
      text: `${image} one. ${script} two. ${svg} three. ${rest} four.`,
      sentences: [],
    },
    {
      id: 'table',
      modality: 'table',
      title: `Table ${svg}`,
      caption: image,
      header: [`Head ${script}`, '<b>bold</b>'],
      rows: [[image, script], [svg], [rest, 'x', 'more cells than the header']],
    },
    {
      id: 'video',
      modality: 'video',
      title: `Video ${image}`,
      video: `clips/${svg.replaceAll('/', '')}.mp4`,
      start: 2030,
      end: 2220,
    },
    { id: 'image', modality: 'image', title: `Image ${rest}`, image: `<b>.png` },
    {
      id: 'otters',
      modality: 'text',
      title: 'Otters',
      text: 'Otters swim. They hold hands when they sleep. They eat fish. Rivers are long.',
    },
    { id: 'rivers', modality: 'text', title: 'Rivers', text: 'Rivers are long. Lakes are not.' },
  ]
  const text = items[0] as Extract<Item, { modality: 'text' }>
  text.sentences = sentencesOf(
    text.text,
    [' two.', ' three.', ' four.'].map((end) => text.text.indexOf(end)),
  )
  const base = { benchmark: 'hostile <i>set</i>', split: 'dev' }
  const questions: Question[] = [
    {
      ...base,
      id: `q1 ${svg}`,
      question: `Which ${image} ${script}?`,
      answers: [script, rest],
      gold: [
        { item: items[0]!.id, spans: [[0, 5]] },
        { item: 'table', rows: [1] },
      ],
      retrieved: [items[0]!.id, 'rivers'],
    },
    {
      ...base,
      id: 'q2',
      question: 'When is it shown?',
      answers: ['at 0:40'],
      gold: [
        { item: 'video', times: [[2070, 2075]] },
        { item: 'image', whole: true },
      ],
    },
    {
      id: 'q3',
      benchmark: 'otters',
      split: 'dev',
      question: 'What do otters do asleep?',
      answers: ['hold hands'],
      gold: [{ item: 'otters', quotes: ['They hold hands when they sleep.'] }],
    },
  ]
  return { items, questions }
}

function sentencesOf(text: string, ends: number[]): [number, number][] {
  const bounds = [0, ...ends, text.length]
  return bounds.slice(1).map((end, i) => [bounds[i]!, end])
}

/** Scores for every item of the questions: noise, lifted where gold is, more so for the fine-tuned encoder. */
export function scoreLines(items: readonly Item[], questions: readonly Question[], seed = '1'): object[] {
  const random = createRandom(seed)
  const byId = new Map(items.map((item) => [item.id, item]))
  return questions.flatMap((question) =>
    [...new Set([...question.gold.map(({ item }) => item), ...(question.retrieved ?? [])])].map((id) => {
      const hierarchy = buildHierarchy(byId.get(id)!)
      const gold = new Set<number>()
      for (const entry of question.gold.filter(({ item }) => item === id)) {
        for (const [leaf, is] of goldLeaves(hierarchy, entry).gold.entries()) if (is) gold.add(leaf)
      }
      const scores = (lift: number): number[] =>
        hierarchy.nodes.map(({ from, to }) => {
          const share = [...gold].filter((leaf) => leaf >= from && leaf < to).length / (to - from)
          return 0.3 + lift * share + 0.2 * random.next()
        })
      return {
        benchmark: question.benchmark,
        question: question.id,
        item: id,
        nodes: hierarchy.nodes.map(({ from, to }) => [from, to]),
        scores: { frozen: scores(0.02), 'fine-tuned': scores(0.3), permuted: scores(0) },
        leafTokens: hierarchy.leaves.map(() => 10),
        headerTokens: 2,
        truncated: [0],
      }
    }),
  )
}

/** Writes a dataset and an evaluation of made-up scores below `folder`. */
export async function evaluatedWorld(
  folder: string,
  { items, questions }: { items: readonly Item[]; questions: readonly Question[] },
  name = 'world',
  more: Partial<EvaluateScoresOptions> = {},
): Promise<{ dataset: string; evaluation: string }> {
  const dataset = writeDataset(join(folder, name), name, items, questions)
  const scores = join(folder, `${name}-scores.jsonl`)
  writeFileSync(scores, lines(...scoreLines(items, questions)))
  const evaluation = join(folder, `${name}-eval`)
  await evaluateScores({
    datasets: [dataset],
    split: 'dev',
    output: evaluation,
    scores: [scores],
    resamples: 20,
    ...more,
  })
  return { dataset, evaluation }
}

/** A run folder as training leaves it, as far as a report reads it. */
export function writeRun(folder: string, { dataset, lastLine = '' }: { dataset: string; lastLine?: string }): string {
  mkdirSync(folder, { recursive: true })
  const config = {
    schema: 'canopy-run/1',
    encoder: { id: 'tiny <b>bert</b>' },
    seed: 7,
    steps: 40,
    settings: { loss: 'logistic', tau: 0.05 },
    data: [{ dataset: 'world', folder: dataset }],
    instances: { train: 30, validation: 5 },
  }
  writeFileSync(join(folder, 'config.json'), JSON.stringify(config))
  const validation = (accuracy: number) => ({
    decision_accuracy: accuracy,
    loss: 1 - accuracy,
    benchmarks: { a: accuracy, b: accuracy / 2 },
  })
  const steps = Array.from({ length: 40 }, (_, i) => ({
    step: i + 1,
    loss: i === 12 ? null : 1 / (i + 2),
    learning_rate: 0.001 * (1 - i / 40),
    ...(i === 12 && { skipped: 'the loss is NaN' }),
    ...(i % 10 === 9 && { validation: validation(0.4 + i / 100) }),
  }))
  writeFileSync(join(folder, 'metrics.jsonl'), lines({ step: 0, validation: validation(0.4) }, ...steps) + lastLine)
  return folder
}

/** Puts an evaluation into a run's folder. */
export const moveEvaluation = (evaluation: string, run: string): void =>
  cpSync(evaluation, join(run, 'eval'), { recursive: true })
