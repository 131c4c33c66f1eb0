import type { Command } from 'commander'
import { type CheckReport, checkDataset, type Fault, openDataset } from '../data/index.ts'
import { loadTokenizer, readEncoder } from '../encoder/index.ts'
import { buildHierarchy, renderNode } from '../hierarchy/index.ts'
import { interruptible } from './interrupt.ts'
import { createOutput, type Output } from './output.ts'

interface Flags {
  encoder?: string
  json?: boolean
}

/** How many faults `--json` lists; the count is complete. */
const FAULTS_LISTED = 10_000

export function register(program: Command): void {
  program
    .command('check')
    .summary('find every fault in a dataset folder')
    .description(
      'Reads a dataset folder whole and reports every fault with file and line; exit status 1 when there is one. Then\n' +
        'counts what the folder holds.',
    )
    .argument('<dataset>', 'dataset folder, as "canopy import" writes it')
    .option('--encoder <folder>', "count also the nodes that this encoder's tokenizer has to cut")
    .option('--json', 'print faults and counts as JSON')
    .addHelpText(
      'after',
      `
Examples:
  $ canopy check datasets/mine
  $ canopy check datasets/mine --encoder models/all-MiniLM-L6-v2`,
    )
    .action(run)
}

async function run(folder: string, flags: Flags): Promise<void> {
  const out = createOutput(flags)
  const faults: Fault[] = []
  const report = await interruptible((signal) =>
    checkDataset(
      folder,
      (fault) => {
        if (faults.length < FAULTS_LISTED) faults.push(fault)
        const place = fault.line === undefined ? fault.file : `${fault.file}:${fault.line}`
        out.line(`${place}: ${fault.message}`)
      },
      signal,
    ),
  )
  // a folder with faults may not be readable as a dataset
  const cut = flags.encoder === undefined || report.faults > 0 ? undefined : await countCut(folder, flags.encoder, out)
  out.json({ ...report, faultList: faults, ...(cut && { encoder: cut }) })
  print(report, out)
  if (cut !== undefined) {
    out.line(`  ${cut.encoder}, at most ${cut.maxLength} tokens a node:`)
    out.line(
      `    ${cut.truncated} of ${cut.nodes} nodes of the ${cut.items} gold items are cut (${percent(cut.truncated, cut.nodes)})`,
    )
    out.line(`    ${cut.equalToParent} nodes are the same tokens as the node above them: such pairs cannot be learned`)
  } else if (flags.encoder !== undefined) out.warn('the nodes are counted once the faults are gone')
  if (report.faults > 0) process.exitCode = 1
}

function print(report: CheckReport, out: Output): void {
  const kinds = Object.entries(report.items).filter(([, count]) => count > 0)
  out.line(`${report.folder}: ${report.faults === 0 ? 'no fault' : `${report.faults} faults`}`)
  out.line(`  items: ${kinds.length === 0 ? 'none' : kinds.map(([kind, count]) => `${count} ${kind}`).join(', ')}`)
  if (report.items.text > 0) {
    out.line(`  text leaves: ${report.leaves}; items with one leaf only: ${report.oneLeafItems}`)
  }
  for (const [name, split] of Object.entries(report.splits)) {
    out.line(
      `  split "${name}": ${split.questions} questions, ${split.gold} gold items, ${split.withoutGold} questions without gold, ${split.withRetrieved} with retrieved items`,
    )
  }
}

const percent = (part: number, whole: number): string =>
  whole === 0 ? '0 %' : `${((100 * part) / whole).toFixed(1)} %`

interface CutNodes {
  encoder: string
  maxLength: number
  items: number
  nodes: number
  truncated: number
  /** Nodes below the root with the token sequence of their parent. */
  equalToParent: number
}

/** Tokenises every node of every gold text item, title included, as training does. */
async function countCut(folder: string, encoder: string, out: Output): Promise<CutNodes> {
  const profile = await readEncoder(encoder)
  const tokenizer = await loadTokenizer(profile)
  const result: CutNodes = {
    encoder,
    maxLength: tokenizer.maxLength,
    items: 0,
    nodes: 0,
    truncated: 0,
    equalToParent: 0,
  }
  const dataset = await openDataset(folder)
  const seen = new Set<string>()
  try {
    for await (const { question } of dataset.questions()) {
      for (const gold of question.gold) {
        if (seen.has(gold.item)) continue
        seen.add(gold.item)
        const item = await dataset.item(gold.item)
        if (item.modality !== 'text') continue
        const hierarchy = buildHierarchy(item)
        const tokens = new Map(
          hierarchy.nodes.map((node) => {
            const text = profile.prompts.node + renderNode(hierarchy, node, { title: true })
            return [node, tokenizer.encode(text)]
          }),
        )
        result.items++
        for (const [node, { ids, truncated }] of tokens) {
          result.nodes++
          if (truncated) result.truncated++
          for (const child of node.children) {
            const other = tokens.get(child)!.ids
            if (other.length === ids.length && other.every((id, i) => id === ids[i])) result.equalToParent++
          }
        }
        out.progress({ phase: 'gold items', done: result.items })
      }
    }
  } finally {
    await dataset.close()
    out.done()
  }
  return result
}
