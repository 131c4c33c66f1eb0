export { addGradients, type GradientGraph } from './reverse.ts'
export type { Gradient, GradientRule, RuleContext } from './rule.ts'
export { gradients } from './rules.ts'
