import type { Attribute } from './graph.ts'

type Attributes = Record<string, Attribute>

/** Integer attribute `name`, or the default. */
export function intAttribute(attributes: Attributes, name: string, otherwise: number): number {
  const a = attributes[name]
  return a !== undefined && 'i' in a ? a.i : otherwise
}

/** Float attribute `name`, or the default. */
export function floatAttribute(attributes: Attributes, name: string, otherwise: number): number {
  const a = attributes[name]
  return a !== undefined && 'f' in a ? a.f : otherwise
}

/** Integer-list attribute `name`, or undefined. */
export function intsAttribute(attributes: Attributes, name: string): number[] | undefined {
  const a = attributes[name]
  return a !== undefined && 'ints' in a ? a.ints : undefined
}

/** String attribute `name`, or the default. */
export function stringAttribute(attributes: Attributes, name: string, otherwise: string): string {
  const a = attributes[name]
  return a !== undefined && 's' in a ? a.s : otherwise
}

/** The axis as an index from 0; ONNX counts negative axes from the end. */
export function normalAxis(axis: number, rank: number): number {
  const normal = axis < 0 ? axis + rank : axis
  if (normal < 0 || normal >= rank) throw new RangeError(`axis ${axis} is outside a shape of ${rank} dimensions`)
  return normal
}
