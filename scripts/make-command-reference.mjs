// Writes docs/commands.md from the help texts of the built command line, which are its only source.
//
//   npm run build && node scripts/make-command-reference.mjs             writes docs/commands.md
//   node scripts/make-command-reference.mjs --output <file>              writes there instead
//
// CANOPY_CLI names another build than dist/.
import { execFileSync } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { dirname, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { Command } from 'commander'

const root = resolve(import.meta.dirname, '..')
const { values } = parseArgs({ options: { output: { type: 'string', default: `${root}/docs/commands.md` } } })
const cli = resolve(process.env.CANOPY_CLI ?? `${root}/dist/cli/main.js`)

const { eventsOption } = await import(resolve(dirname(cli), 'events.js'))

// The help reads the same on every machine: plain, and with caches below "~".
Object.assign(process.env, { NO_COLOR: '1', HOME: '~', XDG_CACHE_HOME: '~/.cache' })
delete process.env.CANOPY_DOWNLOADS

/** What `canopy <verb> --help` prints, without a process for each. */
async function help(verb) {
  let text = ''
  const program = new Command('canopy').configureOutput({
    getOutHelpWidth: () => 80,
    getOutHasColors: () => false,
    writeOut: (part) => {
      text += part
    },
  })
  const { register } = await import(resolve(dirname(cli), `${verb}.js`))
  register(program)
  program.commands[0].addOption(eventsOption()).outputHelp()
  return text.trimEnd()
}

/** A verb's section: its description as prose, which the help wraps for a terminal, and the rest as it is printed. */
function section({ verb, text }) {
  const [usage, description, ...rest] = text.split('\n\n')
  const prose = []
  while (!/^(Arguments|Options):\n/.test(rest[0])) prose.push(rest.shift())
  const paragraphs = [description, ...prose].map((paragraph) => paragraph.replace(/\s*\n\s*/g, ' '))
  return [`## canopy ${verb}`, ...paragraphs, ['```text', [usage, ...rest].join('\n\n'), '```'].join('\n')].join('\n\n')
}

const overview = execFileSync(process.execPath, [cli, '--help'], { encoding: 'utf8' })
/** Verb -> its line in the overview, which a terminal's width broke. */
const summaries = [...overview.matchAll(/^ {2}([a-z]+) \[options\].*(?:\n {6,}.*)*/gm)].map(([lines, verb]) => ({
  verb,
  summary: lines.replace(/\s+/g, ' ').replace(/^.*?\[options\]( <\S+>)* /, ''),
}))
const texts = await Promise.all(summaries.map(async ({ verb }) => ({ verb, text: await help(verb) })))

writeFileSync(
  values.output,
  `<!-- Made by scripts/make-command-reference.mjs from the help texts: change those, and run it again. -->

# Command reference

| verb | does |
| --- | --- |
${summaries.map(({ verb, summary }) => `| [${verb}](#canopy-${verb}) | ${summary} |`).join('\n')}

What \`canopy <verb> --help\` prints. Every verb has \`--json\` and \`--events\` for machines; on a terminal progress is shown, otherwise plain lines
are written. Exit status: 0 done, 1 bad input or failure, 2 bad usage, 130 interrupted (training: 143 for SIGTERM); \`canopy compare\`
has 3 for a requirement that is not met. In a clone, \`npx canopy\` runs what \`npm run build\` built.

${texts.map(section).join('\n\n')}
`,
)
