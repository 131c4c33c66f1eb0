import { openEncoder } from 'canopy-encoder'

const encoder = await openEncoder(process.argv[2] ?? 'runs/quickstart/export') // f0 and fθ, in a worker thread
const text =
  'The ferry to Sorn leaves at six. It carries the post, two cows at most, and whoever has a ticket. The captain, ' +
  'Ida Brandt, bought it with the money from her first novel. In winter a sledge crosses the ice instead.'
const [item] = await encoder.refine('How did the captain pay for the boat?', [{ title: 'The ferry to Sorn', text }])
for (const kept of item.kept) console.log(`[${kept.from}, ${kept.to})  ${kept.score.toFixed(2)}  ${kept.text.trim()}`)
await encoder.close()
