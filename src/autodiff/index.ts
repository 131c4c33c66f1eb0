export { addGradients, type GradientGraph } from './reverse.ts'
export { type Gradient, type GradientRule, gradients, type RuleContext } from './rules.ts'
