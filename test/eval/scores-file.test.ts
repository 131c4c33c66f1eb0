import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { parseScoresLine, readScores, type ScoredInstance, scoresLine } from '../../src/eval/index.ts'
import { buildTree, preOrder } from '../../src/hierarchy/index.ts'
import { InputError } from '../../src/support/errors.ts'
import { temporaryFolder } from '../support/temporary.ts'
import { instanceOf } from './trees.ts'

const place = { file: 'scores.jsonl', line: 7 }

const stored = fc
  .record({ leaves: fc.integer({ min: 1, max: 12 }), branching: fc.integer({ min: 2, max: 4 }) })
  .chain(({ leaves, branching }) => {
    const nodes = preOrder(buildTree(leaves, branching)).length
    const scores = fc.array(fc.double({ min: -1, max: 1, noNaN: true }), { minLength: nodes, maxLength: nodes })
    return fc.record({
      branching: fc.constant(branching),
      instance: fc
        .record({
          gold: fc.array(fc.boolean(), { minLength: leaves, maxLength: leaves }),
          frozen: scores,
          fineTuned: scores,
          leafTokens: fc.array(fc.nat(99), { minLength: leaves, maxLength: leaves }),
          headerTokens: fc.nat(9),
          truncated: fc.array(fc.boolean(), { minLength: nodes, maxLength: nodes }),
          question: fc.string({ minLength: 1 }),
          item: fc.string({ minLength: 1 }),
          source: fc.string({ minLength: 1 }),
          role: fc.constantFrom('gold', 'other'),
          retrieved: fc.boolean(),
        })
        .map(({ gold, leafTokens, ...rest }) =>
          instanceOf(gold, {
            ...rest,
            branching,
            leafTokens: Int32Array.from(leafTokens),
            ...(gold[0] && { variant: 'several-rows', dataset: 1 }),
          }),
        ),
    })
  })

describe('a line of scores', () => {
  it('comes back as the instance that was written, every digit of its scores', () => {
    fc.assert(
      fc.property(stored, ({ instance, branching }) => {
        // JSON knows no negative zero; cosines that are compared by >= do not either.
        for (const scores of Object.values(instance.scores)) {
          for (let i = 0; i < scores.length; i++) if (Object.is(scores[i], -0)) scores[i] = 0
        }
        const back = parseScoresLine(JSON.parse(scoresLine(instance, branching)), place)
        expect(back).toEqual({ ...instance, branching })
      }),
    )
  })

  const good = (): Record<string, unknown> =>
    JSON.parse(scoresLine(instanceOf([true, false, false], { fineTuned: [1, 2, 3, 4, 5] }) as ScoredInstance, 2))

  it.each([
    ['more leaves than it proves', { leaves: 1_000_000_000 }, '"leafTokens" has 3 entries, expected 1000000000'],
    [
      'nodes of another tree',
      {
        nodes: [
          [0, 3],
          [0, 1],
          [1, 3],
          [1, 2],
          [2, 3],
        ],
      },
      '"nodes[1]" is [0,1]',
    ], // prettier-ignore
    ['too few nodes', { nodes: [[0, 3]] }, '"nodes" has 1 entries, expected 5'],
    ['gold outside', { gold: [3] }, '"gold" names 3, but there are 3'],
    ['truncated nodes outside', { truncated: [9] }, '"truncated" names 9'],
    ['a first node that comes later', { same: [0, 2, 2, 3, 4] }, '"same[1]" is 2'],
    ['a first node that is none', { same: [0, 0, 1, 3, 4] }, '"same[2]" is 1'],
    ['scores of some nodes only', { scores: { frozen: [1, 2] } }, '"scores.frozen" has 2 entries, expected 5'],
    ['a score that is null', { scores: { frozen: [1, 2, null, 4, 5] } }, '"scores.frozen[2]"'],
    ['no scores at all', { scores: {} }, 'the scores of no encoder'],
    ['an unknown encoder', { scores: { best: [1, 2, 3, 4, 5] } }, 'best'],
    ['no question', { question: '' }, '"question"'],
    ['branching of one', { branching: 1 }, '"branching"'],
    ['no object', null, 'not a valid line of scores'],
  ])('with %s is refused with its place', (_, change, message) => {
    const line = change === null ? [] : { ...good(), ...change }
    const parse = (): unknown => parseScoresLine(line, place)
    expect(parse).toThrow(InputError)
    expect(parse).toThrow(message)
    expect(parse).toThrow('scores.jsonl:7:')
  })

  it('is refused or read, whatever it holds, and never anything else', () => {
    const keys = Object.keys(good())
    fc.assert(
      fc.property(fc.constantFrom(...keys), fc.jsonValue(), (key, value) => {
        try {
          parseScoresLine({ ...good(), [key]: value }, place)
        } catch (error) {
          expect(error).toBeInstanceOf(InputError)
        }
      }),
      { numRuns: 500 },
    )
  })

  it('is read from a folder or a file, and what is missing is named with its remedy', async () => {
    const folder = temporaryFolder()
    const read = async (path: string): Promise<number> => {
      let count = 0
      for await (const instance of readScores(path)) count += instance.nodes.length
      return count
    }
    await expect(read(folder)).rejects.toThrow(/no scores\.jsonl in it; evaluate again/)
    await expect(read(join(folder, 'nowhere'))).rejects.toThrow(/nowhere: There is no such folder/)
    const file = join(folder, 'scores.jsonl')
    writeFileSync(file, `${JSON.stringify(good())}\n${JSON.stringify(good())}\n`)
    expect([await read(folder), await read(file)]).toEqual([10, 10])
    writeFileSync(file, `${JSON.stringify(good())}\n{"question":\n`)
    await expect(read(folder)).rejects.toThrow('scores.jsonl:2:')
  })
})
