import { expect, it } from 'vitest'
import { type CardFacts, modelCard } from '../../src/distill/card.ts'
import { resolveDistillSettings } from '../../src/distill/settings.ts'

const line = { epoch: 1, learning_rate: 1e-3, gradient_norm: 1, texts: 10, tokens: 100, seconds: 2 }

async function facts(files: string[], command: string[]): Promise<CardFacts> {
  const closeness = { texts: 1234, mean: 0.8125, p5: 0.5 }
  return {
    log: {
      command,
      settings: await resolveDistillSettings(undefined, { relations: 0.5, warmup: 20, schedule: 'constant' }),
      teacher: { id: 'org/teacher', fingerprint: 'f', dimension: 384 },
      files: files.map((file) => ({ file, sha256: 'ab12' })),
      excluded: [],
      parts: { learned: [], excluded: [] },
      texts: { training: { sentence: 12_345 }, heldOut: { sentence: 1234 }, excluded: 0 },
    },
    ...{ teacher: { prompts: { query: '', node: '' } }, vocabulary: 8000, tokens: { texts: 12_345, tokens: 200_000 } },
    ...{ steps: 3, parameters: 3_694_080, threads: 2 },
    lines: [
      { ...line, step: 1, loss: Number.NaN, cosine: null as never, held_out_cosine: 0.1 },
      { ...line, step: 2, loss: 0.5, cosine: 0.5 },
      { ...line, step: 3, loss: 0.25, cosine: 0.75, held_out_cosine: 0.8 },
    ],
    measured: { all: closeness, kinds: { sentence: closeness }, bound: 0.975, speed: { student: 1000, teacher: 100 } },
  }
}

it('a model card says the numbers, and shows files and command by their names alone', async () => {
  const command = [
    'canopy',
    'distill',
    '--text',
    '/home/somebody/texts/news.txt',
    '--config=/home/somebody/c.yaml',
    '--seed',
    '3',
  ]
  const card = modelCard(await facts(['/home/somebody/texts/news.txt', 'C:\\sets\\mine\\items.jsonl'], command))
  expect(card).not.toMatch(/somebody|C:|undefined|NaN|null/)
  expect(card).toContain('| `news.txt` | `ab12` |\n| `mine/items.jsonl` | `ab12` |')
  expect(card).toContain('canopy distill --text news.txt --config=c.yaml --seed 3\n')
  expect(card).toContain('| all | 1,234 | 0.813 | 0.500 |')
  expect(card).toContain('(10.0 times as many)')
  expect(card).toContain('warm-up over\n20 steps, then constant')
  expect(card).toContain("plus 0.5 times the squared differences of the texts' similarities")
  expect(card).toContain('| 1 | not finite | not finite | 0.100 |\n| 3 | 0.250 | 0.750 | 0.800 |')
})

it('no name of a file breaks the card', async () => {
  const name = "a|b `c`\n# heading <script> $(x) it's.txt"
  const card = modelCard(await facts([`/texts/${name}`], ['canopy', 'distill', '--text', `/texts/${name}`, '```']))
  const row = card.split('\n').find((text) => text.includes('a\\|b'))
  expect(row).toBe("| ``a\\|b `c` # heading <script> $(x) it's.txt`` | `ab12` |")
  const [fence, shown, end] = card.slice(card.indexOf('````')).split('\n')
  expect([fence, end]).toEqual(['````sh', '````'])
  expect(shown).toBe("canopy distill --text 'a|b `c` # heading <script> $(x) it'\\''s.txt' '```'")
  expect(card.split('\n').filter((text) => text.startsWith('# '))).toEqual(['# A distilled sentence encoder'])
})
