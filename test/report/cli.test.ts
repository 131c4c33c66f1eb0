import { execFileSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { describe, expect, it } from 'vitest'
import { canopy } from '../support/cli.ts'
import { temporaryFolder } from '../support/temporary.ts'
import { evaluatedWorld, hostileWorld, moveEvaluation, writeRun } from './world.ts'

describe('canopy report', () => {
  it('writes report.html into the run and says what it holds', async () => {
    const folder = temporaryFolder()
    const { dataset, evaluation } = await evaluatedWorld(folder, hostileWorld())
    const run = writeRun(join(folder, 'run'), { dataset })
    moveEvaluation(evaluation, run)
    const { code, stdout, stderr } = await canopy(['report', run]).finished
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' })
    expect(stdout).toMatch(/report\.html: 3 of 3 questions, 6 items, 0\.\d MB/)
    expect(readFileSync(join(run, 'report.html'), 'utf8')).toMatch(/^<!doctype html>/)
  })

  it('prints JSON, warns of what is missing, and takes another name, fewer questions and a seed', async () => {
    const folder = temporaryFolder()
    const { evaluation, dataset } = await evaluatedWorld(folder, hostileWorld())
    const output = join(folder, 'deep', 'some.html')
    const flags = ['--dataset', dataset, '--output', output, '--questions', '2', '--seed', '5', '--json']
    const { code, stdout } = await canopy(['report', evaluation, ...flags]).finished
    expect(code).toBe(0)
    expect(JSON.parse(stdout)).toMatchObject({
      output,
      questions: 2,
      questionsOf: 3,
      runs: 0,
      evaluations: 1,
      notes: [],
    })
    expect(existsSync(output)).toBe(true)
    const { stderr } = await canopy(['report', evaluation, '--output', join(folder, 'b.html')]).finished
    expect(stderr).toMatch(/warning: The dataset "world" .* was not found/)
  })

  it('warns where there is no evaluation', async () => {
    const folder = temporaryFolder()
    const { dataset } = await evaluatedWorld(folder, hostileWorld())
    const { code, stderr } = await canopy(['report', writeRun(join(folder, 'run'), { dataset })]).finished
    expect(code).toBe(0)
    expect(stderr).toMatch(/warning: no evaluation lies in these folders.*run "canopy evaluate" first/)
  })

  it('exits with 2 without a folder, with 1 for one that holds nothing, and leaves nothing behind', async () => {
    expect((await canopy(['report']).finished).code).toBe(2)
    expect((await canopy(['report', '.', '--questions', 'many']).finished).code).toBe(2)
    const folder = temporaryFolder()
    const { code, stderr } = await canopy(['report', folder]).finished
    expect(code).toBe(1)
    expect(stderr).toMatch(/^error: .*neither a training run/)
    expect(existsSync(join(folder, 'report.html'))).toBe(false)
  })

  it('holds the viewer that its source makes', () => {
    const root = resolve(import.meta.dirname, '../..')
    const program = `import { bundleViewer } from './scripts/viewer.mjs'; process.stdout.write(JSON.stringify(await bundleViewer()))`
    const made = JSON.parse(
      execFileSync(process.execPath, ['--input-type=module', '-e', program], { cwd: root, encoding: 'utf8' }),
    )
    const built = (name: string): string => readFileSync(join(root, 'dist/report', name), 'utf8')
    expect(
      built('viewer.js') === made.script && built('viewer.css') === made.style,
      'dist is older than src: run "npm run build"',
    ).toBe(true)
  })
})
