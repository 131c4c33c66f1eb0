export { type Lowered, lower } from './lower.ts'
