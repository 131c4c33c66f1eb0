export { MissingToolError, toolVersion } from './ffmpeg.ts'
export { decodeImage, type ImageOptions, MAX_PIXELS, type Picture } from './image.ts'
export {
  type BrokenFile,
  checkMedia,
  createMediaReader,
  type MediaCheck,
  type MediaOptions,
  type MediaReader,
  type MediaSummary,
  type NodeMedia,
  readMedia,
} from './read.ts'
export {
  extractFrames,
  type Frame,
  type FrameOptions,
  probeVideo,
  type VideoIndex,
  type VideoOptions,
} from './video.ts'
