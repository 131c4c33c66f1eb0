import { type Digest, download } from '../../support/download.ts'
import type { RepositoryFile } from './files.ts'

/** Where a repository's files are fetched from. */
export interface RepositorySource {
  id: string
  commit: string
  hubUrl: string
  accessToken: string | undefined
}

/**
 * Downloads one file to `blob`, or what is missing of it, in one try.
 *
 * @param onBytes told how many of the file's bytes are there
 * @throws InputError when the connection breaks (what has arrived stays), or when the bytes are not those that the hub announced
 */
export async function downloadBlob(
  { id, commit, hubUrl, accessToken }: RepositorySource,
  file: RepositoryFile,
  blob: string,
  onBytes: (bytes: number) => void,
): Promise<void> {
  const path = file.path.split('/').map(encodeURIComponent).join('/')
  const algorithm: Digest['algorithm'] = file.hash.length === 64 ? 'sha256' : 'git'
  const what = {
    url: `${hubUrl}/${id}/resolve/${commit}/${path}`,
    name: `${file.path} of ${id}`,
    authority: 'the hub',
    size: file.size,
    digest: { algorithm, hex: file.hash },
    // plain HTTP ranges can be resumed; the token stays with the hub
    headers: accessToken === undefined ? {} : { authorization: `Bearer ${accessToken}` },
  }
  await download(what, blob, { onBytes, attempts: 1 })
}
