import { createContext, Script } from 'node:vm'

/**
 * What a synchronous function returns or throws, unless it takes longer than a limit: it is then ended wherever it is, inside a
 * regular expression too, which nothing else in the process could end.
 *
 * @param milliseconds of wall-clock time
 * @param late makes the error that is thrown then
 */
export function withinTime<T>(milliseconds: number, run: () => T, late: () => Error): T {
  try {
    return new Script('run()').runInContext(createContext({ run }), { timeout: milliseconds }) as T
  } catch (error) {
    throw (error as NodeJS.ErrnoException | undefined)?.code === 'ERR_SCRIPT_EXECUTION_TIMEOUT' ? late() : error
  }
}
