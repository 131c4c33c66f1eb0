import type { HubApiError } from '@huggingface/hub'
import { reasonOf } from '../../support/download.ts'
import { InputError } from '../../support/errors.ts'
import { printable } from './answer.ts'

const byHand = (id: string, revision: string): string =>
  `To get its files by hand: on a computer with network, download the repository ${id}${
    revision === 'main' ? '' : ` (revision ${revision})`
  } from huggingface.co, copy it here, and give the folder instead of the id.`

/** What a model that is not whole in the cache is, where no network is used. */
export function notCached(id: string, revision: string, repository: string, missing: string[]): InputError {
  const lack =
    missing.length === 0
      ? `is not in the cache (${repository})`
      : `is not whole in the cache (${repository}): ${missing.slice(0, 5).join(', ')} ${missing.length > 5 ? `and ${missing.length - 5} more are` : missing.length === 1 ? 'is' : 'are'} missing`
  return new InputError(
    `The model ${id}@${revision} ${lack}, and no network is used (offline, HF_HUB_OFFLINE). ${byHand(id, revision)}`,
  )
}

/** What went wrong between here and the hub, as an InputError with what to do about it; other errors as they are. */
export function hubError(
  error: unknown,
  {
    id,
    revision,
    hubUrl,
    accessToken,
  }: { id: string; revision: string; hubUrl: string; accessToken: string | undefined },
): unknown {
  if (error instanceof InputError) return error
  const statusCode = (error as Partial<HubApiError>).statusCode
  if (error instanceof Error && statusCode !== undefined) {
    const said = printable(error.message.split(/\. URL: /)[0] ?? '')
    // without a token the hub answers 401 for models that do not exist, too
    if ([401, 403, 404].includes(statusCode))
      return new InputError(
        `There is no model ${id} with the revision ${revision} on ${hubUrl}, or it is private or gated (answer ${statusCode}: ${said}). There is no folder of that name either. Check the name; ${
          accessToken === undefined
            ? 'for a private or gated model, set HF_TOKEN to an access token.'
            : 'the access token given may not be allowed to read it.'
        }`,
        {},
        error,
      )
    return new InputError(
      `${hubUrl} answered ${statusCode} for ${id} (${said}). Try again later. ${byHand(id, revision)}`,
      {},
      error,
    )
  }
  if (error instanceof SyntaxError)
    return new InputError(
      `What answers at ${hubUrl} is no Hugging Face hub (${printable(error.message)}); a proxy or a login page may stand in between.`,
      {},
      error,
    )
  return new InputError(
    `The model ${id} is not in the cache, and ${hubUrl} cannot be reached: there seems to be no network (${reasonOf(error)}). ${byHand(id, revision)}`,
    {},
    error,
  )
}
