import { readFile, stat } from 'node:fs/promises'
import type { Command } from 'commander'
import { readUploadFolder, type Uploaded, type UploadFolder, uploadFolder } from '../encoder/index.ts'
import { InputError, UsageError } from '../support/errors.ts'
import { fileError } from '../support/files.ts'
import { withTimeLeft } from '../support/progress.ts'
import { interruptible } from './interrupt.ts'
import { createOutput, type Output } from './output.ts'

interface Flags {
  repo?: string
  revision: string
  private?: boolean
  create: boolean
  prune?: boolean
  message?: string
  tokenFile?: string
  dryRun?: boolean
  json?: boolean
}

export function register(program: Command): void {
  program
    .command('upload')
    .summary('put an exported encoder, or an adapter, on the Hugging Face hub')
    .description(
      "Checks the folder (an export whose weights are those that its canopy.json lists; or an adapter in PEFT's format), makes the\n" +
        'repository where it is absent, and commits all files that differ in one commit. Then what the hub has is compared with the\n' +
        'folder: paths, sizes, hashes. An upload that breaks off leaves the repository as it was; the same command goes on, and sends\n' +
        'large files that have arrived no second time. Hidden files stay here; a link out of the folder is an error.\n' +
        'The access token comes from HF_TOKEN or a file, the address of the hub from HF_ENDPOINT.',
    )
    .argument('<folder>', 'folder that "canopy export" wrote, or runs/name/adapter')
    .option('--repo <name>', 'repository on the hub, organisation/name')
    .option('--revision <branch>', 'branch to commit to; made from main where it is absent', 'main')
    .option('--private', 'make the repository a private one; one that is public already is refused')
    .option('--no-create', 'only into a repository, and a branch, that exist')
    .option('--prune', "delete what the repository holds beside the folder's files, in the same commit")
    .option('--message <text>', 'title of the commit')
    .option('--token-file <file>', 'file that holds the access token (default: HF_TOKEN)')
    .option('--dry-run', 'check the folder and list what would be uploaded; no network is used')
    .option('--json', 'print what was uploaded as JSON')
    .addHelpText(
      'after',
      `
Example:
  $ canopy upload runs/minilm/export --repo my-organisation/minilm-nodes --private
  $ canopy upload runs/minilm/export --repo my-organisation/minilm-nodes --dry-run`,
    )
    .action(run)
}

async function run(folder: string, flags: Flags): Promise<void> {
  const out = createOutput({ json: flags.json })
  const onProgress = process.stderr.isTTY ? out.progress : withTimeLeft(out.progress)
  if (flags.dryRun) {
    const read = await interruptible((signal) => readUploadFolder(folder, { onProgress, signal })).finally(out.done)
    out.json({ dryRun: true, repo: flags.repo, revision: flags.revision, ...read })
    out.line(folderText(read))
    out.line(wouldGo(flags))
    return
  }
  const { repo } = flags
  if (repo === undefined) throw new UsageError('--repo organisation/name is missing: where should it go?')
  if (isInTheClear(process.env.HF_ENDPOINT))
    out.warn('HF_ENDPOINT is not encrypted (http): the access token and the files can be read on their way.')
  const { revision, create, prune, message } = flags
  const accessToken = flags.tokenFile === undefined ? undefined : await readToken(flags.tokenFile)
  const uploaded = await interruptible((signal) =>
    uploadFolder(folder, {
      ...{ repo, revision, create, prune, message, accessToken, onProgress, signal },
      private: flags.private,
    }),
  )
    .catch((error: unknown) => {
      // the command line says no more than "interrupted"
      if (error instanceof Error && error.name === 'AbortError') out.warn(error.message)
      throw error
    })
    .finally(out.done)
  out.json(uploaded)
  tell(uploaded, out)
}

/** Where a dry run's files would go, of which it knows no more than was said. */
function wouldGo({ repo, revision }: Pick<Flags, 'repo' | 'revision'>): string {
  const place = repo === undefined ? 'Give --repo to upload them.' : `They would go to ${repo} (${revision}).`
  return `${place} The hub was not asked: neither what is there already nor the access token was looked at.`
}

/** Whether what goes to an address can be read by others than this machine. */
function isInTheClear(address = ''): boolean {
  if (!URL.canParse(address)) return false
  const { protocol, hostname } = new URL(address)
  return protocol === 'http:' && !/^(localhost|127(\.\d+){3}|\[::1\])$/.test(hostname)
}

/** More bytes than this are no access token. */
const MOST_TOKEN_BYTES = 4096

async function readToken(file: string): Promise<string> {
  try {
    if ((await stat(file)).size > MOST_TOKEN_BYTES) throw new InputError('That is no access token.', { file })
    const token = (await readFile(file, 'utf8')).trim()
    if (!/^hf_[!-~]+$/.test(token))
      throw new InputError('It does not hold an access token of Hugging Face, which starts with "hf_".', { file })
    return token
  } catch (error) {
    throw fileError(error, 'cannot read the access token', file)
  }
}

const megabytes = (bytes: number): string =>
  bytes < 100_000 ? `${(bytes / 1e3).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`

function folderText({ kind, files, hidden }: UploadFolder): string {
  const width = Math.max(...files.map(({ path }) => path.length))
  const total = files.reduce((sum, { size }) => sum + size, 0)
  return [
    ...files.map(
      ({ path, size, sha256 }) => `${path.padEnd(width)}  ${megabytes(size).padStart(9)}  ${sha256.slice(0, 12)}`,
    ),
    `${files.length} files of ${kind === 'encoder' ? 'an exported encoder' : 'an adapter'}, ${megabytes(total)}; nothing was sent.`,
    ...hiddenText(hidden),
  ].join('\n')
}

const hiddenText = (hidden: readonly string[]): string[] =>
  hidden.length === 0
    ? []
    : [`Hidden, not uploaded: ${hidden.slice(0, 10).join(', ')}${hidden.length > 10 ? ', …' : ''}.`]

function tell(uploaded: Uploaded, out: Output): void {
  const { repo, revision, commit, url, files, committed, bytesSent, deleted, others, hidden, created } = uploaded
  if (created) out.line(`Made the repository ${repo}.`)
  if (committed.length === 0 && deleted.length === 0)
    out.line(`Nothing to upload: ${repo} (${revision}) has all ${files.length} files already.`)
  else
    out.line(
      `Committed ${committed.length} of ${files.length} files${
        committed.length < files.length ? ' (the others were there already)' : ''
      }${deleted.length === 0 ? '' : `, deleted ${deleted.length}`}; ${megabytes(bytesSent)} went to the storage of large files.`,
    )
  out.line(`The hub has all ${files.length} files as they are here, compared by path, size and hash.`)
  if (others.length > 0)
    out.line(
      `It holds others beside: ${others
        .slice(0, 10)
        .map((path) => JSON.stringify(path))
        .join(', ')}${others.length > 10 ? ', …' : ''} (--prune deletes them).`,
    )
  for (const line of hiddenText(hidden)) out.line(line)
  out.line(`Commit ${commit} of ${revision}: ${url}`)
}
