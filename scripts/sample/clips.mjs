// The scenes of the clips of datasets/sample, 256 by 144 pixels, by the names that media.yaml calls them. Each is a function of
// the share of the scene that has passed, in [0, 1). The corner at the top left is left free, and the lowest 24 rows, in
// which the caption stands.

import { at, circle, ellipse, line, path, polygon, rect, text } from './svg.mjs'

export const CLIP_SIZE = { width: 256, height: 144 }

/** The part of a path of some length, in pixels, that is drawn by now. */
const drawn = (d, length, part, stroke, width = 3) =>
  `<path d="${d}" stroke-dasharray="${Math.round(part * length)} ${length}" stroke="${stroke}" stroke-width="${width}" fill="none"/>`

const between = (from, to, part) => Math.round(from + (to - from) * part)

// ---------------------------------------------------------------- A day at the quay

const quay = rect(0, 96, 256, 24, '#7d7468')
const water = rect(0, 84, 256, 36, '#3a76a8')

const emptyQuay = (p) =>
  circle(128, between(104, 60, p), 22, '#fff0b0') +
  quay +
  [40, 120, 200].map((x) => rect(x, 86, 8, 12, '#4a4239')).join('')

const redBoat = (p) =>
  water +
  at(
    between(20, 236, p),
    84,
    polygon('-26,0 26,0 18,14 -18,14', '#c8231e') +
      line(0, 0, 0, -44, '#4a3a2a', 3) +
      polygon('3,-44 3,-6 28,-6', '#ffffff'),
  )

const crane = (p) =>
  quay +
  rect(60, 34, 8, 64, '#e0b020') +
  rect(60, 34, 110, 7, '#e0b020') +
  line(160, 40, 160, between(46, 80, p), '#333333') +
  rect(150, between(46, 80, p), 20, 16, '#8a5a2b') +
  rect(180, 80, 20, 16, '#8a5a2b') +
  rect(204, 80, 20, 16, '#8a5a2b')

const gull = (x, y) => path(`M${x - 14} ${y} q7 -10 14 0 q7 -10 14 0`, '#ffffff', 4)

const gulls = (p) =>
  quay +
  rect(40, 76, 60, 20, '#d9d9d9') +
  polygon('34,76 106,76 96,62 44,62', '#b5362f') +
  ellipse(60, 86, 12, 4, '#6d8ea0') +
  ellipse(84, 86, 12, 4, '#6d8ea0') +
  [0, 1, 2].map((i) => gull(between(60, 200, (p + i / 3) % 1), 26 + 14 * i)).join('')

const harbourLamp = () =>
  rect(0, 96, 256, 24, '#0d1220') +
  rect(170, 50, 10, 48, '#5a5a6a') +
  circle(175, 44, 30, '#5f5a2a') +
  circle(175, 44, 11, '#ffe27a')

// ---------------------------------------------------------------- The tower at night

const tower = (fill) => rect(108, 34, 40, 86, fill) + polygon('102,34 154,34 128,8', fill)

const towerMoon = (p) => circle(between(190, 220, p), between(80, 30, p), 14, '#f3f0d0') + tower('#05070f')

const towerBell = (p) =>
  tower('#3b2f2a') +
  rect(116, 44, 24, 36, '#0c1020') +
  at(128, 48, polygon('-5,0 5,0 11,22 -11,22', '#e8b923') + circle(0, 25, 4, '#e8b923'), (p * 32) % 2 < 1 ? 18 : -18)

const towerSunrise = (p) =>
  circle(60, between(110, 46, p), 20, '#fff3b0') + tower('#8a5a44') + rect(0, 112, 256, 8, '#5c7a3a')

// ---------------------------------------------------------------- A lesson on the chalkboard

const board = rect(40, 16, 180, 92, '#173d2c', 'stroke="#b98a52" stroke-width="5"')

const chalkSum = (p) => {
  const signs = ['7', '+', '5', '=', '12']
  const shown = Math.min(signs.length, Math.floor(p * 6))
  return (
    board +
    signs
      .slice(0, shown)
      .map((sign, i) => text(58 + 34 * i, 74, sign, '#ffffff', 26))
      .join('')
  )
}

const chalkTriangle = (p) => board + drawn('M70 96 L190 96 L130 28 Z', 304, Math.min(1, 1.2 * p), '#ffffff')

const chalkRiver = (p) =>
  board +
  rect(180, 18, 38, 88, '#2f6fb0') +
  drawn('M52 28 Q90 30 96 56 T150 70 T184 84', 190, Math.min(1, 1.2 * p), '#6fb1f0', 5) +
  polygon('60,60 74,36 88,60', '#c9c9c9')

const chalkSponge = (p) => {
  const x = between(48, 188, p)
  return (
    board +
    path('M60 40 h130 M60 62 h110 M60 84 h140', '#c9d3cc', 4) +
    rect(43, 19, x - 43, 86, '#1d4735') +
    rect(x, 46, 24, 34, '#f0d040')
  )
}

const chalkHomework = (p) => {
  const words = 'PAGE 41'
  return board + text(130, 72, words.slice(0, Math.ceil(words.length * Math.min(1, 1.5 * p))), '#ffffff', 26)
}

// ---------------------------------------------------------------- A level crossing

const tracks =
  polygon('76,120 180,120 142,36 114,36', '#9a948b') +
  rect(0, 84, 256, 24, '#8a8378') +
  line(0, 90, 256, 90, '#444444', 3) +
  line(0, 102, 256, 102, '#444444', 3)

const barrier = (degrees) =>
  rect(196, 70, 8, 30, '#555555') +
  at(
    200,
    74,
    rect(-140, -3, 140, 6, '#d0312d') + [-120, -80, -40].map((x) => rect(x, -3, 18, 6, '#ffffff')).join(''),
    degrees,
  )

/** Seen from behind, driving away. */
const crossingCar = (p) => {
  const size = 1 - 0.75 * p
  const car =
    rect(-24 * size, -30 * size, 48 * size, 24 * size, '#7b3fa0') +
    rect(-18 * size, -46 * size, 36 * size, 18 * size, '#7b3fa0') +
    rect(-13 * size, -42 * size, 26 * size, 11 * size, '#cfe3ee') +
    rect(-22 * size, -8 * size, 9 * size, 10 * size, '#222222') +
    rect(13 * size, -8 * size, 9 * size, 10 * size, '#222222')
  return tracks + barrier(75) + at(128, between(118, 44, p), car)
}

const crossingCloses = (p) => tracks + barrier(between(75, 0, Math.min(1, 1.5 * p)))

const crossingTrain = (p) =>
  tracks +
  at(
    between(-40, 290, (p * 2) % 1),
    0,
    [-90, 0]
      .map((x) => rect(x, 62, 84, 40, '#2f7d4f') + [8, 32, 56].map((w) => rect(x + w, 70, 18, 14, '#f4f0c0')).join(''))
      .join(''),
  ) +
  barrier(0)

// ---------------------------------------------------------------- One flight of a balloon

const grass = rect(0, 100, 256, 20, '#5d9b4a')

const balloon = (x, y, size) =>
  at(
    x,
    y,
    circle(0, -30 * size, 24 * size, '#d8452e') +
      polygon(`${-20 * size},${-18 * size} ${20 * size},${-18 * size} ${5 * size},0 ${-5 * size},0`, '#d8452e') +
      rect(-4 * size, -54 * size, 8 * size, 48 * size, '#f4d35e') +
      rect(-6 * size, 6 * size, 12 * size, 9 * size, '#6b4423'),
  )

const balloonFlat = (p) =>
  grass +
  ellipse(120, 100, between(60, 70, p), 8, '#d8452e') +
  ellipse(120, 100, 14, 8, '#f4d35e') +
  rect(196, 88, 16, 13, '#6b4423')

const balloonFills = (p) =>
  grass + balloon(128, 84, 0.5 + 0.7 * p) + polygon(`124,90 132,90 128,${78 - ((p * 30) % 2 < 1 ? 8 : 0)}`, '#ffb000')

const balloonRises = (p) =>
  ellipse(60, 124, 90, 30, '#4f8f45') +
  ellipse(200, 128, 100, 36, '#6aa84f') +
  balloon(between(100, 150, p), between(100, 70, p), 1)

const cloud = (x, y, fill) => at(x, y, circle(-24, 0, 18, fill) + circle(0, -8, 24, fill) + circle(26, 0, 18, fill))

const balloonCloud = (p) =>
  balloon(128, 88, 1) + cloud(between(70, 130, p), 58, '#a7adb5') + cloud(between(210, 140, p), 80, '#b8bec6')

const sunflower = (x) => line(x, 118, x, 92, '#3d7a2f', 3) + circle(x, 90, 8, '#f2b705') + circle(x, 90, 4, '#5a3510')

const balloonLands = (p) =>
  balloon(128, between(64, 106, Math.min(1, 1.3 * p)), 0.9) + [60, 84, 156, 180, 204, 228].map(sunflower).join('')

// ---------------------------------------------------------------- Stripes on the loom

const warp = (threads) =>
  rect(50, 12, 6, 106, '#6b4423') +
  rect(200, 12, 6, 106, '#6b4423') +
  Array.from({ length: threads }, (_, i) => line(62 + 9 * i, 14, 62 + 9 * i, 118, '#8d8d8d', 2)).join('')

const shuttle = (p, y) => at(between(62, 194, Math.abs(((p * 12) % 2) - 1)), y, ellipse(0, 0, 15, 4, '#4a2f1a'))

const stripe = (from, to, fill) => rect(60, to, 136, from - to, fill)

const loomWarp = (p) => warp(1 + Math.min(14, Math.floor(18 * p)))

const loomBlue = (p) => warp(15) + stripe(118, between(118, 84, p), '#2b4fa8') + shuttle(p, between(112, 78, p))

const loomYellow = (p) =>
  warp(15) + stripe(118, 84, '#2b4fa8') + stripe(84, between(84, 50, p), '#dba617') + shuttle(p, between(78, 44, p))

const loomScissors = (p) =>
  warp(15) +
  stripe(118, 84, '#2b4fa8') +
  stripe(84, 50, '#dba617') +
  rect(60, 36, between(0, 136, p), 10, '#d8b4b4') +
  at(
    between(60, 196, p),
    41,
    line(0, 0, 26, -12, '#333333', 4) +
      line(0, 0, 26, 12, '#333333', 4) +
      circle(32, -14, 6, 'none', 'stroke="#333333" stroke-width="4"') +
      circle(32, 14, 6, 'none', 'stroke="#333333" stroke-width="4"'),
  )

// ---------------------------------------------------------------- A penguin goes fishing

const penguin =
  ellipse(0, -24, 14, 24, '#1b1b22') +
  ellipse(3, -20, 8, 18, '#ffffff') +
  circle(0, -50, 10, '#1b1b22') +
  circle(4, -52, 2, '#ffffff') +
  polygon('8,-50 20,-47 8,-45', '#f09020') +
  rect(-8, -2, 8, 4, '#f09020') +
  rect(2, -2, 8, 4, '#f09020')

const penguinWalks = (p) =>
  rect(0, 104, 256, 16, '#f7fbff') + at(between(40, 220, p), 104, penguin, (p * 36) % 2 < 1 ? 6 : -6)

const fish = (x, y) =>
  ellipse(x, y, 11, 5, '#f0862a') + polygon(`${x - 9},${y} ${x - 20},${y - 6} ${x - 20},${y + 6}`, '#f0862a')

const penguinDives = (p) =>
  fish(between(120, 220, p), 44) +
  fish(between(140, 236, p), 84) +
  fish(between(100, 204, p), 104) +
  at(between(40, 130, p), between(40, 80, p), penguin, 100)

const eggHatches = (p) =>
  rect(0, 104, 256, 16, '#f7fbff') +
  (p > 0.4
    ? circle(128, between(92, 70, p), 15, '#8f949c') +
      circle(123, between(90, 68, p), 2, '#111111') +
      circle(133, between(90, 68, p), 2, '#111111') +
      polygon(`125,${between(95, 73, p)} 131,${between(95, 73, p)} 128,${between(101, 79, p)}`, '#333333')
    : '') +
  `<clipPath id="shell"><rect x="90" y="${p > 0.4 ? 86 : 40}" width="80" height="46"/><rect x="90" y="86" width="80" height="40"/></clipPath>` +
  ellipse(128, 86, 22, 28, '#fdf6e3', 'clip-path="url(#shell)"') +
  (p > 0.2 ? path('M108 86 l8 -6 l8 8 l8 -8 l8 8 l8 -4', '#9a8f78', 2) : '')

export const scenes = {
  ...{ emptyQuay, redBoat, crane, gulls, harbourLamp },
  ...{ towerMoon, towerBell, towerSunrise },
  ...{ chalkSum, chalkTriangle, chalkRiver, chalkSponge, chalkHomework },
  ...{ crossingCar, crossingCloses, crossingTrain },
  ...{ balloonFlat, balloonFills, balloonRises, balloonCloud, balloonLands },
  ...{ loomWarp, loomBlue, loomYellow, loomScissors },
  ...{ penguinWalks, penguinDives, eggHatches },
}
