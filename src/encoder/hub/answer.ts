import { InputError } from '../../support/errors.ts'

/** More bytes than any answer of the hub's interface has: a page of a listing has some hundred kilobytes. */
const MOST_BYTES = 64 * (1 << 20)

/**
 * An answer of the hub's interface with all of its body read, so that neither one without an end nor one that breaks off reaches who
 * parses it.
 *
 * @throws InputError for a body that is longer than any answer; what the connection throws
 */
export async function wholeAnswer(response: Response, hubUrl: string): Promise<Response> {
  const chunks: Uint8Array[] = []
  let bytes = 0
  for await (const chunk of response.body ?? []) {
    chunks.push(chunk as Uint8Array)
    bytes += (chunk as Uint8Array).length
    if (bytes > MOST_BYTES)
      throw new InputError(`${hubUrl} answers with more than ${MOST_BYTES >> 20} MiB; is it a Hugging Face hub?`)
  }
  const { status, statusText, headers } = response
  return new Response(bytes === 0 ? null : Buffer.concat(chunks), { status, statusText, headers })
}

/** A server's text made safe to print: in one line, without access tokens, control characters, and the addresses it may repeat. */
export const printable = (text: string): string =>
  text
    .replaceAll(/hf_[\w.-]+/g, '…')
    .replaceAll(/https?:\/\/\S+/g, '…')
    // biome-ignore lint/suspicious/noControlCharactersInRegex: a terminal would obey them
    .replaceAll(/[\x00-\x1f\x7f-\x9f]+/g, ' ')
    .trim()
