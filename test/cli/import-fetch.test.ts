import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { gzipSync } from 'node:zlib'
import { describe, expect, it } from 'vitest'
import { canopy, type Finished } from '../support/cli.ts'
import { breakOff, type FileServer, fileServer } from '../support/file-server.ts'
import { type ColumnType, parquetBytes } from '../support/parquet.ts'
import { snapshot, temporaryFolder } from '../support/temporary.ts'

const TWO_WIKI =
  '/huggingface.co/datasets/xanhho/2WikiMultihopQA/resolve/612bc5039a457880d9e7d84c3b0a4cf154b70e4f/dev.parquet'
const OTTQA = '/raw.githubusercontent.com/wenhuchen/OTT-QA/b289bcca691db21a5259c3420e6b9819a9be9ba3'
const columns: Record<string, ColumnType> = {
  ...{ _id: 'string', question: 'string', context: 'string', supporting_facts: 'string', answer: 'string' },
}
const rows = Array.from({ length: 300 }, (_, i) => ({
  ...{ _id: `q${i}`, question: `Which is number ${i}?`, answer: `${i}` },
  context: JSON.stringify([[`Page ${i}`, ['It is here.', `It is number ${i}.`, 'It is gone.']]]),
  supporting_facts: JSON.stringify([[`Page ${i}`, 1]]),
}))
const parquet = parquetBytes(rows, columns, { codec: 'UNCOMPRESSED' })

interface Case {
  server: FileServer
  downloads: string
  output: string
  run(...more: string[]): Promise<Finished>
}

async function setUp(benchmark = '2wiki', files: Record<string, Buffer> = { [TWO_WIKI]: parquet }): Promise<Case> {
  const server = await fileServer(files)
  const downloads = join(temporaryFolder(), 'downloads')
  const output = join(temporaryFolder(), 'set')
  return {
    ...{ server, downloads, output },
    run: (...more) =>
      canopy([
        ...['import', benchmark, '--split', 'dev', '--output', output, '--fetch'],
        ...['--download-folder', downloads, '--mirror', server.url, ...more],
      ]).finished,
  }
}

describe('canopy import --fetch', () => {
  it('downloads, notes the checksum, imports, and says what came out', async () => {
    const { server, downloads, output, run } = await setUp()
    const { code, stdout, stderr } = await run()
    expect([code, stderr]).toEqual([0, ''])
    expect(stdout).toContain('300 items added (300 text)')
    expect(stdout).toContain('300 questions with 300 gold items')
    // the second of three sentences: left of the root, right of its left child
    expect(stdout).toContain('split "dev", binary trees: 600 decision nodes (300 left, 300 right, 0 both, 0 full)')
    expect(stdout).toContain('1800 pairs (0 fully-gold, 600 gold-child, 600 non-gold-child, 600 sibling-separation)')
    expect(server.requests).toEqual([TWO_WIKI])
    expect(readdirSync(join(downloads, '2wiki')).sort()).toEqual(['dev.parquet', 'dev.parquet.sha256'])
    expect(readFileSync(join(downloads, '2wiki', 'dev.parquet.sha256'), 'utf8')).toMatch(
      /^[0-9a-f]{64} {2}dev\.parquet\n$/,
    )
    expect(JSON.parse(readFileSync(join(output, 'dataset.json'), 'utf8'))).toMatchObject({ licence: 'Apache 2.0' })
  })

  it('uses what is there when its checksum is right, and fetches it again when not', async () => {
    const { server, downloads, output, run } = await setUp()
    expect((await run('--json')).code).toBe(0)
    server.requests.length = 0
    const again = join(output, '..', 'again')
    const second = await canopy([
      ...['import', '2wiki', '--split', 'dev', '--output', again, '--fetch', '--no-count', '--json'],
      ...['--download-folder', downloads, '--mirror', server.url],
    ]).finished
    expect([second.code, server.requests]).toEqual([0, []])
    expect(JSON.parse(second.stdout)).not.toHaveProperty('preferences')
    writeFileSync(join(downloads, '2wiki', 'dev.parquet'), 'damaged')
    const third = await canopy([
      ...['import', '2wiki', '--split', 'dev', '--output', join(output, '..', 'third'), '--fetch'],
      ...['--download-folder', downloads, '--mirror', server.url],
    ]).finished
    expect([third.code, server.requests]).toEqual([0, [TWO_WIKI]])
  })

  it('continues a download that broke at half, to the same bytes', async () => {
    const { server, downloads, run } = await setUp()
    let breaks = 1
    server.intercept = (request, response, file) => {
      if (breaks-- <= 0) return false
      breakOff(request, response, file!)
      return true
    }
    expect((await run()).code).toBe(0)
    expect(server.requests).toEqual([TWO_WIKI, expect.stringMatching(/dev\.parquet bytes=[1-9]\d*-$/)])
    expect(readFileSync(join(downloads, '2wiki', 'dev.parquet')).equals(parquet)).toBe(true)
  })

  it('fetches the tables that the questions of OTT-QA name', async () => {
    const question = {
      ...{ question_id: 'a', question: 'Which river is second?', table_id: 'Rivers (long)_0', 'answer-text': 'Oder' },
      'answer-node': [['Oder', [1, 0], null, 'table']],
    }
    const table = {
      ...{ url: '', title: 'Rivers', section_title: 'Long ones', section_text: '', intro: '', uid: 'Rivers (long)_0' },
      header: [
        ['Name', []],
        ['Length', []],
      ],
      data: [
        [
          ['Elbe', []],
          ['1094', []],
        ],
        [
          ['Oder', []],
          ['854', []],
        ],
      ],
    }
    const name = `${encodeURIComponent('Rivers (long)_0')}.json`
    const { downloads, run } = await setUp('ottqa', {
      [`${OTTQA}/released_data/dev.traced.json`]: Buffer.from(JSON.stringify([question])),
      [`${OTTQA}/data/traindev_tables_tok/${name}`]: Buffer.from(JSON.stringify(table)),
      [`${OTTQA}/data/traindev_request_tok/${name}`]: Buffer.from('{}'),
    })
    const { code, stdout, stderr } = await run('--json')
    expect([code, stderr]).toEqual([0, ''])
    expect(JSON.parse(stdout)).toMatchObject({ questions: 1, gold: 1, modalities: { table: 1 } })
    expect(existsSync(join(downloads, 'ottqa', 'traindev_tables_tok', 'Rivers (long)_0.json'))).toBe(true)
  })

  it.each(['../../evil', '/etc/passwd', '..'])('does not follow the table id %j out of the folder', async (id) => {
    const question = { question_id: 'a', question: 'Q?', table_id: id, 'answer-text': 'x', 'answer-node': [] }
    const { output, run } = await setUp('ottqa', {
      [`${OTTQA}/released_data/dev.traced.json`]: Buffer.from(JSON.stringify([question])),
    })
    const { code, stderr } = await run()
    expect(code).toBe(1)
    expect(stderr).toContain('is no plain name of a file')
    expect(existsSync(output)).toBe(false)
  })

  it('refuses bytes that are not those of the catalogue, and writes nothing', async () => {
    const path = '/curtis.ml.cmu.edu/datasets/hotpot/hotpot_dev_distractor_v1.json'
    const { downloads, output, run } = await setUp('hotpotqa', { [path]: Buffer.from('[]') })
    const { code, stderr } = await run()
    expect(code).toBe(1)
    expect(stderr).toContain('announces 2 bytes, the file should have 46320117')
    const mmqa =
      '/raw.githubusercontent.com/allenai/multimodalqa/4dd14328c6d02a4daa357cc6032915a0b14602e3/dataset/MMQA_dev.jsonl.gz'
    const other = await setUp('mmqa', { [mmqa]: gzipSync('{}') })
    const wrong = await other.run()
    expect([wrong.code, wrong.stderr]).toEqual([1, expect.stringContaining('the SHA-256 should be 2e348ca5')])
    for (const folder of [output, other.output]) expect(existsSync(folder)).toBe(false)
    expect(await snapshot(downloads)).toEqual({})
  })

  it('names a file that is not there', async () => {
    const { run } = await setUp('2wiki', {})
    const { code, stderr } = await run()
    expect([code, stderr]).toEqual([1, expect.stringMatching(/dev\.parquet of 2wiki: .* answered 404: .*mirror/)])
  })

  it('with --input beside it is bad usage; a place that is not there is an error that names the others', async () => {
    const { server, output, downloads, run } = await setUp()
    const both = await run('--input', 'x.json')
    expect([both.code, both.stderr]).toEqual([2, expect.stringContaining('give one of the two')])
    const nowhere = await canopy([
      ...['import', '2wiki', '--split', 'dev', '--output', output, '--fetch', 'nowhere'],
      ...['--download-folder', downloads, '--mirror', server.url],
    ]).finished
    expect([nowhere.code, nowhere.stderr]).toEqual([
      1,
      expect.stringContaining('cannot be fetched from "nowhere", only from hub'),
    ])
    expect(server.requests).toEqual([])
  })

  it('says what cannot be fetched, and asks nobody', async () => {
    const { server, run } = await setUp('lvbench')
    const { code, stderr } = await run()
    expect([code, stderr, server.requests]).toEqual([1, expect.stringContaining('Python pickle'), []])
  })
})

it('canopy import without --input or --fetch is bad usage, and goes over no network', async () => {
  const { code, stderr } = await canopy(['import', 'nq', '--split', 'dev', '--output', 'x']).finished
  expect([code, stderr]).toEqual([2, expect.stringContaining('or --fetch to download')])
})
