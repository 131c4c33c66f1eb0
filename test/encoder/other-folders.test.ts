import { cpSync, mkdirSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest'
import { openDataset } from '../../src/data/index.ts'
import {
  adapterFeeds,
  locateConfiguration,
  locateEncoder,
  openEncoder,
  readEncoderPair,
} from '../../src/encoder/index.ts'
import { InputError } from '../../src/support/errors.ts'
import { comesWithPackage, packagedFolder } from '../../src/support/packaged.ts'
import { temporaryFolder } from '../support/temporary.ts'
import { tinyBert } from './fixtures.ts'

const ROOT = resolve(import.meta.dirname, '../..')

/** What opening a folder is refused with. */
async function refusal(folder: string): Promise<string> {
  const error = await readEncoderPair(folder).catch((error: unknown) => error)
  expect(error).toBeInstanceOf(InputError)
  return (error as InputError).message
}

describe('a folder that is no encoder says what it is, and what to give', () => {
  it('a training run', async () => {
    const run = temporaryFolder()
    writeFileSync(join(run, 'config.json'), JSON.stringify({ schema: 'canopy-run/1', settings: {} }))
    expect(await refusal(run)).toBe(
      `${run} is a training run: export it (canopy export), or give its encoder and its adapter, ${join(run, 'adapter')} (--adapter, in a program "adapter").`,
    )
  })

  it('an adapter, but not an encoder that has its adapter beside it', async () => {
    const adapter = join(tinyBert('mean'), 'adapter')
    expect(await refusal(adapter)).toContain(
      `${adapter} is an adapter, which changes an encoder: give the encoder that it was trained over`,
    )
    const both = temporaryFolder()
    cpSync(tinyBert('mean'), both, { recursive: true })
    cpSync(join(adapter, 'adapter_config.json'), join(both, 'adapter_config.json'))
    expect((await readEncoderPair(both)).encoder.folder).toBe(both)
  })

  it("a quickstart's folder, with the export in it", async () => {
    const folder = temporaryFolder()
    cpSync(tinyBert('mean'), join(folder, 'export'), { recursive: true })
    expect(await refusal(folder)).toBe(
      `${folder} is no encoder, but has one in it: did you mean ${join(folder, 'export')}?`,
    )
    expect((await readEncoderPair(join(folder, 'export'))).encoder.folder).toBe(join(folder, 'export'))
  })

  it('any other one, as before', async () => {
    expect(await refusal(temporaryFolder())).toMatch(/config\.json: There is no such file\. Download the whole model/)
  })

  it.each([undefined, null, '', 5])('no name at all: %o', async (name) => {
    const what = 'Give the folder of an exported encoder or a Hugging Face id.'
    await expect(locateEncoder(name as never)).rejects.toThrow(new InputError(what))
    await expect(locateConfiguration(name as never)).rejects.toThrow(new InputError(what))
    await expect(openEncoder(name as never)).rejects.toThrow(new InputError(what))
  })
})

describe('a folder of the package that is not where the program runs', () => {
  beforeEach(() => {
    vi.spyOn(globalThis, 'fetch').mockRejectedValue(new Error('the hub was asked'))
    return () => vi.restoreAllMocks()
  })

  it('is told with its place, whichever way it is written; it is not opened instead', async () => {
    const folder = join(ROOT, 'models', 'canopy-mini')
    for (const name of ['models/canopy-mini', './models/canopy-mini', 'models/canopy-mini/', 'models\\canopy-mini'])
      expect(await packagedFolder(name)).toBe(folder)
    for (const name of [
      'models/none',
      'org/canopy-mini',
      'models/canopy-mini@main',
      'models/..',
      '../models/canopy-mini',
    ])
      expect(await packagedFolder(name)).toBeUndefined()
    expect(comesWithPackage('models/canopy-mini', folder)).toBe(
      `There is no folder models/canopy-mini here; it comes with the package and lies in ${folder}. Give that path.`,
    )
  })

  it('is not asked of the hub, nor looked for as a data set', async () => {
    const [here, elsewhere] = [process.cwd(), temporaryFolder()]
    process.chdir(elsewhere)
    onTestFinished(() => process.chdir(here))
    const [model, dataset] = ['models/canopy-mini', 'datasets/sample']
    for (const locate of [locateEncoder, locateConfiguration])
      await expect(locate(model, { cacheDir: elsewhere })).rejects.toThrow(
        new InputError(comesWithPackage(model, join(ROOT, model))),
      )
    await expect(openDataset(dataset)).rejects.toThrow(new InputError(comesWithPackage(dataset, join(ROOT, dataset))))
    await expect(openDataset('datasets/none')).rejects.toThrow('no such file; "canopy import"')
    // one's own comes first
    cpSync(tinyBert('mean'), model, { recursive: true })
    expect(await locateEncoder(model)).toEqual({ folder: model })
  })
})

describe('adapterFeeds', () => {
  it('asks for --keep-adapter where the export has no graph that takes adapters', async () => {
    const folder = temporaryFolder()
    mkdirSync(join(folder, 'onnx'))
    writeFileSync(join(folder, 'onnx', 'model.onnx'), '')
    const adapter = join(tinyBert('mean'), 'adapter')
    await expect(adapterFeeds(folder, adapter)).rejects.toThrow(
      `${join(folder, 'onnx')}: There is no graph here that takes adapters (model_lora.onnx): export it again with --keep-adapter`,
    )
    writeFileSync(join(folder, 'onnx', 'model_lora_fp16.onnx'), '')
    await expect(adapterFeeds(folder, adapter)).rejects.toThrow(
      'There is no model_lora.onnx here. Name the graph that takes adapters ("onnxFile"): model_lora_fp16.onnx.',
    )
  })
})
