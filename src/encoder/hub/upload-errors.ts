import { InputError } from '../../support/errors.ts'
import { printable } from './answer.ts'
import { Broken, Refused } from './upload-request.ts'

/** How far an upload had come. */
export type UploadStage = 'asking' | 'creating' | 'branching' | 'sending' | 'committing' | 'checking'

export interface UploadPlace {
  id: string
  branch: string
  hubUrl: string
  stage: UploadStage
}

const AGAIN =
  'Run the same command again: it goes on from there, and large files that have arrived are not sent once more.'
const NOTHING = 'Nothing was committed, so the repository is as it was.'

/** What went wrong in an upload, as an InputError with what to do about it. */
export function uploadError(error: unknown, place: UploadPlace): unknown {
  if (error instanceof Refused) return new InputError(refusedText(error, place))
  if (error instanceof Broken) return new InputError(brokenText(error, place))
  if (error instanceof InputError || !(error instanceof Error) || error.name === 'AbortError') return error
  // the hub's own library stumbles over answers of another form, with errors of several kinds
  return new InputError(
    `What ${place.hubUrl} answers is not what a Hugging Face hub does (${printable(error.message).slice(0, 200)}); a proxy or a login page may stand in between. ${outcome(place)}`,
  )
}

function outcome({ stage, id, branch }: UploadPlace): string {
  if (stage === 'committing')
    return `Whether the files were committed to ${id} (${branch}) is not known: run the same command again, which looks and does what is left.`
  if (stage === 'checking')
    return 'The files were committed, but what the hub keeps of them was not checked: run the same command again, which compares them.'
  return NOTHING
}

function refusedText({ status, said, path }: Refused, place: UploadPlace): string {
  const { id, branch, hubUrl, stage } = place
  const answer = `answer ${status}${said === '' ? '' : `: ${said}`}`
  if (path !== undefined)
    return `The storage of ${hubUrl} does not take ${path} (${answer}). ${NOTHING} ${
      status === 413
        ? 'The file is too large for it.'
        : status === 401 || status === 403
          ? `The permission to send the file may have run out. ${AGAIN}`
          : AGAIN
    }`
  if (status === 401)
    return `${hubUrl} does not accept the access token (${answer}). ${NOTHING} Set HF_TOKEN to a valid one with permission to write, or name its file with --token-file.`
  if (status === 403)
    return stage === 'creating'
      ? `The access token may not create ${id} on ${hubUrl} (${answer}). Use one that may write there, or another name.`
      : `The access token may not write to ${id} on ${hubUrl} (${answer}). ${NOTHING} Use one with permission to write.`
  if (status === 404)
    return stage === 'branching'
      ? `${id} has no branch ${branch} on ${hubUrl} (${answer}). ${NOTHING} Give an existing one with --revision, or leave out --no-create.`
      : `There is no model ${id} on ${hubUrl}, or the access token may not see it (${answer}). ${NOTHING} Check the name; without --no-create it is created.`
  if (status === 409 || status === 412)
    return `Something else changed ${id} (${branch}) while this upload ran (${answer}). ${NOTHING} ${AGAIN}`
  if (status === 413)
    return `${hubUrl} does not take that many bytes at once (${answer}). ${NOTHING} A file beside the weights may be too large for it.`
  if (status === 429) return `${hubUrl} asks to wait, too many requests were made (${answer}). ${NOTHING} ${AGAIN}`
  if (status >= 300 && status < 400)
    return `${hubUrl} sends uploads for ${id} elsewhere (${answer}), which is not followed; the repository may have been renamed. ${NOTHING} Give its new name.`
  if (status >= 500)
    return `${hubUrl} has trouble (${answer}). ${outcome(place)}${stage === 'sending' ? ` ${AGAIN}` : ''}`
  return `${hubUrl} refuses the upload to ${id} (${answer}). ${outcome(place)}`
}

function brokenText({ reason, path }: Broken, place: UploadPlace): string {
  const { id, hubUrl, stage } = place
  if (path !== undefined) return `Sending ${path} to ${id} broke off (${reason}). ${NOTHING} ${AGAIN}`
  if (stage === 'committing' || stage === 'checking')
    return `The connection to ${hubUrl} broke (${reason}). ${outcome(place)}`
  return `${hubUrl} cannot be reached (${reason}). ${NOTHING} ${stage === 'sending' ? AGAIN : 'Check the network, and HF_ENDPOINT where it is set.'}`
}

/** The reason of an upload that was stopped (Ctrl-C): an AbortError that says what is there now. */
export function stopped(place: UploadPlace): Error {
  const error = new Error(
    place.stage === 'committing' || place.stage === 'checking'
      ? `The upload to ${place.id} was stopped. ${outcome(place)}`
      : `The upload to ${place.id} was stopped. ${NOTHING} ${AGAIN}`,
  )
  error.name = 'AbortError'
  return error
}
