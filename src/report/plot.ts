import * as Plot from '@observablehq/plot'
import { parseHTML } from 'linkedom'
import { type Html, html, trusted } from './html.ts'

/** A drawing and the words that stand for it. */
export interface Chart {
  /** What it shows, in a few words; stands above it. */
  title: string
  /** The same for people who don't see it, with the main numbers. */
  description: string
  options: Plot.PlotOptions
}

const WIDTH = 380

/**
 * A chart as static SVG, drawn by Observable Plot. Colours are custom properties of the page's style sheet, so that they follow
 * light and dark. Nothing in it needs a script.
 */
export function chart({ title, description, options }: Chart): Html {
  const { document } = parseHTML('<!doctype html><html><body></body></html>')
  const svg = Plot.plot({
    width: WIDTH,
    height: 230,
    marginLeft: 44,
    marginRight: 16,
    ...options,
    document: document as unknown as NonNullable<Plot.PlotOptions['document']>,
    style: {},
  }) as unknown as SvgElement
  // The page's style sheet has these rules; its security policy lets no other style in.
  for (const style of svg.querySelectorAll('style')) style.remove()
  svg.removeAttribute('class')
  svg.removeAttribute('style')
  for (const [name, text] of [
    ['desc', description],
    ['title', title],
  ] as const) {
    const element = document.createElementNS('http://www.w3.org/2000/svg', name) as unknown as SvgElement
    element.textContent = text
    svg.prepend(element)
  }
  svg.setAttribute('role', 'img')
  svg.setAttribute('aria-label', title)
  return html`<figure class="chart"><figcaption>${title}</figcaption>${trusted(svg.outerHTML)}</figure>`
}

/** The part of an element that is used here; this program knows no browser. */
interface SvgElement {
  outerHTML: string
  textContent: string | null
  querySelectorAll(selector: string): Iterable<SvgElement>
  remove(): void
  prepend(element: SvgElement): void
  setAttribute(name: string, value: string): void
  removeAttribute(name: string): void
}

/** A row of a chart: how a name looks wherever it is drawn. */
export interface Series {
  name: string
  /** A custom property of the style sheet. */
  color: string
  symbol: Plot.SymbolName
  /** Drawn solid; controls and selectors are outlines. */
  solid: boolean
}

const series = (name: string, color: string, symbol: Plot.SymbolName, solid = false): Series => ({
  name,
  color: `var(--${color})`,
  symbol,
  solid,
})

/** Every encoder, control and selector: told apart by colour and by shape. */
export const SERIES: readonly Series[] = [
  series('frozen', 'frozen', 'square', true),
  series('fine-tuned', 'tuned', 'circle', true),
  series('permuted', 'permuted', 'diamond'),
  series('always-left', 'control', 'triangle'),
  series('keep-root', 'control', 'cross'),
  series('constant', 'control', 'times'),
  series('gold-item', 'control', 'cross'),
  series('gold-span', 'gold', 'star', true),
  series('flat-leaf', 'selector', 'hexagon'),
  series('flat-node', 'selector', 'wye'),
]

const fallback = series('', 'control', 'circle')
export const seriesOf = (name: string): Series => SERIES.find((s) => s.name === name) ?? { ...fallback, name }

/** A dot in the look of its series at each datum, marked with a tooltip. */
export function seriesDots<T>(
  data: readonly T[],
  {
    name,
    x,
    y,
    title,
    r = 4.5,
  }: { name: (d: T) => string; x: (d: T) => number; y: (d: T) => number | string; title: (d: T) => string; r?: number },
): Plot.Markish[] {
  return [...new Set(data.map(name))].map((one) => {
    const { color, symbol, solid } = seriesOf(one)
    return Plot.dot(
      data.filter((d) => name(d) === one),
      { x, y, title, r, symbol, stroke: color, strokeWidth: 1.75, fill: solid ? color : 'var(--page)' },
    )
  })
}

/** What the shapes and colours mean. */
export function legend(names: readonly string[], labels: Record<string, string> = {}): Html {
  const entry = (name: string): Html => {
    const { document } = parseHTML('<!doctype html><html><body></body></html>')
    const svg = Plot.plot({
      document: document as unknown as NonNullable<Plot.PlotOptions['document']>,
      width: 16,
      height: 16,
      margin: 8,
      axis: null,
      x: { domain: [0, 1] },
      y: { domain: [0, 1] },
      marks: seriesDots([name], { name: String, x: () => 0, y: () => 0, title: () => '' }),
    }) as unknown as SvgElement
    for (const part of svg.querySelectorAll('style, title')) part.remove()
    svg.removeAttribute('class')
    svg.setAttribute('aria-hidden', 'true')
    return html`<li>${trusted(svg.outerHTML)}${labels[name] ?? name}</li>`
  }
  return html`<ul class="legend">${names.map(entry)}</ul>`
}

export const percentTicks = (value: number): string => `${Math.round(100 * value)}`
