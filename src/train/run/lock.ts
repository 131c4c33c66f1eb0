import { lockFolder } from '../../support/lock.ts'

export { LOCK_FILE } from '../../support/lock.ts'

/** {@link lockFolder} of a run folder. */
export const lockRun = (folder: string, doing = 'training'): Promise<() => Promise<void>> => lockFolder(folder, doing)
