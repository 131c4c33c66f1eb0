import { RetrieverQueryEngine } from '@llamaindex/core/query-engine'
import { BaseRetriever } from '@llamaindex/core/retriever'
import { MetadataMode, TextNode } from '@llamaindex/core/schema'
import { CanopyPostprocessor } from 'canopy-encoder/llamaindex'
import { passages, question } from './passages.mjs'

const nodes = passages.map(({ title, text }) => ({ node: new TextNode({ text, metadata: { title } }), score: 0.5 }))
// yours stands here
const retriever = new (class extends BaseRetriever {
  async _retrieve() {
    return nodes
  }
})()
const postprocessor = await CanopyPostprocessor.fromFolder(process.argv[2] ?? 'runs/quickstart/export', {
  titleKey: 'title',
})
// in place of a response synthesizer with a language model, the example prints what such a one gets
const engine = new RetrieverQueryEngine(retriever, {}, [postprocessor])
for (const { node } of await engine.retrieve(question)) console.log(`${node.getContent(MetadataMode.LLM)}\n`)
await postprocessor.close()
