/**
 * Every place where `answer` stands in `text`, UTF-16 `[start, end)`, for text that was cut into tokens and put together with
 * blanks between them. White space beside a punctuation mark or symbol counts for nothing, other white space as one blank:
 * `J.R. Smith` stands in `J.R . Smith`. No letter or digit stands on either side. Places that agree in case win; where there
 * are none, case counts for nothing.
 */
export function tolerantOccurrences(text: string, answer: string): [number, number][] {
  const wanted = normalise(answer).text
  if (wanted === '') return []
  const within = normalise(text)
  const stands = (start: number): [number, number][] => {
    const span: [number, number] = [within.offsets[start]!, within.offsets[start + wanted.length - 1]! + 1]
    const inWord = endsInWord(text.slice(0, span[0])) || startsWithWord(text.slice(span[1]))
    return inWord ? [] : [span]
  }
  const exact = [...occurrences(within.text, wanted)].flatMap(stands)
  return exact.length > 0 ? exact : [...occurrences(lowerCase(within.text), lowerCase(wanted))].flatMap(stands)
}

/** The text without the white space that counts for nothing, and where each code unit of it stands. */
function normalise(written: string): { text: string; offsets: number[] } {
  const offsets: number[] = []
  let text = ''
  let visible = ''
  for (const { 0: run, index } of written.matchAll(/\s+|\S+/g)) {
    if (run.trim() !== '') {
      for (let i = 0; i < run.length; i++) offsets.push(index + i)
      text += run
      visible = run
    } else if (endsInWord(visible) && startsWithWord(written.slice(index + run.length))) {
      offsets.push(index)
      text += ' '
    }
  }
  return { text, offsets }
}

const endsInWord = (text: string): boolean => /[\p{L}\p{M}\p{N}]$/u.test(text.slice(-2))
const startsWithWord = (text: string): boolean => /^[\p{L}\p{M}\p{N}]/u.test(text.slice(0, 2))

/** Lower case code unit by code unit, so that offsets stay. */
const lowerCase = (text: string): string =>
  text.replace(/\p{Lu}/gu, (letter) => {
    const lower = letter.toLowerCase()
    return lower.length === letter.length ? lower : letter
  })

function* occurrences(text: string, wanted: string): Generator<number> {
  for (let at = text.indexOf(wanted); at >= 0; at = text.indexOf(wanted, at + 1)) yield at
}
