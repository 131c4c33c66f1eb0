import { modelContents, openSession, type SessionOptions, type Tensor } from '../../onnx/index.ts'
import type { EncoderProfile } from '../folder/profile.ts'
import type { TokenSequence } from '../input/sequence.ts'
import { poolRows } from '../rows/pooling.ts'
import { asFloat32, encoderOutput, paddedFeeds } from './feeds.ts'

/** An ONNX folder's graph as its file has it, run by ONNX Runtime. */
export interface OriginalGraph {
  /**
   * Whether what a text gives depends on the texts beside it and on padding: activations are quantised by their range in the
   * whole batch. Such a graph is to be given one text at a time.
   */
  mixesTexts: boolean
  /** Embeddings of texts, one to a padded row, float32 [sequences, dimension]. */
  embed(sequences: readonly TokenSequence[]): Promise<Float32Array>
  close(): Promise<void>
}

/**
 * Opens the graph of an ONNX folder as it stands.
 *
 * @throws InputError for inputs that an encoder here cannot give, and where no output holds vectors
 */
export async function openOriginal(
  profile: EncoderProfile,
  padId: number,
  options: Pick<SessionOptions, 'threads' | 'device' | 'optimization'> = {},
): Promise<OriginalGraph> {
  const { operators } = await modelContents(profile.weights)
  const session = await openSession(profile.weights, options)
  const output = await (async () => {
    try {
      return encoderOutput(session.inputs.keys(), session.outputs, profile.weights)
    } catch (error) {
      await session.release()
      throw error
    }
  })()
  return {
    mixesTexts: [...operators].some((op) => op.startsWith('DynamicQuantize')),
    async embed(sequences) {
      const results = await session.run(paddedFeeds(session.inputs, sequences, padId))
      const vectors = asFloat32(results[output.name] as Tensor)
      return poolRows(vectors, sequences, output.pooled ? undefined : profile.pooling, profile)
    },
    close: () => session.release(),
  }
}
