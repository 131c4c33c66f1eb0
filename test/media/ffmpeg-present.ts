import { spawnSync } from 'node:child_process'

/** Whether ffmpeg and ffprobe are on this machine; tests that need them are skipped elsewhere. */
export const hasFfmpeg = ['ffmpeg', 'ffprobe'].every((tool) => spawnSync(tool, ['-version']).status === 0)
if (!hasFfmpeg) console.warn('ffmpeg is not installed: tests of videos are skipped')
