import { readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { parseHTML } from 'linkedom'
import sharp from 'sharp'
import { describe, expect, it } from 'vitest'
import { openDataset } from '../../src/data/index.ts'
import { readScores, scoreOf } from '../../src/eval/index.ts'
import { buildTree, preOrder } from '../../src/hierarchy/index.ts'
import { refine } from '../../src/refine/index.ts'
import { writeReport } from '../../src/report/index.ts'
import { replay } from '../../src/report/replay.ts'
import { leafCount, VIEWER_ENCODERS, type ViewerData } from '../../src/report/viewer-data.ts'
import { InputError } from '../../src/support/errors.ts'
import { temporaryFolder } from '../support/temporary.ts'
import { evaluatedWorld, HOSTILE, hostileWorld, moveEvaluation, scoreLines, writeDataset, writeRun } from './world.ts'

const read = (file: string) => {
  const text = readFileSync(file, 'utf8')
  const { document } = parseHTML(text)
  const json = document.getElementById('canopy-data')
  return { text, document, data: json === null ? undefined : (JSON.parse(json.textContent!) as ViewerData) }
}

describe('writeReport', () => {
  it('shows a run with its evaluation: figures, tables, curves and every question', async () => {
    const folder = temporaryFolder()
    const { dataset, evaluation } = await evaluatedWorld(folder, hostileWorld())
    const run = writeRun(join(folder, 'run'), { dataset })
    moveEvaluation(evaluation, run)
    const summary = await writeReport({ folders: [run] })
    expect(summary).toMatchObject({
      output: join(run, 'report.html'),
      runs: 1,
      evaluations: 1,
      questions: 3,
      questionsOf: 3,
      notes: [],
    })
    const { document, data } = read(summary.output)
    expect([...document.querySelectorAll('main > section')].map((s) => (s as unknown as { id: string }).id)).toEqual([
      'results',
      'evidence',
      'training',
      'tables',
    ])
    const titles = [...document.querySelectorAll('h3')].map((h) => h.textContent)
    for (const title of [
      'Decision accuracy',
      'Decision accuracy by level of the tree',
      'Scores by level, relative to the root',
      'Tokens kept against recall',
      'Recall and tokens over margins',
      'Decisions',
      'Pruning',
      'Selection of evidence',
    ]) {
      expect(titles).toContain(title)
    }
    for (const svg of document.querySelectorAll('figure svg')) {
      expect(svg.getAttribute('role')).toBe('img')
      expect(svg.getAttribute('aria-label')).not.toBe('')
      expect([...svg.children].slice(0, 2).map((child) => child.localName)).toEqual(['title', 'desc'])
      expect(svg.children[1]!.textContent).toMatch(/\d/)
    }
    expect(document.getElementById('training')!.textContent).toContain('1 steps were not applied')
    expect(data!.questions).toHaveLength(3)
  })

  it('holds no address of the network, one script and one style, each by its hash', async () => {
    const { evaluation, dataset } = await evaluatedWorld(temporaryFolder(), hostileWorld())
    const { output } = await writeReport({ folders: [evaluation], datasets: [dataset] })
    const { document, text } = read(output)
    const policy = document.querySelector('meta[http-equiv]')!.getAttribute('content')!
    expect(policy).toContain("default-src 'none'")
    expect(policy).not.toContain('unsafe')
    expect(document.querySelectorAll('link, script[src], iframe, object, embed, img').length).toBe(0)
    expect([...document.querySelectorAll('script')].map((s) => s.getAttribute('type'))).toEqual([
      'application/json',
      null,
    ])
    expect(document.querySelectorAll('style').length).toBe(1)
    expect(document.querySelectorAll('[style]').length).toBe(0)
    expect(text.replaceAll(/http:\/\/www\.w3\.org\/\d+\/(svg|xlink)/g, '')).not.toMatch(/https?:|url\(/)
  })

  it('keeps hostile strings text, on the page and in its data', async () => {
    const { evaluation, dataset } = await evaluatedWorld(temporaryFolder(), hostileWorld())
    const { output } = await writeReport({ folders: [evaluation], datasets: [dataset] })
    const { text, document, data } = read(output)
    for (const bad of HOSTILE.slice(0, 3)) expect(text).not.toContain(bad)
    expect(text).not.toMatch(/[\u2028\u2029]/)
    expect(text.match(/<\/script/g)).toHaveLength(2)
    expect(document.querySelectorAll('img, [onerror], [onload], i:not([class]), main b').length).toBe(0)
    expect(JSON.stringify(data)).toContain(JSON.stringify(HOSTILE[1]).slice(1, -1))
    expect(document.querySelector('#results')!.textContent).toContain('hostile <i>set</i>')
  })

  it('gives the same bytes for the same input', async () => {
    const { evaluation, dataset } = await evaluatedWorld(temporaryFolder(), hostileWorld())
    const write = async (): Promise<string> => {
      const { output } = await writeReport({ folders: [evaluation], datasets: [dataset] })
      return readFileSync(output, 'utf8')
    }
    const first = await write()
    expect((await write()) === first).toBe(true)
  })

  it('shows a run that was not evaluated, even one that still writes its metrics', async () => {
    const run = writeRun(join(temporaryFolder(), 'run'), { dataset: 'gone', lastLine: '{"step":41,"lo' })
    const { output, notes } = await writeReport({ folders: [run] })
    expect(notes).toEqual([])
    const { document, data } = read(output)
    expect(data).toBeUndefined()
    expect(document.getElementById('results')).toBeNull()
    expect(document.getElementById('training')!.querySelectorAll('figure').length).toBe(3)
    expect(document.getElementById('evidence')!.textContent).toContain('No evaluation was given')
  })

  it('shows an evaluation without scores.jsonl or without its dataset, and says what is missing', async () => {
    const { evaluation } = await evaluatedWorld(temporaryFolder(), hostileWorld())
    const without = await writeReport({ folders: [evaluation] })
    expect(without.notes).toEqual([expect.stringMatching(/dataset "world" .* was not found.*--dataset/)])
    rmSync(join(evaluation, 'scores.jsonl'))
    const { notes, output } = await writeReport({ folders: [evaluation] })
    expect(notes).toEqual([expect.stringMatching(/no scores\.jsonl/)])
    expect(read(output).document.getElementById('tables')).not.toBeNull()
  })

  it('draws the curve over margins, and the margin that was picked with its figures', async () => {
    const { evaluation, dataset } = await evaluatedWorld(temporaryFolder(), hostileWorld(), 'world', {
      margin: { value: 0.0625, origin: 'stated' },
    })
    const { document } = read((await writeReport({ folders: [evaluation], datasets: [dataset] })).output)
    const titled = (tag: string, title: string) =>
      [...document.querySelectorAll(tag)].find((s) => s.querySelector('h3')?.textContent === title)!
    const figure = titled('section.figure', 'Recall and tokens over margins')
    expect(figure.textContent).toContain('Margin 0.0625 of the fine-tuned scores, as stated')
    expect(figure.textContent).toContain('margin 0.0625')
    // every line of margins.csv that is drawn is a dot with its numbers
    const table = readFileSync(join(evaluation, 'margins.csv'), 'utf8').trim().split('\n').slice(1)
    const [panel] = [...figure.querySelectorAll('.panel')].filter((p) => p.textContent!.includes('otters'))
    const tips = [...panel!.querySelectorAll('title')].map((t) => t.textContent)
    const own = table.filter((line) => line.startsWith('otters,'))
    expect(own.length).toBeGreaterThan(3)
    for (const line of own) {
      const [, encoder, , margin] = line.split(',')
      expect(
        tips.some((tip) => tip!.startsWith(`${encoder}, margin ${margin}: recall`)),
        line,
      ).toBe(true)
    }
    const rows = [...titled('section.table', 'Margin').querySelectorAll('tbody')].map((body) =>
      [...body.querySelectorAll('tr th')].map((th) => th.textContent),
    )
    expect(rows[0]).toEqual(['hostile <i>set</i>', 'margin 0', 'margin 0.0625', 'difference'])
  })

  it('shows an evaluation by a version that knew no margins, and refuses a damaged table of them', async () => {
    const { evaluation, dataset } = await evaluatedWorld(temporaryFolder(), hostileWorld())
    const file = join(evaluation, 'margins.csv')
    const text = readFileSync(file, 'utf8')
    rmSync(file)
    const write = () => writeReport({ folders: [evaluation], datasets: [dataset] })
    expect(read((await write()).output).text).not.toContain('over margins')
    for (const [bad, message] of [
      [text.replace(/\n([^\n]*),fine-tuned,/, '\n$1,another,'), /margins\.csv:\d+: .*"encoder"/],
      [text.replace('margin,', 'edge,'), /margins\.csv:2: .*"margin"/],
      [text.replace(/,0\n/, ',x\n').replace(/,[\d.]+,[\d.]+,[\d.]+,x\n/, ',x,x,x,0\n'), /margins\.csv:2: /],
    ] as const) {
      expect(bad).not.toBe(text)
      writeFileSync(file, bad)
      await expect(write()).rejects.toThrow(message)
      await expect(write()).rejects.toThrow(InputError)
    }
  })

  it('leaves out a question that no encoder scored, and says so', async () => {
    const { evaluation, dataset } = await evaluatedWorld(temporaryFolder(), hostileWorld())
    const file = join(evaluation, 'scores.jsonl')
    const changed = readFileSync(file, 'utf8')
      .split('\n')
      .map((line) =>
        line.includes('"question":"q3"') ? line.replace(/"scores":\{.*"permuted"/, '"scores":{"permuted"') : line,
      )
    writeFileSync(file, changed.join('\n'))
    const { questions, questionsOf, notes } = await writeReport({ folders: [evaluation], datasets: [dataset] })
    expect({ questions, questionsOf, notes }).toEqual({
      questions: 2,
      questionsOf: 3,
      notes: [expect.stringMatching(/^Question q3 is not shown/)],
    })
  })

  it('finds the dataset where the run of the evaluation had it', async () => {
    const folder = temporaryFolder()
    const { evaluation, dataset } = await evaluatedWorld(folder, hostileWorld())
    const run = writeRun(join(folder, 'run'), { dataset })
    moveEvaluation(evaluation, run)
    expect(await writeReport({ folders: [join(run, 'eval')] })).toMatchObject({ runs: 0, questions: 3, notes: [] })
  })

  it('puts several runs and evaluations on one page', async () => {
    const folder = temporaryFolder()
    const one = await evaluatedWorld(folder, hostileWorld(), 'one')
    const two = await evaluatedWorld(folder, hostileWorld(), 'two')
    const runs = ['a', 'b'].map((name) => writeRun(join(folder, name), { dataset: one.dataset }))
    const { output, ...summary } = await writeReport({
      folders: [...runs, one.evaluation, two.evaluation, one.evaluation],
      datasets: [one.dataset, two.dataset],
    })
    expect(summary).toMatchObject({ runs: 2, evaluations: 2, questions: 6 })
    const { data } = read(output)
    expect(data!.evaluations.map(({ name }) => name)).toEqual(['one-eval', 'two-eval'])
  })

  it('calls a run and its evaluation by the folder that holds them, where that says more than "run" and "eval"', async () => {
    const folder = temporaryFolder()
    const { dataset, evaluation } = await evaluatedWorld(folder, hostileWorld())
    const run = writeRun(join(folder, 'a <b> & "c"', 'run'), { dataset })
    moveEvaluation(evaluation, run)
    const { output } = await writeReport({ folders: [run] })
    const { document, data, text } = read(output)
    expect(document.querySelector('h1')?.textContent).toBe('a <b> & "c"')
    expect(data!.evaluations.map(({ name }) => name)).toEqual(['a <b> & "c"'])
    expect(text).not.toContain('a <b>')
  })

  it('draws questions evenly over benchmarks, the same ones for the same seed, and says so', async () => {
    const { items } = hostileWorld()
    const question = (benchmark: string, i: number) => ({
      id: `${benchmark}-${i}`,
      benchmark,
      split: 'dev',
      question: `Which ${i}?`,
      answers: [],
      gold: [{ item: 'otters', spans: [[0, 5] as [number, number]] }],
    })
    const questions = [
      ...Array.from({ length: 40 }, (_, i) => question('large', i)),
      ...Array.from({ length: 3 }, (_, i) => question('small', i)),
      ...Array.from({ length: 20 }, (_, i) => question('middle', i)),
    ]
    const folder = temporaryFolder()
    const { evaluation, dataset } = await evaluatedWorld(folder, { items, questions })
    const draw = async (seed: string) => {
      const { output } = await writeReport({ folders: [evaluation], datasets: [dataset], questions: 13, seed })
      const { data, document } = read(output)
      expect(document.getElementById('evidence')!.textContent).toContain('13 of 63 questions')
      return data!.questions
    }
    const drawn = await draw('1')
    const count = (benchmark: string) => drawn.filter((q) => q.benchmark === benchmark).length
    expect([count('large'), count('small'), count('middle')]).toEqual([5, 3, 5])
    expect(await draw('1')).toEqual(drawn)
    expect((await draw('2')).map(({ id }) => id)).not.toEqual(drawn.map(({ id }) => id))
  })

  it('lets the page refine exactly as the evaluation did', async () => {
    const { evaluation, dataset } = await evaluatedWorld(temporaryFolder(), hostileWorld())
    const { output } = await writeReport({ folders: [evaluation], datasets: [dataset] })
    const { data } = read(output)
    let compared = 0
    for await (const instance of readScores(evaluation)) {
      const question = data!.questions.find((q) => q.id === instance.question)!
      const shown = question.items.find(({ item }) => data!.items[item]!.id === instance.item)!
      const nodes = preOrder(buildTree(leafCount(data!.items[shown.item]!), shown.branching))
      for (const encoder of VIEWER_ENCODERS) {
        const rounded = shown.scores[encoder]!
        const kept = replay(nodes, (node) => rounded[nodes.indexOf(node)]!).filter((s) => s.kept)
        const expected = refine(instance.root, scoreOf(instance.nodes, instance.scores[encoder]!))
        expect(kept.map(({ node }) => [node.from, node.to])).toEqual(expected.map(({ from, to }) => [from, to]))
        compared++
      }
    }
    expect(compared).toBeGreaterThan(8)
  })

  it('embeds small pictures only when asked, and names those that cannot be read', async () => {
    const folder = temporaryFolder()
    const items = [
      { id: 'good', modality: 'image' as const, title: 'Good', image: 'good.png' },
      { id: 'bad', modality: 'image' as const, title: 'Bad', image: 'bad.png' },
    ]
    const questions = items.map(({ id }) => ({
      id: `q-${id}`,
      benchmark: 'pictures',
      split: 'dev',
      question: 'Which?',
      answers: [],
      gold: [{ item: id, whole: true as const }],
    }))
    const { evaluation, dataset } = await evaluatedWorld(folder, { items, questions })
    await sharp({ create: { width: 900, height: 300, channels: 3, background: '#3060a0' } })
      .png()
      .toFile(join(dataset, 'good.png'))
    writeFileSync(join(dataset, 'bad.png'), 'no picture')
    const options = { folders: [evaluation], datasets: [dataset] }
    const plain = read((await writeReport(options)).output)
    expect(plain.text).not.toContain('data:image')
    const { output, notes } = await writeReport({ ...options, images: true })
    expect(notes).toEqual([expect.stringMatching(/No picture of bad\.png/)])
    const [good, bad] = read(output).data!.items
    expect(good).toMatchObject({
      path: 'good.png',
      picture: { width: 192, height: 64, src: expect.stringMatching(/^data:image\/webp;base64,/) },
    })
    expect(bad).not.toHaveProperty('picture')
  })
})

describe('writeReport refuses', () => {
  const refusal = async (options: Parameters<typeof writeReport>[0]): Promise<string> => {
    const error = await writeReport(options).catch((e: unknown) => e)
    expect(error).toBeInstanceOf(InputError)
    return (error as Error).message
  }

  it('a folder that is neither run nor evaluation, and one that is not there', async () => {
    const folder = temporaryFolder()
    expect(await refusal({ folders: [folder] })).toMatch(/neither a training run .* nor an evaluation/)
    expect(await refusal({ folders: [join(folder, 'none')] })).toContain('no such folder')
  })

  it('a dataset that has changed since the evaluation', async () => {
    const folder = temporaryFolder()
    const { items, questions } = hostileWorld()
    const { evaluation, dataset } = await evaluatedWorld(folder, { items, questions })
    const changed = items.map((item) => (item.id === 'otters' ? { ...item, title: 'Others' } : item))
    writeDataset(dataset, 'world', changed, questions)
    expect(await refusal({ folders: [evaluation], datasets: [dataset] })).toMatch(/not the one that .* was measured on/)
  })

  it('damaged metrics and scores, with file and line', async () => {
    const folder = temporaryFolder()
    const { evaluation, dataset } = await evaluatedWorld(folder, hostileWorld())
    const scores = join(evaluation, 'scores.jsonl')
    writeFileSync(scores, readFileSync(scores, 'utf8').replace('"leaves":', '"leave":'))
    expect(await refusal({ folders: [evaluation], datasets: [dataset] })).toContain(`${scores}:1:`)
    writeFileSync(join(evaluation, 'metrics.json'), '{"evaluation":{}}')
    expect(await refusal({ folders: [evaluation] })).toContain(join(evaluation, 'metrics.json'))
    const run = writeRun(join(folder, 'run'), { dataset, lastLine: '{"step":"x"}\n{"step":43}\n' })
    expect(await refusal({ folders: [run] })).toContain(`${join(run, 'metrics.jsonl')}:42:`)
  })

  it('to replace anything but an older report', async () => {
    const folder = temporaryFolder()
    const run = writeRun(join(folder, 'run'), { dataset: 'gone' })
    const output = join(folder, 'notes.html')
    writeFileSync(output, '<!doctype html><title>Mine</title>')
    expect(await refusal({ folders: [run], output })).toContain('no report')
    expect(await refusal({ folders: [run], output: folder })).toContain('folder')
    expect(readFileSync(output, 'utf8')).toContain('Mine')
  })
})

it('the scores of the tests fit their dataset', async () => {
  const { items, questions } = hostileWorld()
  const dataset = await openDataset(writeDataset(temporaryFolder(), 'world', items, questions))
  let count = 0
  for await (const { question } of dataset.questions('dev')) count += question.gold.length
  await dataset.close()
  expect(scoreLines(items, questions)).toHaveLength(count + 1)
})
