export { type Decision, enteredChildren, type NodeScore, refine, refineVisits } from './refine.ts'
