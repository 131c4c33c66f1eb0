// Encodes nodes of the four modalities with an exported encoder, in onnxruntime-node: no Python, no checkpoint, no network.
//
//   node examples/encode-nodes.mjs <exported folder> [--onnx-file <name>] [--query-encoder <folder>] [--question <text>]
//     [--image <file>] [--video <file> --start <seconds> --end <seconds>]
//
// Prints the cosine of every node to the question: s(question, node) = cos(f0(question), fθ(node)). A picture and a video need an
// encoder that reads them (Qwen3-VL), and a video needs ffmpeg. The query encoder is the one inside the folder where it was exported
// with --bundle. Of a folder with graphs in several types the first type exported is taken; --onnx-file decoder_model_merged_q4.onnx
// (model_q4.onnx of a text encoder) takes another.
import { resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { buildHierarchy, encoderInput, InputError, openPair, readEncoderPair } from 'canopy-encoder'

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    'onnx-file': { type: 'string' },
    'query-encoder': { type: 'string' },
    question: { type: 'string', default: 'Which bridge is the oldest?' },
    image: { type: 'string' },
    video: { type: 'string' },
    start: { type: 'string', default: '0' },
    end: { type: 'string', default: '60' },
  },
})
const [folder] = positionals
if (folder === undefined) throw new Error('Give the folder of an exported encoder.')

// Items as in a dataset's items.jsonl: a passage, a table, a picture, a part of a video.
const items = [
  {
    id: 'passage',
    modality: 'text',
    title: 'Orrin',
    text: 'Orrin lies on both banks of the Velm. Its stone arch was built in 1790. The long bridge came later.',
  },
  {
    id: 'table',
    modality: 'table',
    title: 'Bridges of Orrin',
    header: ['Bridge', 'Built'],
    rows: [
      ['Stone Arch', '1790'],
      ['Long Bridge', '1871'],
    ],
  },
]
if (values.image !== undefined)
  items.push({ id: 'picture', modality: 'image', title: 'A picture', image: resolve(values.image) })
if (values.video !== undefined)
  items.push({
    ...{ id: 'video', modality: 'video', title: 'A film', video: resolve(values.video) },
    ...{ start: Number(values.start), end: Number(values.end) },
  })

// What cannot be used is said in a sentence, without a stack.
process.on('uncaughtException', (error) => {
  console.error(error instanceof InputError ? `error: ${error.message}` : error)
  process.exit(1)
})

const pair = await readEncoderPair(folder, { onnxFile: values['onnx-file'], queryEncoder: values['query-encoder'] })
const { query, node: encoder, close } = await openPair(pair)
try {
  // An item becomes a tree of nodes, the first of which is the whole item. A node becomes what the encoder reads of it.
  const hierarchies = items.map((item) => buildHierarchy(item, pair.settings.branching))
  const nodes = hierarchies.flatMap((hierarchy) => hierarchy.nodes.map((node) => ({ hierarchy, node })))
  const inputs = nodes.map(({ hierarchy, node }) => encoderInput(hierarchy, node, pair.settings, undefined))

  // float32 [nodes, dimension] and [1, dimension], of length 1
  const { embeddings, tokens } = await encoder.embed(inputs, 'node')
  const { embeddings: asked } = await query.embed([{ text: values.question }], 'query')

  const { dimension } = encoder
  for (const [i, { hierarchy, node }] of nodes.entries()) {
    let score = 0
    for (let k = 0; k < dimension; k++) score += embeddings[i * dimension + k] * asked[k]
    console.log(`${hierarchy.item.id} [${node.from}, ${node.to})  ${tokens[i]} tokens  ${score.toFixed(4)}`)
  }
} finally {
  await close()
}
