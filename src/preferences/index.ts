export {
  type BuildOptions,
  buildPreferences,
  type DecisionCase,
  type DroppedAnnotations,
  decisionCase,
  type PreferenceSummary,
} from './build.ts'
export { PREFERENCES_SCHEMA, type PreferenceInstance, type PreferencesHeader } from './format.ts'
export {
  type DecisionNode,
  decisionNodes,
  decisionPairs,
  PAIR_KINDS,
  type PairKind,
  type PreferencePair,
  preferencePairs,
} from './pairs.ts'
export { checkFresh, openPreferences, type Preferences } from './read.ts'
