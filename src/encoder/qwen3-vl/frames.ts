import { decodeImage, extractFrames, type Picture, probeVideo, type VideoIndex } from '../../media/index.ts'
import { InputError } from '../../support/errors.ts'
import { lru } from '../../support/lru.ts'
import type { VisionConfig } from './config.ts'
import { factorOf, firstFrameScaling, frameScaling, imageLimits } from './processor.ts'
import { resizeLikePillow, resizeLikeTorch } from './resize.ts'
import { smartResize } from './smart-resize.ts'

/** Videos whose times are kept: eight bytes a frame. */
const VIDEOS_KEPT = 16
/** Bytes of frames, decoded and first scaled, that are kept for the next node of the same video. */
const FRAMES_KEPT = 256 << 20

/** Decodes and scales; keeps what neighbouring nodes of a video share. */
export interface PictureSource {
  /**
   * A picture as the vision tower takes it.
   *
   * @throws InputError naming the file
   */
  image(path: string): Promise<Picture>
  /**
   * Frames of a video as the vision tower takes them, all of one size.
   *
   * @param identity tells the file and its content
   * @param times milliseconds on the file's clock
   * @throws InputError naming the file: not decodable, or over before the last of the times
   */
  frames(path: string, identity: string, times: readonly number[], signal?: AbortSignal): Promise<Picture[]>
}

export function pictureSource(config: VisionConfig): PictureSource {
  const videos = lru<VideoIndex>(VIDEOS_KEPT)
  const decoded = lru<Picture>(FRAMES_KEPT, ({ data }) => data.length)
  return {
    async image(path) {
      return scaledImage(await decodeImage(path, { ignoreProfile: true }), config, path)
    },
    async frames(path, identity, times, signal) {
      const run = signal === undefined ? {} : { signal }
      const video = videos.get(identity) ?? videos.put(identity, await probeVideo(path, run))
      const pictures: Picture[] = []
      for (const time of times) {
        signal?.throwIfAborted()
        const place = `${identity} ${time}`
        const frame =
          decoded.get(place) ??
          decoded.put(place, firstScaled((await extractFrames(video, [time], run))[0]!, config, path))
        pictures.push(scaledFrame(frame, times.length, config, path))
      }
      const [{ height, width }] = pictures as [Picture, ...Picture[]]
      if (pictures.some((picture) => picture.height !== height || picture.width !== width))
        throw new InputError('the frames of the video have different sizes; write it anew with ffmpeg', { file: path })
      return pictures
    },
  }
}

/** A picture brought to the limits of a single one. */
export function scaledImage(picture: Picture, config: VisionConfig, file: string): Picture {
  return resizeLikePillow(picture, smartResize(picture, factorOf(config), imageLimits(config), file))
}

/** A frame as it is first scaled, however many there are: see {@link firstFrameScaling}. */
export function firstScaled(frame: Picture, config: VisionConfig, file: string): Picture {
  const { factor, limits } = firstFrameScaling(config)
  return resizeLikePillow(frame, smartResize(frame, factor, limits, file))
}

/** A frame of {@link firstScaled} brought to what the number of frames leaves for each. */
export function scaledFrame(frame: Picture, frames: number, config: VisionConfig, file: string): Picture {
  const pair = config.temporal_patch_size
  const { factor, limits } = frameScaling(config, Math.ceil(frames / pair) * pair)
  return resizeLikeTorch(frame, smartResize(frame, factor, limits, file))
}
