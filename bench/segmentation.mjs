// Prints how often segmentation agrees exactly with the data sets' own sentences, per distinct paragraph, and how long a
// megabyte takes. Needs `npm run build` and the official files:
//
//   node bench/segmentation.mjs --hotpotqa hotpot_dev_distractor_v1.json [--2wiki dev.json] [--misses 20]
//
// A flag may be given several times.

import { readFileSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { SEGMENTER_VERSION, segmentSentences } from '../dist/hierarchy/index.js'

const { values } = parseArgs({
  options: {
    hotpotqa: { type: 'string', multiple: true, default: [] },
    '2wiki': { type: 'string', multiple: true, default: [] },
    misses: { type: 'string', default: '0' },
  },
})
const plain = new Intl.Segmenter('en', { granularity: 'sentence' })
const segmenters = {
  'Intl.Segmenter alone': (text) => Array.from(plain.segment(text), ({ segment }) => segment),
  [SEGMENTER_VERSION]: (text) => segmentSentences(text).map(([start, end]) => text.slice(start, end)),
}
const trimmed = (sentences) => sentences.map((sentence) => sentence.trim()).filter((sentence) => sentence !== '')

/** Distinct paragraphs: the text, HotpotQA's sentences joined with nothing and 2Wiki's with a blank, and its sentences. */
function paragraphs(files, joint) {
  const found = new Map()
  for (const file of files) {
    for (const { context } of JSON.parse(readFileSync(file, 'utf8'))) {
      for (const [, sentences] of context) {
        const text = sentences.join(joint)
        if (text.trim() !== '') found.set(text, trimmed(sentences))
      }
    }
  }
  return found
}

for (const [name, joint] of [
  ['hotpotqa', ''],
  ['2wiki', ' '],
]) {
  const own = paragraphs(values[name], joint)
  if (own.size === 0) continue
  for (const [segmenter, segment] of Object.entries(segmenters)) {
    const misses = []
    for (const [text, expected] of own) {
      const got = trimmed(segment(text))
      if (got.join('\0') !== expected.join('\0')) misses.push({ expected, got })
    }
    const share = (100 * (1 - misses.length / own.size)).toFixed(1)
    console.log(`${name}: ${share} % of ${own.size} paragraphs agree exactly (${segmenter})`)
    if (segmenter !== SEGMENTER_VERSION) continue
    for (const { expected, got } of misses.slice(0, Number(values.misses))) {
      console.log(`  expected ${JSON.stringify(expected.filter((sentence) => !got.includes(sentence)))}`)
      console.log(`  got      ${JSON.stringify(got.filter((sentence) => !expected.includes(sentence)))}`)
    }
  }
}

const megabyte = 'A sentence of the usual length stands here, with Dr. No. 5 in it. '.repeat(15_500)
const start = performance.now()
const { length } = segmentSentences(megabyte)
console.log(`${megabyte.length} characters: ${length} sentences in ${Math.round(performance.now() - start)} ms`)
