// Shapes of SVG as strings, and whole drawings as pixels.

import sharp from 'sharp'

export const rect = (x, y, width, height, fill, more = '') =>
  `<rect x="${x}" y="${y}" width="${width}" height="${height}" fill="${fill}" ${more}/>`

export const circle = (x, y, r, fill, more = '') => `<circle cx="${x}" cy="${y}" r="${r}" fill="${fill}" ${more}/>`

export const ellipse = (x, y, rx, ry, fill, more = '') =>
  `<ellipse cx="${x}" cy="${y}" rx="${rx}" ry="${ry}" fill="${fill}" ${more}/>`

/** `points`: numbers x y x y … */
export const polygon = (points, fill, more = '') => `<polygon points="${points}" fill="${fill}" ${more}/>`

export const line = (x1, y1, x2, y2, stroke, width = 2) =>
  `<line x1="${x1}" y1="${y1}" x2="${x2}" y2="${y2}" stroke="${stroke}" stroke-width="${width}" stroke-linecap="round"/>`

export const path = (d, stroke, width = 2, fill = 'none') =>
  `<path d="${d}" stroke="${stroke}" stroke-width="${width}" fill="${fill}" stroke-linecap="round"/>`

/** Text in the middle of (x, y) by default; anchors are start, middle and end. */
export const text = (x, y, content, fill = '#222222', size = 14, anchor = 'middle') =>
  `<text x="${x}" y="${y}" fill="${fill}" font-size="${size}" font-weight="bold" text-anchor="${anchor}" font-family="DejaVu Sans, Verdana, sans-serif">${content}</text>`

/** Shapes moved, and turned by degrees about their origin. */
export const at = (x, y, shapes, degrees = 0) => `<g transform="translate(${x} ${y}) rotate(${degrees})">${shapes}</g>`

/** A drawing as a sharp image without transparency. */
export const render = (width, height, ground, shapes) =>
  sharp(
    Buffer.from(
      `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}">${rect(0, 0, width, height, ground)}${shapes}</svg>`,
    ),
  ).removeAlpha()
