export {
  type BuildOptions,
  buildPreferences,
  type CountOptions,
  countPreferences,
  type DroppedAnnotations,
  type PreferenceCounts,
  type PreferenceSummary,
} from './build.ts'
export { PREFERENCES_SCHEMA, type PreferenceInstance, type PreferencesHeader } from './format.ts'
export {
  type GoldRow,
  type GoldTokens,
  type InspectedEncoder,
  type InspectOptions,
  inspectGold,
  type NodeTokens,
} from './inspect.ts'
export {
  DECISION_CASES,
  type DecisionCase,
  type DecisionNode,
  decisionCase,
  decisionNodes,
  decisionPairs,
  PAIR_KINDS,
  type PairKind,
  type PreferencePair,
  preferencePairs,
} from './pairs.ts'
export { checkFresh, openPreferences, type Preferences } from './read.ts'
