// The pictures of datasets/sample, 384 by 256 pixels each, by the names that media.yaml calls them.

import { at, circle, ellipse, line, path, polygon, rect, text } from './svg.mjs'

export const PICTURE_SIZE = { width: 384, height: 256 }

const harbourMap = () =>
  rect(0, 0, 384, 256, '#d9cfa3') +
  polygon('96,256 110,90 200,64 292,92 300,256', '#7fb6d6') +
  rect(70, 110, 36, 100, '#8a6d4b') +
  text(6, 100, 'FISH QUAY', '#333333', 14, 'start') +
  rect(120, 40, 62, 22, '#a8553a') +
  text(150, 32, 'ROPEWALK') +
  rect(204, 40, 60, 22, '#6f6f6f') +
  text(262, 32, 'CUSTOM HOUSE', '#222222', 12) +
  rect(240, 150, 64, 12, '#8a6d4b') +
  circle(244, 156, 8, '#f6d743', 'stroke="#333333" stroke-width="2"') +
  text(380, 146, 'LAMP PIER', '#333333', 14, 'end') +
  rect(180, 222, 44, 16, '#c8322b') +
  text(202, 216, 'FERRY', '#ffffff', 12) +
  at(346, 216, polygon('0,-26 8,4 -8,4', '#333333') + text(0, 22, 'N'))

const honeyChart = () => {
  const kilograms = { A: 12, B: 19, C: 7, D: 24, E: 15 }
  const bars = Object.entries(kilograms).map(([hive, n], i) => {
    const x = 60 + 62 * i
    const height = 7 * n
    const bar = rect(x, 220 - height, 40, height, hive === 'D' ? '#e8871e' : '#c9b458')
    return bar + text(x + 20, 214 - height, n) + text(x + 20, 240, `hive ${hive}`, '#222222', 13)
  })
  return (
    rect(0, 0, 384, 256, '#fffdf5') +
    text(192, 24, 'HONEY IN KILOGRAMS') +
    line(48, 220, 372, 220, '#222222') +
    bars.join('')
  )
}

const hands = (hour) =>
  line(0, 0, 0, -30, '#222222', 3) +
  line(0, 0, 20 * Math.sin((hour * Math.PI) / 6), -20 * Math.cos((hour * Math.PI) / 6), '#222222', 5)

const dial = [0, 3, 6, 9].map((h) => at(0, 0, rect(-2, -40, 4, 6, '#222222'), 30 * h)).join('')

const clockShop = () =>
  rect(0, 0, 384, 256, '#7a4e2d') +
  rect(20, 50, 344, 170, '#f4ecd8') +
  text(192, 34, 'CLOCKS', '#ffe08a', 24) +
  at(80, 130, circle(0, 0, 50, '#3b6fb5') + circle(0, 0, 42, '#ffffff') + dial + hands(3)) +
  at(192, 130, rect(-50, -50, 100, 100, '#3f8f4f') + circle(0, 0, 42, '#ffffff') + dial + hands(9)) +
  at(
    304,
    130,
    polygon('0,-64 54,-20 54,50 -54,50 -54,-20', '#b5362f') + circle(0, 4, 40, '#ffffff') + at(0, 4, dial + hands(6)),
  ) +
  rect(132, 192, 120, 26, '#222222') +
  text(192, 210, 'REPAIRS', '#ffffff', 16)

const fourShapes = () => {
  const star = Array.from({ length: 10 }, (_, i) => {
    const r = i % 2 === 0 ? 60 : 28
    return `${r * Math.sin((i * Math.PI) / 5)},${-r * Math.cos((i * Math.PI) / 5)}`
  }).join(' ')
  return (
    rect(0, 0, 384, 256, '#f7f7f7') +
    at(96, 66, circle(0, 0, 54, '#d0312d') + text(0, 7, 'SOUP', '#ffffff', 20)) +
    at(288, 66, rect(-52, -52, 104, 104, '#2a5caa') + text(0, 7, 'WIND', '#ffffff', 20)) +
    at(96, 196, polygon('0,-60 66,50 -66,50', '#f2c230') + text(0, 36, 'KEY', '#222222', 20)) +
    at(288, 194, polygon(star, '#2e8b57') + text(0, 7, 'MOSS', '#ffffff', 15))
  )
}

const label = (x, y, content, toX, toY, anchor = 'start') =>
  line(anchor === 'start' ? x - 4 : x + 4, y - 5, toX, toY, '#222222', 1.5) + text(x, y, content, '#222222', 14, anchor)

const volcanoSection = () =>
  rect(0, 0, 384, 256, '#cfe4f2') +
  circle(178, 30, 14, '#9a9a9a') +
  circle(200, 18, 18, '#b0b0b0') +
  circle(226, 12, 14, '#c4c4c4') +
  polygon('40,190 160,60 204,60 320,190', '#7b6a58') +
  rect(0, 190, 384, 66, '#a58f6f') +
  ellipse(340, 192, 40, 10, '#3f83bf') +
  polygon('174,60 190,60 196,200 168,200', '#e2571e') +
  ellipse(182, 222, 90, 26, '#c22f14') +
  text(120, 30, 'SMOKE') +
  label(270, 76, 'CRATER', 204, 62) +
  label(70, 120, 'VENT', 170, 120, 'end') +
  text(182, 227, 'MAGMA CHAMBER', '#ffffff', 14) +
  text(340, 178, 'LAKE')

const violinParts = () =>
  rect(0, 0, 384, 256, '#f3efe6') +
  ellipse(150, 140, 44, 38, '#8b4a1f') +
  ellipse(150, 200, 54, 46, '#8b4a1f') +
  rect(142, 34, 16, 100, '#3a2414') +
  circle(150, 26, 13, '#5f3417') +
  circle(150, 26, 5, '#f3efe6') +
  rect(126, 172, 48, 7, '#e2c48d') +
  ellipse(128, 232, 24, 12, '#1d1d1d') +
  [-6, -2, 2, 6].map((x) => line(150 + x, 36, 150 + x, 222, '#dddddd', 1)).join('') +
  line(300, 20, 316, 240, '#6b3b1a', 5) +
  line(310, 22, 326, 238, '#b9ae90', 2) +
  label(204, 32, 'SCROLL', 164, 26) +
  label(204, 84, 'NECK', 160, 80) +
  label(222, 166, 'BRIDGE', 176, 174) +
  label(92, 252, 'CHIN REST', 112, 238, 'end') +
  text(340, 130, 'BOW')

const jar = (x, fill, name, ink) =>
  rect(x + 14, 40, 44, 14, '#9a7b4f') +
  rect(x, 52, 72, 72, fill, 'rx="10" stroke="#222222" stroke-width="2"') +
  text(x + 36, 94, name, ink, 15)

const teaShelf = () =>
  rect(0, 0, 384, 256, '#efe3cf') +
  jar(16, '#4f9d5b', 'MINT', '#ffffff') +
  jar(110, '#fbfbfb', 'PEONY', '#222222') +
  jar(204, '#1e1e1e', 'SMOKE', '#ffffff') +
  jar(298, '#c53a3a', 'ROSE', '#ffffff') +
  rect(0, 124, 384, 14, '#7a5632') +
  ellipse(186, 204, 56, 36, '#4b7f86') +
  rect(170, 158, 32, 10, '#35595e') +
  path('M238 196 q26 -4 34 -28', '#4b7f86', 10) +
  path('M136 184 q-4 -50 50 -48 q54 -2 50 48', '#35595e', 5)

export const pictures = { harbourMap, honeyChart, clockShop, fourShapes, volcanoSection, violinParts, teaShelf }
