import { SEGMENTER_VERSION } from '../../hierarchy/index.ts'
import { InputError } from '../../support/errors.ts'
import { readRecords } from '../jsonl.ts'
import type { Place } from '../schema.ts'
import { type ImportJob, type ImportOptions, type ImportSummary, runImport } from './common.ts'
import { NQ_UNREAD, pageRecord } from './hub-layouts.ts'
import { importAnswers } from './nq/answers.ts'
import { importPage } from './nq/evidence.ts'
import { multiqaPage, originalPage, simplifiedPage } from './nq/pages.ts'

/**
 * Imports Natural Questions, in the form that each record shows (one JSON object a line):
 *
 * - **long and short answers** (`question`, `nq_annotated_gold`: `title`, `long_answer`, `short_answers`): the long answer is
 *   the item; gold is every case-sensitive occurrence of a short answer with no letter or digit on either side. Other
 *   passages of `ctxs` become items of `retrieved`.
 * - **the official pages**, simplified (`document_text`) and original (`document_tokens`), and MultiQA's form of them
 *   (`tokens`, `qas`; its token indices are read, its answer texts are not): the item is an annotated long answer, and gold is
 *   where the tokens of the short answers stand in it. A paragraph or a list is a text item, put together by `detokenise`;
 *   a list entry is a leaf at least. A table, or a part of one, gives the table as a table item, gold being rows. Annotators
 *   who agree on an item are merged; different long answers are different items of one question.
 *
 * A question's `source` is the page's title: `document_title`, or the one in `document_url`. What has no short answer to
 * be found is dropped and counted, as is a short answer in the header or the caption of a table, which are no leaves.
 * Sentences are found by the segmenter.
 *
 * @throws InputError with file and line: a broken record, a token range outside of its page
 */
export function importNq(options: ImportOptions & { split: string }): Promise<ImportSummary> {
  const target = {
    benchmark: 'nq',
    segmenter: SEGMENTER_VERSION,
    source: 'Natural Questions (Kwiatkowski et al. 2019)',
    licence: 'CC BY-SA 3.0',
  }
  return runImport('nq', options, target, async (job) => {
    for (const file of options.inputs) {
      for await (const { value, line } of readRecords(file, { ...job.reading, unread: NQ_UNREAD })) {
        await job.record(() => importRecord(pageRecord(value), { file, line }, options.split, job))
      }
    }
  })
}

function importRecord(value: unknown, place: Place, split: string, job: ImportJob): Promise<void> {
  const keys = value !== null && typeof value === 'object' ? value : {}
  if ('nq_annotated_gold' in keys) return importAnswers(value, place, split, job)
  if ('document_tokens' in keys) return importPage(originalPage(value, place), place, split, job)
  if ('document_text' in keys) return importPage(simplifiedPage(value, place), place, split, job)
  if ('tokens' in keys && 'qas' in keys) return importPage(multiqaPage(value, place), place, split, job)
  throw new InputError(
    'no known form of a Natural Questions record: "nq_annotated_gold", "document_text", "document_tokens" or "tokens" with "qas" was expected',
    place,
  )
}
