import { describe, expect, it } from 'vitest'
import { canopySettings, readEncoder } from '../../src/encoder/index.ts'
import { modelCard } from '../../src/export/card.ts'
import type { CheckedVariant, ExportType } from '../../src/export/index.ts'
import { type Kind, tinyQwen3 } from '../encoder/qwen3-known.ts'

const check = {
  ...{
    compared: { text: 4, table: 0, image: 1, video: 0 },
    truncated: 0,
    cutAlike: true,
    minCosine: 1,
    maxDifference: 1e-7,
  },
  bounds: { minCosine: 0.9, maxDifference: 0.1 },
  bytes: 1.5e6,
  loss: { verdict: 'kept' as const, allowed: 2 },
}

async function card(
  kind: Kind,
  types: readonly ExportType[],
  change: { id?: string; node?: string; adapted?: boolean; check?: Partial<CheckedVariant> } = {},
) {
  const profile = await readEncoder(tinyQwen3(kind))
  const settings = canopySettings(profile, profile, { title: true, tableFormat: 'markdown', branching: 2 })
  if (change.id !== undefined) settings.base = { ...settings.base, id: change.id }
  if (change.id !== undefined) settings.queryEncoder = { ...settings.queryEncoder, id: change.id }
  if (change.node !== undefined) settings.prompts = { ...settings.prompts, node: change.node }
  const checks = Object.fromEntries(types.map((name) => [name, { name, ...check, ...change.check }]))
  return modelCard({
    profile,
    settings,
    types,
    checks,
    table: undefined,
    adapted: change.adapted ?? true,
    bundled: false,
  })
}

describe('the model card', () => {
  it('lists the files of each type, and how transformers.js is asked for it', async () => {
    const text = await card('qwen3-vl', ['fp16', 'int4'])
    expect(text).toContain(
      "| int4 | `vision_encoder_q4.onnx`, `embed_tokens_q4.onnx`, `decoder_model_merged_q4.onnx` | `dtype: 'q4'` |",
    )
    expect(text).toContain("opened by its graph in fp16; another is named, `onnxFile: 'decoder_model_merged_q4.onnx'`")
    expect(text).toContain('AutoModelForImageTextToText')
    expect(await card('qwen3', ['fp32'])).toContain("| fp32 | `model.onnx` | `dtype: 'fp32'` |")
  })

  it('says how a text encoder is used in transformers.js, its pooling included', async () => {
    expect(await card('qwen3', ['int8'])).toMatch(
      /pipeline\('feature-extraction', 'this\/folder', { dtype: 'int8' }\)[^`]*{ pooling: 'last_token', normalize: true }/,
    )
  })

  it('shows names and instructions as they are, whatever they hold', async () => {
    const id = "a`b|c_<i>d'\\e\nf"
    const text = await card('qwen3-vl', ['fp32'], { id, node: 'Say `what`|\nhow.' })
    expect(text).toContain("# CANOPY node encoder over ``a`b|c_<i>d'\\e f``\n")
    expect(text).toContain("queryEncoder: 'a`b|c_<i>d\\'\\\\e\\nf'")
    // a cell of a table ends at a bar that is not escaped
    expect(text).toContain('| instruction for a region | ``Say `what`\\| how.`` |')
  })

  it('shows every graph in one table, and what a forced or doubtful one costs', async () => {
    const figures = { prunedItemRate: 0.5, droppedItemRate: 0.25 }
    const refinement = {
      ...{ instances: 8, decisions: 20, sameKept: 0.75, lost: 6, gained: 0 },
      trained: { ...figures, decisionAccuracy: 0.9 },
      exported: { ...figures, decisionAccuracy: 0.6 },
    }
    const lost = { verdict: 'lost' as const, points: 30, allowed: 2, chance: 0.02, why: 'it falls by 30 points' }
    const text = await card('qwen3', ['fp32', 'int8'], { check: { refinement, loss: lost } })
    expect(text).toContain('on 8 held-out items with 20 decisions')
    expect(text).toContain('| trained |  |  |  | 90.0 |  |  | 50.0 | 25.0 |  |')
    expect(text).toContain('| int8 | 1.5 | 1.0000000 | 1.0e-7 | 60.0 | 6 | 0 | 50.0 | 25.0 | 6 of 8 |')
    expect(text).toContain('**int8: it falls by 30 points. The export was forced.**')
    const doubtful = await card('qwen3', ['int8'], { check: { loss: { ...lost, verdict: 'doubtful' } } })
    expect(doubtful).toContain('int8: it falls by 30 points.')
    expect(doubtful).not.toContain('forced')
  })

  it('says where no evaluation was found, and no more than that', async () => {
    expect(await card('qwen3', ['fp32'])).toMatch(/No evaluation lies beside the adapter \(`eval\/summary\.md` in .*\)/)
    const frozen = await card('qwen3', ['fp32'], { adapted: false })
    expect(frozen).toContain('exported as it was, without an adapter')
    expect(frozen).not.toMatch(/not evaluated|No evaluation lies/)
  })
})
