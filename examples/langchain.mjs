import { ContextualCompressionRetriever } from '@langchain/classic/retrievers/contextual_compression'
import { Document } from '@langchain/core/documents'
import { PromptTemplate } from '@langchain/core/prompts'
import { FakeRetriever } from '@langchain/core/utils/testing'
import { CanopyCompressor } from 'canopy-encoder/langchain'
import { passages, question } from './passages.mjs'

const output = passages.map(({ title, text }) => new Document({ pageContent: text, metadata: { title } }))
const baseRetriever = new FakeRetriever({ output }) // yours stands here
const baseCompressor = await CanopyCompressor.fromFolder(process.argv[2] ?? 'runs/quickstart/export', {
  titleKey: 'title',
})
const retriever = new ContextualCompressionRetriever({ baseRetriever, baseCompressor })
const documents = await retriever.invoke(question)
const context = documents.map(({ metadata, pageContent }) => `${metadata.title}: ${pageContent}`).join('\n\n')
const prompt = PromptTemplate.fromTemplate('Answer from these passages.\n\n{context}\n\nQuestion: {question}')
console.log(await prompt.format({ context, question })) // what the reader gets
await baseCompressor.close()
