export {
  checkQuestion,
  cosine,
  type KeptRange,
  nameOf,
  type RefinedItem,
  type RefineFunctions,
  type RefineSettings,
  refineWith,
  type TextInput,
  textHierarchy,
} from './items.ts'
export {
  type Decision,
  enteredChildren,
  leafMargins,
  type NodeScore,
  type RefineOptions,
  refine,
  refineVisits,
} from './refine.ts'
