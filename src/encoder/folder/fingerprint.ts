import { createHash } from 'node:crypto'
import { stat } from 'node:fs/promises'
import { join } from 'node:path'
import { exists, fileError, sha256File } from '../../support/files.ts'
import { readsPictures } from '../architecture.ts'
import type { EncoderProfile } from './profile.ts'

/** Files that decide how pictures and conversations become tokens; part of a fingerprint where they are there. */
export const PROCESSOR_FILES = [
  'preprocessor_config.json',
  'video_preprocessor_config.json',
  'processor_config.json',
  'chat_template.json',
  'chat_template.jinja',
]

/** SHA-256 (hexadecimal) over everything in an encoder's folder, and in its profile, that decides an embedding. */
export async function fingerprint(profile: Omit<EncoderProfile, 'fingerprint'>): Promise<string> {
  const files = [
    ...profile.weightFiles,
    join(profile.modelFolder, 'tokenizer.json'),
    join(profile.modelFolder, 'tokenizer_config.json'),
  ]
  if (readsPictures(profile))
    for (const name of PROCESSOR_FILES)
      if (await exists(join(profile.modelFolder, name))) files.push(join(profile.modelFolder, name))
  const hashes: string[] = []
  for (const file of files) hashes.push(await hashOfFile(file))
  // what changes with the tool that saved the model and not with what the model computes
  const volatile = ['_name_or_path', 'transformers_version', 'architectures']
  const config = Object.entries(profile.config)
    .filter(([key]) => !volatile.includes(key))
    .sort(([a], [b]) => (a < b ? -1 : 1))
  const { kind, pooling, normalize, prompts, maxLength, lowerCase, dimension, width, opensAnswer } = profile
  const content = [kind, hashes, config, pooling, normalize, prompts.query, prompts.node, maxLength, lowerCase]
  if (dimension < width) content.push(dimension)
  if (!opensAnswer) content.push('no answer')
  return createHash('sha256').update(JSON.stringify(content)).digest('hex')
}

const hashes = new Map<string, string>()

/** SHA-256 of a file, remembered while the process lives for the same path, size and time of change. */
async function hashOfFile(path: string): Promise<string> {
  const { size, mtimeNs } = await stat(path, { bigint: true }).catch((error: unknown) => {
    throw fileError(error, 'cannot read the file', path)
  })
  const key = `${path}\0${size}\0${mtimeNs}`
  const known = hashes.get(key)
  if (known !== undefined) return known
  const hash = await sha256File(path)
  hashes.set(key, hash)
  return hash
}
