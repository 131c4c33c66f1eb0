import { createHash } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { readdir, realpath, stat } from 'node:fs/promises'
import { join, relative, sep } from 'node:path'
import { openSafetensors } from '../../onnx/index.ts'
import { InputError } from '../../support/errors.ts'
import { exists, fileError } from '../../support/files.ts'
import type { Progress } from '../../support/progress.ts'
import { CANOPY_FILE, checkNodeEncoder, checkQueryEncoder, readCanopySettings } from '../folder/canopy.ts'
import { readEncoder, statedIn } from '../folder/profile.ts'
import { readPeftConfig } from '../lora/peft-config.ts'
import { QUERY_FOLDER } from './files.ts'

/** A file that is uploaded. */
export interface UploadFile {
  /** Path inside the folder and the repository, with `/`. */
  path: string
  size: number
  sha256: string
  /** SHA-1 of the file as a Git blob: what the hub calls it where it isn't kept in LFS. */
  git: string
  /** When it was last written before it was read, as the system tells. */
  mtimeMs: number
}

/** A folder that may be uploaded. */
export interface UploadFolder {
  folder: string
  kind: 'encoder' | 'adapter'
  /** By path. */
  files: UploadFile[]
  /** Hidden files and folders, which stay here. */
  hidden: string[]
}

const ADAPTER = { config: 'adapter_config.json', tensors: 'adapter_model.safetensors' }

/** More files than this are no export. */
const MOST_FILES = 1000

/**
 * Reads a folder that is to be uploaded, and sees that it is whole: an exported encoder whose weights are those that its canopy.json
 * lists, which opens, with the query encoder that it was trained against where one is bundled; or a LoRA adapter in PEFT's format.
 *
 * @throws InputError naming what is missing or wrong, for links that lead out of the folder, and for anything that is no file
 */
export async function readUploadFolder(
  folder: string,
  { onProgress, signal }: { onProgress?: Progress | undefined; signal?: AbortSignal | undefined } = {},
): Promise<UploadFolder> {
  const hidden: string[] = []
  const paths = await walk(folder, hidden)
  const settings = await readCanopySettings(folder)
  const kind = settings?.files !== undefined ? 'encoder' : paths.includes(ADAPTER.config) ? 'adapter' : undefined
  if (kind === undefined)
    throw new InputError(
      `It is neither an exported encoder (${CANOPY_FILE} lists the hashes of its weights) nor a LoRA adapter in PEFT's format (${ADAPTER.config}, ${ADAPTER.tensors}). Give the folder that "canopy export" wrote, or a run's adapter/.`,
      { file: folder },
    )
  const files: UploadFile[] = []
  for (const [done, path] of paths.entries()) {
    onProgress?.({ phase: 'reading', done, total: paths.length, note: path })
    signal?.throwIfAborted()
    files.push({ path, ...(await hashes(join(folder, path))) })
  }
  if (settings?.files !== undefined) {
    checkWeights(folder, settings.files, files)
    await checkEncoder(folder)
  } else await checkAdapter(folder)
  return { folder, kind, files, hidden }
}

/** The files below a folder, sorted by path. */
async function walk(folder: string, hidden: string[]): Promise<string[]> {
  const root = await realpath(folder).catch((error: unknown) => {
    throw fileError(error, 'cannot read the folder', folder)
  })
  const paths: string[] = []
  const visit = async (below: string): Promise<void> => {
    const entries = await readdir(join(folder, below), { withFileTypes: true }).catch((error: unknown) => {
      throw fileError(error, 'cannot read the folder', join(folder, below))
    })
    for (const entry of entries) {
      const path = below === '' ? entry.name : `${below}/${entry.name}`
      const file = join(folder, path)
      if (entry.name.startsWith('.')) hidden.push(path)
      else if (entry.isDirectory()) await visit(path)
      else {
        if (entry.isSymbolicLink()) await checkLink(file, root)
        else if (!entry.isFile()) throw new InputError('It is no file, and cannot be uploaded.', { file })
        // biome-ignore lint/suspicious/noControlCharactersInRegex: that is what is looked for
        if (/[\x00-\x1f\\]/.test(path))
          throw new InputError('A file of that name cannot be uploaded; rename it.', { file })
        paths.push(path)
      }
      if (paths.length > MOST_FILES)
        throw new InputError(`There are more than ${MOST_FILES} files in it; that is no exported encoder.`, {
          file: folder,
        })
    }
  }
  await visit('')
  return paths.sort()
}

/** A link may lead to another file of the folder, and nowhere else. */
async function checkLink(file: string, root: string): Promise<void> {
  const target = await realpath(file).catch((error: unknown) => {
    throw fileError(error, 'cannot follow the link', file)
  })
  const inside = relative(root, target)
  if (inside === '' || inside === '..' || inside.startsWith(`..${sep}`) || join(root, inside) !== target)
    throw new InputError(
      `It is a link out of the folder, to ${target}. Replace it by the file, if that is to be uploaded, or take it away.`,
      { file },
    )
  if (inside.split(sep).some((name) => name.startsWith('.')) || !(await stat(file)).isFile())
    throw new InputError('It is a link to something that is not uploaded; take it away.', { file })
}

/** @throws InputError for a file that was written to after it was read */
export async function checkUnchanged({ folder, files }: Pick<UploadFolder, 'folder' | 'files'>): Promise<void> {
  for (const { path, size, mtimeMs } of files) {
    const found = await stat(join(folder, path)).catch(() => undefined)
    if (found?.size !== size || found.mtimeMs !== mtimeMs)
      throw new InputError(
        'The file changed while the folder was being uploaded; nothing was committed. Upload again when nobody writes to it.',
        { file: join(folder, path) },
      )
  }
}

async function hashes(file: string): Promise<Omit<UploadFile, 'path'>> {
  try {
    const { size, mtimeMs } = await stat(file)
    const sha256 = createHash('sha256')
    const git = createHash('sha1').update(`blob ${size}\0`)
    for await (const chunk of createReadStream(file, { highWaterMark: 1 << 20 })) {
      sha256.update(chunk as Buffer)
      git.update(chunk as Buffer)
    }
    return { size, sha256: sha256.digest('hex'), git: git.digest('hex'), mtimeMs }
  } catch (error) {
    throw fileError(error, 'cannot read the file', file)
  }
}

/** The graphs and their data are those that were exported, and no others. */
function checkWeights(folder: string, listed: Record<string, string>, files: readonly UploadFile[]): void {
  const found = new Map(files.map((file) => [file.path, file]))
  for (const [path, hash] of Object.entries(listed)) {
    const file = found.get(path)
    if (file === undefined)
      throw new InputError(
        `${CANOPY_FILE} lists ${JSON.stringify(path)}, which is not in the folder. Export it again.`,
        {
          file: folder,
        },
      )
    if (file.sha256 !== hash)
      throw new InputError(
        `The file is not the one that was exported: its SHA-256 is ${file.sha256.slice(0, 12)}…, ${CANOPY_FILE} has ${hash.slice(0, 12)}…. Export it again.`,
        { file: join(folder, path) },
      )
  }
  const strange = files.find(
    ({ path }) =>
      !Object.hasOwn(listed, path) && (path.startsWith('onnx/') || /^[^/]*\.(safetensors|onnx|bin)$/.test(path)),
  )
  if (strange !== undefined)
    throw new InputError(
      `${CANOPY_FILE} does not list this file, so it is no part of the export. Take it out of the folder.`,
      { file: join(folder, strange.path) },
    )
}

/** The folder opens, and its bundled query encoder is the one that it was trained against. */
async function checkEncoder(folder: string): Promise<void> {
  const file = join(folder, CANOPY_FILE)
  const settings = await readCanopySettings(folder)
  if (settings === undefined) throw new InputError('There is no such file any more.', { file })
  const encoder = await readEncoder(folder, statedIn(settings))
  checkNodeEncoder(settings, encoder, file)
  const bundled = join(folder, QUERY_FOLDER)
  if (await exists(bundled)) checkQueryEncoder(settings, await readEncoder(bundled, encoder.stated), file)
}

/** Both files are there and readable, and the tensors are those of a LoRA adapter. */
async function checkAdapter(folder: string): Promise<void> {
  const file = join(folder, ADAPTER.tensors)
  await readPeftConfig(join(folder, ADAPTER.config))
  if (!(await exists(file))) throw new InputError('There is no such file, so the adapter is not whole.', { file })
  const names = [...(await openSafetensors(file)).tensors.keys()]
  const count = (end: string): number => names.filter((name) => name.endsWith(end)).length
  const matrices = count('.lora_A.weight')
  if (matrices === 0 || matrices !== count('.lora_B.weight'))
    throw new InputError('It does not hold pairs of LoRA matrices, as an adapter of PEFT does.', { file })
}
