import { GraphBuilder, lower, type Tensor } from '../../onnx/index.ts'
import { openTfjs, type TfjsBackend } from '../../tfjs/index.ts'
import type { QueryRows } from '../data/query-file.ts'
import { addLoss, type LossSettings, lossValues } from '../loss/pairwise.ts'
import type { Engine, TrainableEncoder } from './engine.ts'
import { UNIT_EMBEDDINGS, withUnitLength } from './graph.ts'
import { engineOver } from './passes.ts'

/**
 * Loads the graph that trains `encoder` into TensorFlow.js. The forward graph and the loss are those of ONNX Runtime's engine;
 * kernels and gradients are TensorFlow.js's own. It computes in float32, so that `lossScale` stays 1.
 *
 * @param loss the built-in loss; undefined for one that is computed outside, from `embed` to `pullBack`
 * @throws InputError where TensorFlow.js or the backend asked for is not installed
 */
export async function openTfjsEngine(options: {
  encoder: TrainableEncoder
  queries: QueryRows
  loss: LossSettings | undefined
  tokenBudget: number
  /** The best one that is installed where absent. */
  backend?: TfjsBackend
}): Promise<Engine> {
  const { encoder, loss, backend } = options
  const g = GraphBuilder.from(withUnitLength(encoder.graph, encoder.unitLength))
  if (loss !== undefined) addLoss(g, UNIT_EMBEDDINGS, loss)
  // ONNX Runtime's fused operators (rotary positions, for one) as standard ones
  const session = await openTfjs(lower(g.build()).graph, {
    ...(backend === undefined ? {} : { backend }),
    ...(encoder.externalFolder === undefined ? {} : { externalFolder: encoder.externalFolder }),
  })
  const wrt = [...encoder.trainable.keys()]
  return engineOver(
    {
      embed: async (feeds) => floats((await session.run(feeds, [UNIT_EMBEDDINGS]))[UNIT_EMBEDDINGS]),
      async step(feeds) {
        const { outputs, gradients } = await session.gradients(feeds, {
          of: lossValues.loss,
          wrt,
          outputs: [lossValues.loss, lossValues.differences],
        })
        return {
          loss: floats(outputs[lossValues.loss])[0]!,
          differences: floats(outputs[lossValues.differences]),
          gradients,
        }
      },
      pullBack: async (feeds, seed) => (await session.gradients(feeds, { of: UNIT_EMBEDDINGS, seed, wrt })).gradients,
      close: async () => session.close(),
    },
    options,
  )
}

function floats(tensor: Tensor | undefined): Float32Array {
  if (!(tensor?.data instanceof Float32Array)) throw new TypeError('The graph gave no float32 output')
  return tensor.data
}
