/** How many of some sequences' tokens were computed; undefined where all were. */
export function sharedTokensText({ computed, total }: { computed: number; total: number }): string | undefined {
  if (computed >= total) return undefined
  const share = (100 * (total - computed)) / total
  return `${computed} of ${total} tokens were computed; the others (${share.toFixed(1)} %) are beginnings that nodes share.`
}
