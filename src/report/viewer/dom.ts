type Child = Node | string | undefined | false
type Attributes = Record<string, string | number | boolean | undefined>

/** An element. Strings become text nodes, so that no string is ever read as HTML. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag)
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) element.setAttribute(name, value === true ? '' : String(value))
  }
  element.append(...children.filter((child) => child !== undefined && child !== false))
  return element
}

/** A button that says what it does. */
export function button(text: string, attributes: Attributes, onClick: () => void): HTMLButtonElement {
  const element = h('button', { type: 'button', ...attributes }, text)
  element.addEventListener('click', onClick)
  return element
}

/** Scrolls only inside `box`, never the page, until `element` can be seen there. */
export function reveal(element: HTMLElement, box: HTMLElement): void {
  const inside = element.getBoundingClientRect()
  const outside = box.getBoundingClientRect()
  if (inside.top < outside.top) box.scrollTop -= outside.top - inside.top
  else if (inside.bottom > outside.bottom) box.scrollTop += inside.bottom - outside.bottom
}
