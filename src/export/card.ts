import type { CanopySettings, EncoderProfile } from '../encoder/index.ts'
import type { SelfCheck } from './self-check.ts'

/**
 * The model card (README.md) of an exported encoder, in the form the Hugging Face hub reads: what it is, how it is used, what
 * was measured.
 *
 * @param table Markdown of the run's measured table, where it was evaluated
 */
export function modelCard(options: {
  profile: EncoderProfile
  settings: CanopySettings
  check: SelfCheck
  table: string | undefined
  bundled: boolean
}): string {
  const { profile, settings, check, table, bundled } = options
  const base = settings.base.revision === undefined ? settings.base.id : `${settings.base.id}@${settings.base.revision}`
  const query = settings.queryEncoder.id
  return `---
library_name: sentence-transformers
pipeline_tag: feature-extraction
tags: [canopy, node-encoder, onnx]
---

# CANOPY node encoder over ${base}

Scores the regions of retrieved items for refinement (CANOPY, arXiv 2610.00923): s(question, region) =
cos(f0(question), fθ(region)). This folder is fθ, as ONNX ${profile.kind === 'onnx' ? 'in the form and the types of the graph that it was trained over' : 'in fp32'}. **Questions are embedded by f0, which is ${query}, not by this
model**${bundled ? ' (it lies in `query-encoder/`)' : ''}; \`canopy.json\` holds its fingerprint.

| setting | value |
|---|---|
| pooling | ${profile.pooling}${profile.normalize ? ', scaled to length 1' : ''} |
| dimension | ${profile.dimension} |
| maximum length | ${profile.maxLength} tokens |
| text of a region | ${settings.title ? '`title` line, then' : 'without title,'} the sentences; of a table the column header, then the rows, as ${settings.tableFormat} |
| prompt of a region | ${settings.prompts.node === '' ? 'none' : `\`${settings.prompts.node}\``} |
| branching | ${settings.branching} |

\`\`\`ts
import { openEncoder } from 'canopy-encoder'
const encoder = await openEncoder('this/folder'${bundled ? '' : `, { queryEncoder: '${query}' }`})
const [item] = await encoder.refine(question, [{ title, text }])
\`\`\`

transformers.js takes the closing [SEP] off a text that is over the limit, so that its embedding differs there; cut such texts
before, or embed them with canopy-encoder, sentence-transformers or your own call of ONNX Runtime.

## Measured

Against the trained graph, ${check.texts} texts of which ${check.truncated} over-long: smallest cosine ${check.minCosine.toFixed(7)},
largest difference ${check.maxDifference.toExponential(1)}${
    check.unrounded === undefined
      ? ''
      : `; without the rounding of the file's own arithmetic ${check.unrounded.minCosine.toFixed(7)} and ${check.unrounded.maxDifference.toExponential(1)}`
  }.
${check.refinement === undefined ? '' : refinementText(check.refinement)}
${table ?? 'The encoder was not evaluated on a test split.'}
`
}

function refinementText({ instances, trained, exported, sameKept }: NonNullable<SelfCheck['refinement']>): string {
  const percent = (x: number): string => `${(100 * x).toFixed(1)} %`
  return `
| ${instances} held-out items | decision accuracy | pruned items | dropped items |
|---|---|---|---|
| trained | ${percent(trained.decisionAccuracy)} | ${percent(trained.prunedItemRate)} | ${percent(trained.droppedItemRate)} |
| exported | ${percent(exported.decisionAccuracy)} | ${percent(exported.prunedItemRate)} | ${percent(exported.droppedItemRate)} |

The same ranges are kept for ${percent(sameKept)} of them.
`
}
