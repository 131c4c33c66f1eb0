import { InputError } from '../../support/errors.ts'

/** The settings of adapter_config.json by which PEFT chooses the modules that it adapts. */
export interface PeftSelection {
  target_modules?: string | string[] | null | undefined
  exclude_modules?: string | string[] | null | undefined
  layers_to_transform?: number | number[] | null | undefined
  layers_pattern?: string | string[] | null | undefined
}

/**
 * The value that PEFT takes from `rank_pattern` or `alpha_pattern` for a module: that of the first pattern that matches the end of
 * its path, from the start or after a dot (peft 0.21, utils/other.py, `get_pattern_key`).
 *
 * @param path of the module in the model that was adapted
 * @param file adapter_config.json, for the message
 * @returns undefined where none matches
 * @throws InputError for a pattern that is no regular expression
 */
export function patternValue(
  patterns: Record<string, number> | null | undefined,
  path: string,
  file: string,
): number | undefined {
  for (const [pattern, value] of Object.entries(patterns ?? {})) {
    const expression = pythonRegex(`(.*\\.)?(${pattern})`)
    if (expression === undefined)
      throw new InputError(`The pattern "${pattern}" is no regular expression that can be read here.`, { file })
    if (expression.test(path)) return value
  }
  return undefined
}

/**
 * Whether PEFT adapts a module, going by adapter_config.json (peft 0.21, tuners/tuners_utils.py, `check_target_module_exists`).
 *
 * @param path of the module in the model that was adapted
 * @returns undefined where the file does not say, or in a regular expression that cannot be read here
 */
export function isSelected(selection: PeftSelection, path: string): boolean | undefined {
  const { target_modules: targets, exclude_modules: excluded } = selection
  if (targets === null || targets === undefined) return undefined
  if (excluded !== null && excluded !== undefined && excluded.length > 0) {
    const out = named(excluded, path)
    if (out !== false) return out === undefined ? undefined : false
  }
  if (typeof targets === 'string') return targets.toLowerCase() === 'all-linear' ? true : named(targets, path)
  // whole paths are taken whatever layers are asked for
  return targets.includes(path) || (named(targets, path) === true && inLayers(selection, path))
}

/** Whether an expression is the whole path, or one of a list its end. */
function named(names: string | string[], path: string): boolean | undefined {
  if (typeof names === 'string') return pythonRegex(names)?.test(path)
  return names.some((name) => path === name || path.endsWith(`.${name}`))
}

function inLayers({ layers_to_transform: wanted, layers_pattern: patterns }: PeftSelection, path: string): boolean {
  if (wanted === null || wanted === undefined || (Array.isArray(wanted) && wanted.length === 0)) return true
  const given = typeof patterns === 'string' ? [patterns].filter((p) => p !== '') : (patterns ?? [])
  const expressions =
    given.length === 0
      ? [/^.*?\.[^.]*\.(?<idx>\d+)\./]
      : given.map((pattern) => pythonRegex(`(?:^|.*?\\.)${pattern}\\.(?<idx>\\d+)\\..*`))
  for (const expression of expressions) {
    const layer = expression?.exec(path)?.groups?.idx
    if (layer !== undefined) return (Array.isArray(wanted) ? wanted : [wanted]).includes(Number(layer))
  }
  return false
}

/** A regular expression of Python that has to match from start to end; undefined where JavaScript cannot read it. */
function pythonRegex(pattern: string): RegExp | undefined {
  const inline = /^\(\?([aimsux]+)\)/.exec(pattern)
  const flags = [...new Set(inline?.[1] ?? '')].filter((flag) => 'ims'.includes(flag)).join('')
  const bare = pattern
    .slice(inline?.[0].length ?? 0)
    .replaceAll('(?P<', '(?<')
    .replaceAll(/\(\?P=(\w+)\)/g, '\\k<$1>')
    .replaceAll('\\A', '^')
    .replaceAll('\\Z', '$')
  try {
    return new RegExp(`^(?:${bare})$`, flags)
  } catch {
    return undefined
  }
}
