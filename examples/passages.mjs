// What a retriever found, for the examples of RAG frameworks.
export const question = 'How did the captain pay for the boat?'
export const passages = [
  {
    title: 'The ferry to Sorn',
    text:
      'The ferry to Sorn leaves at six. It carries the post, two cows at most, and whoever has a ticket. The captain, ' +
      'Ida Brandt, bought it with the money from her first novel. In winter a sledge crosses the ice instead.',
  },
  {
    title: 'Ida Brandt',
    text:
      'Ida Brandt was born in Sorn. She taught school on the mainland for eleven years. Her first novel, about a drowned ' +
      'village, sold well enough to buy a boat. She has not written since.',
  },
  {
    title: 'Sorn',
    text:
      'Sorn is an island of two hundred people. A storm cut it off for nineteen days in 1987. The islanders lived on ' +
      'herring. The church has no tower, because the wind took it twice.',
  },
]
