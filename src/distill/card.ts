import type { EncoderProfile } from '../encoder/index.ts'
import { cell, code, fenced } from '../support/markdown.ts'
import { duration } from '../support/progress.ts'
import type { DistillLog } from './folder.ts'
import type { DistillLine } from './loop.ts'
import type { Closeness, Measured } from './measure.ts'
import type { SourceFile } from './sources.ts'
import type { TokenStore } from './tokens.ts'

export interface CardFacts {
  log: DistillLog
  teacher: Pick<EncoderProfile, 'prompts'>
  /** Tokens of the vocabulary. */
  vocabulary: number
  tokens: Pick<TokenStore, 'texts' | 'tokens'>
  steps: number
  parameters: number
  lines: readonly DistillLine[]
  measured: Measured
  threads: number
}

/** Rows of the loss curve. */
const CURVE_ROWS = 16

/** The model card of a distilled encoder: what it is, what it learned from, what it is worth, and where it is weak. */
export function modelCard(facts: CardFacts): string {
  const { log, teacher, vocabulary, tokens, steps, parameters, lines, measured, threads } = facts
  const { settings } = log
  const { hidden, layers, heads, intermediate, maxLength, warmup, relations } = settings
  const read = lines.reduce((sum, line) => sum + line.tokens, 0)
  const seconds = lines.reduce((sum, line) => sum + line.seconds, 0)
  const { speed } = measured
  const kinds = Object.entries(measured.kinds).map(([kind, closeness]) => closenessRow(`${kind}s`, closeness))
  const prompt =
    teacher.prompts.node === ''
      ? ''
      : ` The teacher was given every text with its prompt for nodes, ${code(teacher.prompts.node)}; this encoder takes the bare text.`
  const warmUp = warmup < 1 ? `${+(100 * warmup).toFixed(2)} % of the steps` : `${warmup} steps`
  return `---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
---

# A distilled sentence encoder

A BERT of ${layers} ${layers === 1 ? 'layer' : 'layers'}, width ${hidden}, ${heads} ${heads === 1 ? 'head' : 'heads'}, feed-forward width ${intermediate}; ${count(vocabulary)} tokens; at most ${maxLength} tokens a text; ${count(parameters)}
learned weights in float16. Mean pooling, unit length, no prompts. It was trained from random weights by canopy-encoder's own engine,
every weight of it, to give the embeddings of ${code(log.teacher.id)} (${log.teacher.dimension} numbers, on their ${hidden} principal axes). No weight of the
teacher is in it.${prompt}

It is meant as a small encoder to fine-tune with \`canopy train\`, and to try the toolkit with. Load it as any
sentence-transformers checkpoint.

## How close it is to its teacher

Cosine to the teacher's embedding, in the teacher's space, on held-out texts; ${measured.bound.toFixed(3)} is the most that ${hidden} numbers allow.

| texts | number | mean cosine | 5th percentile |
|---|---|---|---|
${[closenessRow('all', measured.all), ...kinds].join('\n')}

Speed, on the held-out texts with ${threads} ${threads === 1 ? 'thread' : 'threads'}, right after training: ${speed.student.toFixed(0)} texts a second, the teacher ${speed.teacher.toFixed(0)}
(${(speed.student / speed.teacher).toFixed(1)} times as many).

## What it learned from

${count(tokens.texts)} texts, ${count(tokens.tokens)} tokens: ${listed(log.texts.training)}. Held out: ${listed(log.texts.heldOut)}; no text is in both.
The vocabulary was learned from the same texts (byte-pair merges in WordPiece's notation, uncased).

${fileTable(log.files)}
${excludedText(log)}
## Training

${fenced(log.command.map(argument).join(' '))}

${count(steps)} steps of ${count(settings.batchTokens)} tokens (${count(read)} in all, ${duration(seconds)} on ${threads} ${threads === 1 ? 'thread' : 'threads'}); AdamW, peak learning rate ${settings.learningRate}, warm-up over
${warmUp}, then ${settings.schedule === 'constant' ? 'constant' : `${settings.schedule} decay`}, weight decay ${settings.weightDecay}; loss 1 - cosine${relations === 0 ? '' : `, plus ${relations} times the squared differences of the texts' similarities to each other`}. Seed ${settings.seed}.

| step | loss | cosine in training | cosine on held-out texts |
|---|---|---|---|
${curve(lines).join('\n')}

## Known weaknesses

- It knows the language of the texts above only, uncased; characters that are rare in them become [UNK], with the word they are in.
- ${maxLength} tokens at most; what follows is cut.
- Rare names and numbers are split into many pieces, of which it knows little: it is closest to its teacher on everyday prose.
- What its teacher confuses, it confuses too; it adds mistakes of its own where the table above says so. It was not tested for bias.
- Its cosines are only comparable with those of its own embeddings, not with the teacher's.
`
}

function closenessRow(name: string, { texts, mean, p5 }: Closeness): string {
  return `| ${name} | ${count(texts)} | ${fixed(mean)} | ${fixed(p5)} |`
}

/** The steps that were measured on held-out texts, evenly thinned. */
function curve(lines: readonly DistillLine[]): string[] {
  const measured = lines.filter(({ held_out_cosine }) => held_out_cosine !== undefined)
  const every = Math.max(1, Math.ceil(measured.length / CURVE_ROWS))
  return measured
    .filter((_, i) => (measured.length - 1 - i) % every === 0)
    .map(
      ({ step, loss, cosine, held_out_cosine }) =>
        `| ${count(step)} | ${fixed(loss)} | ${fixed(cosine)} | ${fixed(held_out_cosine)} |`,
    )
}

function excludedText({ excluded, parts, texts }: DistillLog): string {
  if (excluded.length === 0) return ''
  const named = parts === undefined ? 'what the command excludes' : parts.excluded.map(code).join(', ')
  return `
Nothing that has a sentence, a table's row or a question of ${named} is in vocabulary, training or held-out texts:
${count(texts.excluded)} passages, items and questions were left out. These were read from

${fileTable(excluded)}
`
}

function fileTable(files: readonly SourceFile[]): string {
  const rows = files.map(({ file, sha256 }) => `| ${cell(code(fileName(file)))} | \`${sha256}\` |`)
  return ['| file | SHA-256 |', '|---|---|', ...rows].join('\n')
}

const count = (n: number): string => n.toLocaleString('en-US')

/** A number of a log, in which one that is not finite is null. */
const fixed = (x: number | null | undefined): string => (Number.isFinite(x) ? x!.toFixed(3) : 'not finite')

function listed(counts: Readonly<Record<string, number>>): string {
  return Object.entries(counts)
    .map(([kind, n]) => `${count(n)} ${kind}s`)
    .join(', ')
}

/** A file's name, for the card goes to other machines; of a data set's file with its folder's. */
function fileName(path: string): string {
  const parts = path.split(/[\\/]/)
  return parts.slice(/^(items|questions)\.jsonl$/.test(parts.at(-1)!) ? -2 : -1).join('/')
}

/** A word of the command without the folders in it, as a shell reads it. */
function argument(word: string): string {
  const [, flag = '', value = ''] = /^(--[\w-]+=)?(.*)$/su.exec(word)!
  const name = value.split(/[\\/]/).at(-1)!
  return flag + (/^[\w@%+=:,.-]+$/.test(name) ? name : `'${name.replaceAll("'", "'\\''")}'`)
}
