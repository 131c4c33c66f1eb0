// Writes docs/api/, the reference of the public library, from the declarations' comments. TypeDoc needs an older TypeScript than the
// project is compiled by, so both lie in this folder:
//
//   npm run api
import { rmSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { Application } from 'typedoc'

const root = resolve(import.meta.dirname, '..', '..')

/** Entry points of the package, as package.json names them, and the files that they are made from. */
const ENTRIES = {
  'canopy-encoder': 'index.ts',
  'canopy-encoder/train': 'training.ts',
  'canopy-encoder/web': 'web.ts',
  'canopy-encoder/postgres': 'postgres.ts',
  'canopy-encoder/langchain': 'integrations/langchain.ts',
  'canopy-encoder/llamaindex': 'integrations/llamaindex.ts',
}

const output = process.argv[2] ?? join(root, 'docs', 'api')
const app = await Application.bootstrapWithPlugins({
  plugin: ['typedoc-plugin-markdown'],
  entryPoints: Object.values(ENTRIES).map((file) => join(root, 'src', file)),
  tsconfig: join(root, 'tsconfig.build.json'),
  basePath: join(root, 'src'),
  outputs: [{ name: 'markdown', path: output }],
  name: 'canopy-encoder',
  readme: 'none',
  disableGit: true,
  sourceLinkTemplate: '../../src/{path}#L{line}',
  disableSources: true,
  excludeInternal: true,
  excludeExternals: true,
  treatWarningsAsErrors: false,
  logLevel: 'Warn',
  outputFileStrategy: 'modules',
  hidePageHeader: true,
  hideBreadcrumbs: true,
  parametersFormat: 'table',
  interfacePropertiesFormat: 'table',
  typeDeclarationFormat: 'table',
  enumMembersFormat: 'table',
  useCodeBlocks: true,
  skipErrorChecking: true,
  intentionallyNotExported: ['ENCODERS', 'MARGIN_METRICS', 'MODEL_ENCODERS', 'SELECTION_ROWS', 'SELECTORS'],
  validation: { notExported: true, invalidLink: true, notDocumented: false },
})
const project = await app.convert()
if (project === undefined) throw new Error('The sources do not compile.')
app.validate(project)
for (const module of project.children ?? []) {
  const entry = Object.entries(ENTRIES).find(([, file]) => file.replace(/\.ts$/, '') === module.name)
  if (entry !== undefined) module.name = entry[0]
}
rmSync(output, { recursive: true, force: true })
await app.generateOutputs(project)
// a type that a signature names and no entry point exports, or a link to nowhere
if (app.logger.hasErrors() || app.logger.hasWarnings()) process.exit(1)
