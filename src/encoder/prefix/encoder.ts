import type { EncoderProfile } from '../folder/profile.ts'
import { type Qwen3Config, qwen3Config } from '../qwen3/index.ts'
import type { FeatureSource, RowLayout } from '../rows/layout.ts'
import { planRuns } from './batches.ts'
import { numberVisuals } from './columns.ts'
import { causalFeeds } from './feeds.ts'
import { causalCost, causalRows } from './layout.ts'
import { prefixOrder } from './order.ts'
import type { RowWork } from './rows.ts'

/**
 * The layout of a Qwen3 or Qwen3-VL encoder's runs: sequences that begin alike go together, and what they begin with is computed
 * once.
 *
 * @param options.padId the token that fills rows up
 * @param options.share whether prefixes are shared; true where absent
 * @param options.visuals where the visual features are that sequences name; unused by an encoder of text
 */
export function causalLayout(
  profile: EncoderProfile,
  options: { padId: number; share?: boolean; visuals?: FeatureSource | undefined },
): RowLayout {
  const { padId, share = true, visuals } = options
  const config = qwen3Config(profile.config, profile.folder)
  const work = rowWork(config)
  const sizes = config.sections === undefined ? undefined : { levels: 1 + config.deepstack, width: config.hidden }
  return {
    // a source may come to have its features after the graph was made
    feeds: (sequences) =>
      causalFeeds(causalRows(sequences, { padId, share, work }), sizes && { ...sizes, features: visuals?.features }),
    tokens: (sequences) => causalCost(sequences, { share, work }).tokens,
    computed: (sequences) => causalCost(sequences, { share, work }).computed,
    batches: (sequences, budget, wanted) =>
      planRuns(prefixOrder(numberVisuals(sequences).columns, share), budget, work, wanted),
  }
}

/**
 * What deciding on rows needs to know of a Qwen3 model. Per token and layer its linear maps take
 *
 *   2 hidden (2 heads + 2 kvHeads) headWidth + 6 hidden intermediate
 *
 * operations. A token's attention to one other in one head takes as long as 200 + 3 headWidth of these, measured with ONNX Runtime
 * on a CPU for heads of 64 and 128 in rows of 128 to 2048 (330 to 510 when encoding, more in training).
 */
function rowWork({ hidden, heads, kvHeads, headWidth, intermediate }: Qwen3Config): RowWork {
  const maps = 4 * hidden * (heads + kvHeads) * headWidth + 6 * hidden * intermediate
  return { evenLength: maps / (heads * (200 + 3 * headWidth)) }
}
