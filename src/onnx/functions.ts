import { clone, create } from '@bufbuild/protobuf'
import {
  type AttributeProto,
  AttributeProtoSchema,
  type FunctionProto,
  type ModelProto,
  type NodeProto,
  NodeProtoSchema,
} from 'onnx-buf'

/** Inlined bodies, calls in them included, have at most so many nodes: a file cannot make a graph of any size. */
const MAX_NODES = 50_000

/** Functions call functions to this depth. */
const MAX_DEPTH = 64

/**
 * Puts the bodies of a model's own functions in the place of their calls (onnx.proto, FunctionProto), values and nodes
 * named after the call.
 *
 * @param opset of the model: functions are written for it too.
 * @throws Error for functions that call themselves, that are written for another operator set, or whose values lie in
 *   subgraphs.
 */
export function inlineFunctions(model: ModelProto, opset: number): void {
  const functions = new Map<string, FunctionProto>()
  for (const f of model.functions) functions.set(`${f.domain}:${f.name}:${f.overload}`, f)
  const taken: Taken = new Map(model.graph?.node.flatMap((n) => [n.name, ...n.output]).map((name) => [name, 1]))
  const nodes: NodeProto[] = []
  let inlined = 0

  const place = (node: NodeProto, path: string[]): void => {
    const key = `${node.domain}:${node.opType}:${node.overload}`
    const f = functions.get(key)
    if (f === undefined) {
      nodes.push(node)
      return
    }
    if (path.includes(key)) throw new Error(`the function "${f.name}" calls itself`)
    if (path.length >= MAX_DEPTH) throw new Error(`over ${MAX_DEPTH} functions call each other in a row`)
    inlined += f.node.length
    if (inlined > MAX_NODES) throw new Error(`the bodies of its functions put over ${MAX_NODES} nodes into the model`)
    const standard = f.opsetImport.find(({ domain }) => domain === '' || domain === 'ai.onnx')
    if (standard !== undefined && Number(standard.version) !== opset)
      throw new Error(
        `the function "${f.name}" is written for operator set ${standard.version} and the model for ${opset}, which is not ` +
          'supported; inline it beforehand (onnx.inliner.inline_local_functions)',
      )
    for (const inner of body(node, f, taken)) place(inner, [...path, key])
  }

  if (model.graph === undefined) return
  for (const node of model.graph.node) place(node, [])
  model.graph.node = nodes
}

/** Names in use -> the number to try first in a name like them. */
type Taken = Map<string, number>

/** The nodes of a function for one call: formal values become the call's, inner ones get new names. */
function body(call: NodeProto, f: FunctionProto, taken: Taken): NodeProto[] {
  const names = new Map<string, string>()
  f.input.forEach((name, i) => {
    names.set(name, call.input[i] ?? '')
  })
  f.output.forEach((name, i) => {
    // An output that the call leaves out is an inner value.
    if (call.output[i] && !names.has(name)) names.set(name, call.output[i])
  })
  const base = call.name === '' ? (call.output[0] ?? f.name) : call.name
  const fresh = (name: string): string => {
    const wanted = `${base}/${name}`
    let made = wanted
    let n = taken.get(wanted) ?? 1
    while (taken.has(made)) made = `${wanted}_${n++}`
    taken.set(wanted, n)
    taken.set(made, 1)
    return made
  }
  const rename = (name: string): string => {
    if (name === '') return ''
    const known = names.get(name) ?? fresh(name)
    names.set(name, known)
    return known
  }
  const given = new Map(call.attribute.map((a) => [a.name, a]))
  const defaults = new Map(f.attributeProto.map((a) => [a.name, a]))
  const attribute = (a: AttributeProto): AttributeProto[] => {
    if (a.g !== undefined || a.graphs.length > 0)
      throw new Error(
        `the function "${f.name}" has subgraphs, which is not supported; inline it beforehand ` +
          '(onnx.inliner.inline_local_functions)',
      )
    if (a.refAttrName === '') return [a]
    const value = given.get(a.refAttrName) ?? defaults.get(a.refAttrName)
    if (value === undefined) return []
    const named = clone(AttributeProtoSchema, value)
    named.name = a.name
    return [named]
  }
  const made = f.node.map((node) =>
    create(NodeProtoSchema, {
      opType: node.opType,
      domain: node.domain,
      overload: node.overload,
      name: fresh(node.name === '' ? node.opType : node.name),
      input: node.input.map(rename),
      output: node.output.map(rename),
      attribute: node.attribute.flatMap(attribute),
    }),
  )
  // A function may hand an input through.
  const through = f.output.flatMap((name, i) => (f.input.includes(name) && call.output[i] ? [[i, name] as const] : []))
  return [
    ...made,
    ...through.map(([i, name]) =>
      create(NodeProtoSchema, {
        opType: 'Identity',
        name: fresh('Identity'),
        input: [call.input[f.input.indexOf(name)] ?? ''],
        output: [call.output[i] as string],
      }),
    ),
  ]
}
