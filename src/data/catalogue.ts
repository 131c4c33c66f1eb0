import { InputError } from '../support/errors.ts'

/** A file of a benchmark, where its makers keep it. */
export interface CatalogueFile {
  /** Name in the download folder. */
  name: string
  url: string
  /** In bytes, where it is known. */
  size?: number
  /** Hexadecimal, where it is known. */
  sha256?: string
}

/** The files that one split of a benchmark is made of, from one place. */
export interface CatalogueEntry {
  files: readonly CatalogueFile[]
  licence: string
  /**
   * More files that the first one names, one for each table id of its questions: `{id}` stands for the id, in the name as it is
   * and in the address encoded. The importer is given the folders.
   */
  perTable?: readonly { folder: string; url: string }[]
}

interface Benchmark {
  /** Split -> place -> entry; the first place is the one that is taken unless another is asked for. */
  splits: Record<string, Record<string, CatalogueEntry>>
}

const HUB = 'https://huggingface.co/datasets'
const NQ = 'https://storage.googleapis.com/natural_questions'
const MMQA = 'https://raw.githubusercontent.com/allenai/multimodalqa/4dd14328c6d02a4daa357cc6032915a0b14602e3/dataset'
const OTTQA = 'https://raw.githubusercontent.com/wenhuchen/OTT-QA/b289bcca691db21a5259c3420e6b9819a9be9ba3'

const hotpotqa = (file: CatalogueFile, hub: string[]): Record<string, CatalogueEntry> => ({
  official: { files: [file], licence: 'CC BY-SA 4.0' },
  hub: {
    files: hub.map((name) => ({ name, url: `${HUB}/hotpotqa/hotpot_qa/resolve/main/distractor/${name}` })),
    licence: 'CC BY-SA 4.0',
  },
})

const twoWiki = (name: string): Record<string, CatalogueEntry> => ({
  // the makers' own copy; their first one is an archive
  hub: {
    files: [{ name, url: `${HUB}/xanhho/2WikiMultihopQA/resolve/612bc5039a457880d9e7d84c3b0a4cf154b70e4f/${name}` }],
    licence: 'Apache 2.0',
  },
})

const shards = (of: string, count: number): CatalogueFile[] =>
  Array.from({ length: count }, (_, i) => {
    const name = `${of}-${String(i).padStart(5, '0')}-of-${String(count).padStart(5, '0')}.parquet`
    return { name, url: `${HUB}/google-research-datasets/natural_questions/resolve/main/default/${name}` }
  })

const nqDev = [
  [219593373, '78a7f7899aa7d0bc9a29878cdb90daabbeda21a93e3730d8861f20ec736790b2'],
  [200209706, '9cebaa5eb69cf4ce067079370456b2939d4154a17da88faf73844d8c418cfb9e'],
  [210446574, '7b82aa74a35025ed91f514ad21e05c4a66cdec56ac1f6b77767a578156ff3bfc'],
  [216859801, 'c7d45bb464bda3da7788c985b07def313ab5bed69bcc258acbe6f0918050bf6e'],
  [220929521, '00969275e9fb6a5dcc7e20ec9589c23ac00de61c979c8b957f4180b5b9a3043a'],
] as const

const mmqaContext: CatalogueFile[] = [
  ['tables', '8d082d254fd0bfa19bca7e2da20369c15ccb25867db3edfe46b33d59e8dbf7b1'],
  ['texts', 'cae3808ccc6c258e91131a3ca3dce43e629936e1496c97a288c4abb04a6ef905'],
  ['images', '691227e1758140c51a5617a904b5e363cd44b2582a0c0e9f9fe9153d4e62d5e7'],
].map(([what, sha256]) => ({ name: `MMQA_${what}.jsonl.gz`, url: `${MMQA}/MMQA_${what}.jsonl.gz`, sha256: sha256! }))

const mmqa = (split: string, sha256: string): Record<string, CatalogueEntry> => {
  const name = `MMQA_${split}.jsonl.gz`
  return { official: { files: [{ name, url: `${MMQA}/${name}`, sha256 }, ...mmqaContext], licence: 'not stated' } }
}

const ottqa = (split: string): Record<string, CatalogueEntry> => ({
  official: {
    files: [{ name: `${split}.traced.json`, url: `${OTTQA}/released_data/${split}.traced.json` }],
    licence: 'MIT',
    perTable: ['traindev_tables_tok', 'traindev_request_tok'].map((folder) => ({
      folder,
      url: `${OTTQA}/data/${folder}/{id}.json`,
    })),
  },
})

/**
 * Where the benchmarks' files are kept. Sizes and hashes are those that the data loaders of `datasets` and TensorFlow Datasets
 * have on record, or that others publish; where there is none, what the server announces is compared.
 */
const CATALOGUE: Record<string, Benchmark> = {
  hotpotqa: {
    splits: {
      train: hotpotqa(
        {
          name: 'hotpot_train_v1.1.json',
          url: 'http://curtis.ml.cmu.edu/datasets/hotpot/hotpot_train_v1.1.json',
          size: 566426227,
          sha256: '26650cf50234ef5fb2e664ed70bbecdfd87815e6bffc257e068efea5cf7cd316',
        },
        ['train-00000-of-00002.parquet', 'train-00001-of-00002.parquet'],
      ),
      dev: hotpotqa(
        {
          name: 'hotpot_dev_distractor_v1.json',
          url: 'http://curtis.ml.cmu.edu/datasets/hotpot/hotpot_dev_distractor_v1.json',
          size: 46320117,
          sha256: '4e9ecb5c8d3b719f624d66b60f8d56bf227f03914f5f0753d6fa1b359d7104ea',
        },
        ['validation-00000-of-00001.parquet'],
      ),
    },
  },
  '2wiki': { splits: { train: twoWiki('train.parquet'), dev: twoWiki('dev.parquet') } },
  nq: {
    splits: {
      train: {
        official: {
          files: [
            {
              name: 'simplified-nq-train.jsonl.gz',
              url: `${NQ}/v1.0-simplified/simplified-nq-train.jsonl.gz`,
            },
          ],
          licence: 'CC BY-SA 3.0',
        },
        hub: { files: shards('train', 287), licence: 'CC BY-SA 3.0' },
      },
      dev: {
        official: {
          files: nqDev.map(([size, sha256], i) => {
            const name = `nq-dev-0${i}.jsonl.gz`
            return { name, url: `${NQ}/v1.0/dev/${name}`, size, sha256 }
          }),
          licence: 'CC BY-SA 3.0',
        },
        hub: { files: shards('validation', 7), licence: 'CC BY-SA 3.0' },
      },
    },
  },
  ottqa: { splits: { train: ottqa('train'), dev: ottqa('dev') } },
  mmqa: {
    splits: {
      train: mmqa('train', '2d7c8f6f1659df69f8dcdb79e4701c48e53e8674ab8573244b3ffe2e4b1da565'),
      dev: mmqa('dev', '2e348ca574b2dc368e84671709689070f943a59f2e08e6b6e374705deb712d31'),
    },
  },
}

/** What cannot be fetched, and what to do instead. */
const BY_HAND: Record<string, string> = {
  lvbench:
    'its clips are published as a Python pickle only (eval/features/clip/lvbench_clipframetime.pkl of github.com/wgcyeo/UniversalRAG, questions in dataset/query/lvbench.json). Write them as {"video", "clips": [[start, end], …]}, one video a line, and give both files to --input',
}

/** The benchmarks that have files in the catalogue. */
export const FETCHABLE: readonly string[] = Object.keys(CATALOGUE)

/**
 * The files of a benchmark's split.
 *
 * @param place the first one by default
 * @throws InputError listing what there is
 */
export function catalogueEntry(benchmark: string, split: string, place?: string): CatalogueEntry {
  const splits = Object.hasOwn(CATALOGUE, benchmark) ? CATALOGUE[benchmark]!.splits : undefined
  if (splits === undefined) {
    const why = BY_HAND[benchmark] ?? `files to fetch are known for ${FETCHABLE.join(', ')}`
    throw new InputError(`The files of ${benchmark} cannot be fetched: ${why}.`)
  }
  const places = Object.hasOwn(splits, split) ? splits[split]! : undefined
  if (places === undefined)
    throw new InputError(
      `There are no files to fetch for the split "${split}" of ${benchmark}; there are ${Object.keys(splits).join(' and ')}.`,
    )
  const chosen = place ?? Object.keys(places)[0]!
  const entry = Object.hasOwn(places, chosen) ? places[chosen] : undefined
  if (entry === undefined)
    throw new InputError(
      `The split "${split}" of ${benchmark} cannot be fetched from "${chosen}", only from ${Object.keys(places).join(' or ')}.`,
    )
  return entry
}
