import {
  type CanopySettings,
  type EncoderProfile,
  MAIN_PART,
  PARTS,
  type Pooling,
  readsPictures,
} from '../encoder/index.ts'
import { cell, code } from '../support/markdown.ts'
import { FOR_ADAPTERS, WITH_ADAPTER } from './adapter-graphs.ts'
import type { CheckedFolder, CheckedVariant } from './check-folder.ts'
import { checksMarkdown } from './checks-table.ts'
import type { Comparison } from './closeness.ts'
import { ownTypes } from './folder.ts'
import type { SelfCheck } from './self-check.ts'
import { type ExportType, transformersJsType, variantFile } from './variants.ts'

/**
 * The model card (README.md) of an exported encoder, in the form the Hugging Face hub reads: what it is, how it is used, what
 * was measured.
 *
 * @param types that the weights are written in
 * @param table Markdown of the run's measured table, where it was evaluated
 * @param adapted whether an adapter of a run was merged, beside which an evaluation would lie
 */
export function modelCard(options: {
  profile: EncoderProfile
  settings: CanopySettings
  types: readonly ExportType[]
  checks: Partial<Record<ExportType, CheckedVariant>>
  adapterGraph?: CheckedFolder['adapterGraph']
  table: string | undefined
  adapted: boolean
  bundled: boolean
}): string {
  const { profile, settings, types, checks, adapterGraph, table, adapted, bundled } = options
  const { id, revision } = settings.base
  const base = code(revision === undefined ? id : `${id}@${revision}`)
  const query = settings.queryEncoder.id
  const pictures = readsPictures(profile)
  const own = ownTypes(profile, types)
  const weights = own ? 'in the form and the types of the graph that it was trained over' : `in ${types.join(', ')}`
  const first = types[0] ?? 'fp32'
  const opened = bundled ? '' : `, { queryEncoder: ${quoted(query)} }`
  return `---
library_name: ${pictures ? 'transformers.js' : 'sentence-transformers'}
pipeline_tag: feature-extraction
tags: [canopy, node-encoder, onnx]
---

# CANOPY node encoder over ${base}

Scores the regions of retrieved items for refinement (CANOPY, arXiv 2610.00923): s(question, region) =
cos(f0(question), fθ(region)). This folder is fθ, as ONNX ${weights}. **Questions are embedded by f0, which is ${code(query)}, not by
this model**${bundled ? ' (it lies in `query-encoder/`)' : ''}; \`canopy.json\` holds its fingerprint.

| setting | value |
|---|---|
| pooling | ${profile.pooling}${profile.normalize ? ', scaled to length 1' : ''} |
| dimension | ${profile.dimension}${profile.dimension < profile.width ? ` (the first of ${profile.width} numbers)` : ''} |
| maximum length | ${profile.maxLength} tokens; what is longer is cut |
| text of a region | ${settings.title ? '`title` line, then' : 'without title,'} the sentences; of a table the column header, then the rows, as ${settings.tableFormat} |
| ${pictures ? 'instruction for' : 'prompt of'} a region | ${settings.prompts.node === '' ? 'none' : cell(code(settings.prompts.node))} |
| branching | ${settings.branching} |${(settings.margin ?? 0) > 0 ? `\n| margin of refinement | ${settings.margin} |` : ''}

\`\`\`ts
import { openEncoder } from 'canopy-encoder'
const encoder = await openEncoder('this/folder'${opened})
const [item] = await encoder.refine(question, [{ title, text }${pictures ? ", { id, modality: 'image', title, image: 'picture.png' }" : ''}])
\`\`\`
${own ? '' : typesText(types, pictures ? PARTS : ['model'])}${pictures ? partsText(profile, first) : singleText(profile, first, own)}${adapterGraph === undefined ? '' : adapterText(settings, first)}
## Measured

${measured(checks, adapterGraph)}
${table ?? (adapted ? NO_EVALUATION : 'The encoder was exported as it was, without an adapter; evaluations lie beside adapters.')}
`
}

const NO_EVALUATION =
  'No evaluation lies beside the adapter (`eval/summary.md` in the folder of its run): evaluate with that `eval` as --output, then export again.'

/** What became of the encoder in each graph, as a table. */
function measured(
  checks: Partial<Record<ExportType, CheckedVariant>>,
  adapterGraph: CheckedFolder['adapterGraph'],
): string {
  const all = [...Object.values(checks), ...(adapterGraph === undefined ? [] : [adapterGraph])]
  const [first] = all as [CheckedVariant]
  const { refinement } = first
  const close = ({ minCosine, maxDifference }: Comparison): string =>
    `smallest cosine ${minCosine.toFixed(7)}, largest difference ${maxDifference.toExponential(1)}`
  const notes = all.flatMap(({ name, unrounded, loss }) => [
    ...(unrounded === undefined ? [] : [`${name} without rounding: ${close(unrounded)}.`]),
    ...(loss.verdict === 'lost' ? [`**${name}: ${loss.why}. The export was forced.**`] : []),
    ...(loss.verdict === 'doubtful' ? [`${name}: ${loss.why}.`] : []),
  ])
  return `Every graph against the trained encoder. Inputs compared: ${comparedText(first)}; smallest cosine and largest difference of their embeddings${
    refinement === undefined
      ? '.'
      : `; on ${refinement.instances} held-out ${refinement.instances === 1 ? 'item' : 'items'} with ${refinement.decisions} decisions, in per cent: decision accuracy, decisions that became wrong (lost) and right (won), items pruned, items of which something was dropped, items of which the same ranges are kept. At most ${first.loss.allowed} points of decision accuracy may be lost.`
  }

${checksMarkdown(all)}
${notes.length === 0 ? '' : `\n${notes.join('\n\n')}\n`}`
}

/** How other adapters are served over the same weights. */
function adapterText(settings: CanopySettings, type: ExportType): string {
  const [held, fed] = [variantFile(WITH_ADAPTER, type), variantFile(FOR_ADAPTERS, type)]
  return `
Many adapters over one encoder: \`onnx/${held}\` has this one beside the weights of ${code(settings.base.id)}, as initializers that are
inputs, too, under PEFT's keys (\`base_model.model.….lora_A.weight\` [rank, inputs], \`….lora_B.weight\` [outputs, rank], any rank) with
\`….scaling\` = alpha / rank [1]. Without feeds it computes this encoder; zeros for every B give the frozen one, another adapter's matrices
that one. \`onnx/${fed}\` takes the same as inputs, for runtimes that cannot override initializers (Node.js, browsers). \`adapter/\` is
this adapter as PEFT loads it.

\`\`\`js
import { adapterFeeds } from 'canopy-encoder'
const feeds = await adapterFeeds('this/folder', 'another/adapter'${type === 'fp32' ? '' : `, { onnxFile: '${held}' }`}) // name -> { data, dims }
\`\`\`
`
}

const SHOWN = { text: 'text', table: 'tables', image: 'pictures', video: 'videos' }

/** What was compared, by modality: `5 of text, 1 of pictures (0 over-long)`. */
export function comparedText({ compared, truncated }: SelfCheck): string {
  const parts = (['text', 'table', 'image', 'video'] as const)
    .filter((modality) => compared[modality] > 0)
    .map((modality) => `${compared[modality]} of ${SHOWN[modality]}`)
  return `${parts.join(', ')} (${truncated} over-long)`
}

/** The types of an export, each graphs of its own. */
function typesText(types: readonly ExportType[], graphs: readonly string[]): string {
  const rows = types.map((type) => {
    const files = graphs.map((graph) => `\`${variantFile(graph, type)}\``).join(', ')
    return `| ${type} | ${files} | \`dtype: '${transformersJsType(type)}'\` |`
  })
  const [first = 'fp32', second] = types
  const main = graphs.length > 1 ? MAIN_PART : 'model'
  const choice =
    second === undefined
      ? ''
      : `\nThe folder is opened by its graph in ${first}; another is named, \`onnxFile: '${variantFile(main, second)}'\` say (\`--onnx-file\`).\n`
  return `
| weights in | \`onnx/\` | transformers.js |
|---|---|---|
${rows.join('\n')}
${choice}
Weights that a graph does not hold lie beside it, in the file of its name and \`_data\`.${
    types.includes('int4')
      ? ' int4 is computed by MatMulNBits, an operator of ONNX Runtime; the others need standard ones only.'
      : ''
  }
`
}

/** Names of poolings in transformers.js. */
const poolings: Record<Pooling, string> = { mean: 'mean', cls: 'cls', last: 'last_token' }

function singleText(profile: EncoderProfile, first: ExportType, own: boolean): string {
  if (own) return profile.architecture === 'bert' ? CUT_BY_TRANSFORMERS_JS : ''
  const { pooling, normalize, dimension, width } = profile
  const notes = [
    ...(profile.prompts.node === '' ? [] : ['The prompt goes before the text.']),
    ...(dimension < width
      ? [`The embedding is the first ${dimension} numbers${normalize ? ', scaled to length 1' : ''}.`]
      : []),
  ]
  return `
\`\`\`js
import { pipeline } from '@huggingface/transformers'
const extract = await pipeline('feature-extraction', 'this/folder', { dtype: '${transformersJsType(first)}' })
const { data } = await extract([text], { pooling: '${poolings[pooling]}', normalize: ${normalize} })
\`\`\`
${notes.length === 0 ? '' : `\n${notes.join(' ')}\n`}${profile.architecture === 'bert' ? CUT_BY_TRANSFORMERS_JS : ''}`
}

const CUT_BY_TRANSFORMERS_JS = `
transformers.js takes the closing [SEP] off a text that is over the limit, so that its embedding differs there; cut such texts
before, or embed them with canopy-encoder, sentence-transformers or your own call of ONNX Runtime.
`

function partsText(profile: EncoderProfile, first: ExportType): string {
  return `
Three graphs make an embedding; \`embed_tokens\` and \`decoder_model_merged\` one of text.

| graph | inputs | output |
|---|---|---|
| \`vision_encoder\` | \`pixel_values\`, \`image_grid_thw\` | \`image_features\` [rows, wide] |
| \`embed_tokens\` | \`input_ids\` | \`inputs_embeds\` [batch, sequence, wide] |
| \`decoder_model_merged\` | \`inputs_embeds\`, \`attention_mask\`, \`position_ids\` [3, batch, sequence] | \`last_hidden_state\` [batch, sequence, ${profile.width}] |

Rows of \`image_features\` take the place of those of \`inputs_embeds\` at the tokens of pictures and frames. \`wide\` is ${profile.width} numbers
for the first layer and as many for each level of DeepStack, which the decoder adds after its first layers. The embedding is
\`last_hidden_state\` at the last token${profile.dimension < profile.width ? `, its first ${profile.dimension} numbers` : ''}${profile.normalize ? ', scaled to length 1' : ''}.

transformers.js 4.3 computes \`last_hidden_state\` for texts and pictures; it reads no video. Its \`generate\` does not work: an encoder has
neither \`logits\` nor a cache of keys and values.

\`\`\`js
import { AutoModelForImageTextToText } from '@huggingface/transformers'
const model = await AutoModelForImageTextToText.from_pretrained('this/folder', { dtype: '${transformersJsType(first)}' })
const { last_hidden_state } = await model({ input_ids, attention_mask, pixel_values, image_grid_thw })
\`\`\`
`
}

/** A string of JavaScript. */
const quoted = (text: string): string =>
  `'${JSON.stringify(text).slice(1, -1).replaceAll('\\"', '"').replaceAll("'", "\\'")}'`
