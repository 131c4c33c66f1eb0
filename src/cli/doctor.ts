import { type Command, Option } from 'commander'
import pc from 'picocolors'
import { DEVICES, type Device } from '../onnx/index.ts'
import { checkHealth, type Finding } from './health.ts'
import { NATIVE_CHECKS, nativeCheck } from './native-checks.ts'
import { createOutput } from './output.ts'

interface Flags {
  device: Device
  native?: string
  json?: boolean
}

/** Exit status when something is at fault. */
const FAULT = 1

const marks = { ok: pc.green('ok   '), warn: pc.yellow('warn '), fault: pc.red('fault') }

export function register(program: Command): void {
  program
    .command('doctor')
    .summary('check what this machine can run, and say how to mend what it cannot')
    .description(
      'Checks Node.js, onnxruntime-node and whether each device really computes (a small graph, compared with the CPU), memory and\n' +
        "processors against a container's limits, disk space, ffmpeg and TensorFlow.js. Every line is ok, warn (something that is\n" +
        'not needed for every task is missing) or fault, with the remedy below it.',
    )
    .addOption(new Option('--device <name>', 'the device that has to work').choices(DEVICES).default('cpu'))
    .option('--json', 'print the findings as JSON')
    .addOption(new Option('--native <check>').choices(NATIVE_CHECKS).hideHelp())
    .addHelpText(
      'after',
      `
Exit status: 0 when nothing is at fault (warnings allowed), 1 when something is.

Examples:
  $ canopy doctor
  $ canopy doctor --device cuda && canopy train --device cuda --precision bf16 …`,
    )
    .action(async (flags: Flags) => {
      if (flags.native !== undefined) createOutput({ json: true }).json(await nativeCheck(flags.native))
      else process.exitCode = await run(flags)
    })
}

async function run({ device, json }: Flags): Promise<number> {
  const out = createOutput({ json })
  const findings: Finding[] = []
  const command = [process.execPath, process.argv[1] as string, 'doctor', '--native']
  for await (const finding of checkHealth({ device, folder: process.cwd(), command })) {
    findings.push(finding)
    const { name, status, detail, remedy } = finding
    out.line(`${marks[status]} ${name}: ${detail}`)
    if (remedy !== undefined) out.line(`      ${remedy}`)
  }
  const faults = findings.filter(({ status }) => status === 'fault').length
  out.json({ ok: faults === 0, findings })
  out.line(faults === 0 ? 'Nothing is at fault.' : `${faults === 1 ? '1 fault' : `${faults} faults`}, see above.`)
  return faults === 0 ? 0 : FAULT
}
