import type { EncoderProfile } from '../../encoder/index.ts'
import type { TrainingState } from './checkpoints.ts'
import type { EncoderRecord, RunConfig } from './folder.ts'
import type { RunPlan } from './plan.ts'
import type { TrainOptions } from './run.ts'
import { machine, versions } from './versions.ts'

/** What config.json says of a run that goes on from `state`. */
export async function configOf(options: TrainOptions, plan: RunPlan, state: TrainingState): Promise<RunConfig> {
  const { settings } = options
  const { module, set, split, leftOut } = plan
  return {
    schema: 'canopy-run/1',
    command: options.command ?? [],
    settings,
    seed: settings.seed,
    steps: plan.totalSteps,
    encoder: recordOf(options.encoder),
    queryEncoder: recordOf(options.queryEncoder),
    ...(module && { lossModule: { path: module.path, sha256: module.sha256, files: module.files } }),
    ...(plan.start && {
      startAdapter: {
        ...{ folder: plan.start.folder, sha256: plan.start.hash, modules: plan.start.adapter.targets.length },
      },
    }),
    modules: plan.targets.map((target) => target.module),
    data: set.sources,
    instances: {
      train: split.train.length,
      validation: split.validation.length,
      without_pairs: set.empty,
      left_out: leftOut.instances.size,
    },
    ...(leftOut.unreadable.length > 0 && { unreadable: leftOut.unreadable }),
    versions: await versions(),
    machine: machine(),
    threads: plan.threads,
    engine: plan.engine.record,
    tokenBudget: state.tokenBudget,
    fingerprint: plan.fingerprint,
  }
}

function recordOf(profile: EncoderProfile): EncoderRecord {
  const { id, revision, fingerprint, dimension, maxLength, pooling, prompts } = profile
  return { id, revision: revision ?? null, fingerprint, dimension, maxLength, pooling, prompts }
}
