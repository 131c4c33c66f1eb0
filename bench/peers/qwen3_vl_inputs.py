"""Writes test/fixtures/qwen3-vl-inputs/expected.json: what the released Qwen3-VL-Embedding code makes of texts, pictures and frames.

    python bench/peers/qwen3_vl_inputs.py [--output file] [--checkpoint test/fixtures/qwen3-vl]

Everything is computed by the libraries that the released code calls (QwenLM/Qwen3-VL-Embedding, qwen3_vl_embedding.py): Pillow,
torchvision, qwen_vl_utils and the processor of transformers. Pictures are synthetic, from a formula that the tests repeat, so that no
file is needed:

    value(x, y, channel) = (3x² + 5y² + 7xy + 37 channel + 11 seed) mod 256

Token ids are those of the checkpoint's tokenizer: to be made anew whenever make_qwen3_fixtures.py makes another one.
"""

import argparse
import base64
import hashlib
import json
import unicodedata
from importlib.metadata import version
from pathlib import Path

import numpy as np
import PIL
import torch
import torchvision
import transformers
from PIL import Image
from qwen_vl_utils import process_vision_info, vision_process

FIXTURES = Path(__file__).resolve().parents[2] / "test" / "fixtures"
FACTOR = 32
MIN_PIXELS = 4 * FACTOR * FACTOR
MAX_PIXELS = 1800 * FACTOR * FACTOR
TOTAL_PIXELS = 10 * 768 * FACTOR * FACTOR
DEFAULT = "Represent the user's input."


def picture(width, height, seed, channels=3):
    y, x = np.mgrid[0:height, 0:width].astype(np.int64)
    planes = [(3 * x * x + 5 * y * y + 7 * x * y + 37 * c + 11 * seed) % 256 for c in range(channels)]
    return Image.fromarray((planes[0] if channels == 1 else np.stack(planes, 2)).astype(np.uint8))


def sizes():
    """[height, width, height to scale to, width to scale to], or null where the code refuses."""
    random = np.random.default_rng(1)
    cases = [(1, 1), (1, 200), (1, 201), (200, 1), (16, 16), (31, 33), (32, 32), (48, 80), (80, 48), (112, 16), (47, 49)]
    cases += [(1280, 1440), (1440, 1281), (3000, 4000), (9999, 10001), (50, 10000), (10000, 51), (40000, 200), (100, 12)]
    cases += [(int(h), int(w)) for h, w in np.exp(random.uniform(0, 9, (120, 2)))]
    out = []
    for height, width in cases:
        try:
            to = vision_process.smart_resize(height, width, FACTOR, MIN_PIXELS, MAX_PIXELS)
        except ValueError:
            to = None
        out.append([height, width, *to] if to else [height, width, None, None])
    return out


def pictures():
    cases = [(1, 1), (5, 300), (100, 70), (97, 64), (64, 64), (640, 33), (33, 640), (256, 1500), (1500, 256), (1283, 1441), (2400, 1600)]
    out = []
    for seed, (width, height) in enumerate(cases):
        entry = {"image": picture(width, height, seed), "min_pixels": MIN_PIXELS, "max_pixels": MAX_PIXELS}
        scaled = vision_process.fetch_image(entry, image_patch_size=16)
        digest = hashlib.sha256(np.asarray(scaled).tobytes()).hexdigest()
        out.append({"width": width, "height": height, "seed": seed, "to": [scaled.height, scaled.width], "sha256": digest})
    return out


def video(frames):
    entry = {"type": "video", "video": frames, "total_pixels": TOTAL_PIXELS}
    scaled, _ = vision_process.fetch_video(entry, image_patch_size=16, return_video_metadata=True)
    return scaled


def frames():
    """One frame stands in for all: the number of frames decides how far each is scaled."""
    cases = [(1, 96, 64), (2, 1280, 720), (3, 640, 360), (6, 1920, 1080), (19, 1280, 720), (20, 500, 1100), (21, 1280, 720)]
    cases += [(32, 1280, 720), (32, 320, 180), (64, 1024, 768), (31, 33, 900), (2, 20, 15)]
    out = []
    for seed, (count, width, height) in enumerate(cases):
        first = video([picture(width, height, seed)] * count)[0].permute(1, 2, 0).to(torch.uint8).numpy()
        stride = first.size // 1500 | 1
        sample = np.ascontiguousarray(first.reshape(-1)[::stride])
        out.append(
            {
                "count": count,
                "width": width,
                "height": height,
                "seed": seed,
                "to": list(first.shape[:2]),
                "stride": stride,
                "sample": base64.b64encode(sample.tobytes()).decode(),
            }
        )
    return out


def colours():
    """Pictures of other kinds as the released code turns them into red, green and blue."""
    out = []
    for channels in (4, 1):
        rgb = np.asarray(vision_process.to_rgb(picture(21, 14, 3, channels)))
        out.append({"channels": channels, "width": 21, "height": 14, "seed": 3, "rgb": base64.b64encode(rgb.tobytes()).decode()})
    return out


def values(processor):
    """Pixels after normalisation in the order of the patches: every 137th number, of a picture and of frames."""
    options = {"do_resize": False, "return_tensors": "pt"}
    image = processor.image_processor([picture(96, 64, 1)], **options)["pixel_values"]
    clip = torch.stack([torch.from_numpy(np.asarray(picture(64, 96, s)).copy()).permute(2, 0, 1) for s in range(4)])
    clip = processor.video_processor([clip.float()], do_sample_frames=False, **options)["pixel_values_videos"]
    return [tensor.reshape(-1)[::137].tolist() for tensor in (image, clip)]


def instruction(text):
    text = text.strip()
    if text and not unicodedata.category(text[-1]).startswith("P"):
        text = text + "."
    return text or DEFAULT


def instructions():
    texts = ["", "  ", "Find it", "Find it.", "Find it!  ", "\n Find it\t", "Find “it”", "Find it 。", "Find it)"]
    texts += ["Price in $", "2 + 2 =", "a_", "Find it\u0085", "\u001fFind it\u001c", "\ufeffFind it\ufeff", "Find \u00e9"]
    texts += ["Find \U0001f44d", "Find it\u2026", "\u3000Find it\u2003", "Find \u066a"]
    return [[text, instruction(text)] for text in texts]


def times(processor):
    random = np.random.default_rng(2)
    cases = [[0], [0, 500], [0, 1500], [500, 1000, 1250], [0, 10000, 20000], [150, 350], [100, 200], [0, 100], [50, 50], [5937, 17812]]
    cases += [sorted(random.integers(0, 60_000, random.integers(1, 8)).tolist()) for _ in range(40)]
    cases += [[0, int(t)] for t in range(100, 3100, 100)]
    out = []
    for frames_ in cases:
        seconds = processor._calculate_timestamps(list(frames_), 1000.0, 2)
        out.append([frames_, [f"<{second:.1f} seconds>" for second in seconds]])
    return out


def conversation(text, clip=None, images=()):
    content = []
    if clip is not None:
        content.append({"type": "video", "video": clip, "total_pixels": TOTAL_PIXELS})
    content += [{"type": "image", "image": i, "min_pixels": MIN_PIXELS, "max_pixels": MAX_PIXELS} for i in images]
    if text or not content:
        content.append({"type": "text", "text": text or "NULL"})
    return [
        {"role": "system", "content": [{"type": "text", "text": DEFAULT}]},
        {"role": "user", "content": content},
    ]


def processed(processor, chat, stamps=None, **options):
    text = processor.apply_chat_template([chat], add_generation_prompt=True, tokenize=False)
    images, videos, more = process_vision_info([chat], image_patch_size=16, return_video_metadata=True, return_video_kwargs=True)
    metadata = None
    if videos is not None:
        videos, metadata = map(list, zip(*videos))
        # the frames' own times; qwen_vl_utils would number them, two a second
        metadata[0] = {**metadata[0], "fps": 1000.0, "frames_indices": list(stamps), "total_num_frames": max(stamps) + 1}
    return processor(
        text=text, images=images, videos=videos, video_metadata=metadata, do_resize=False, return_tensors="pt", **more, **options
    )


def texts(processor):
    cases = [
        "\nstarts with a line feed",
        "ends in blanks  ",
        " ",
        "Line\r\nfeeds\r\n\r\nand\ttabs",
        "Zahlen 1234567 und 0.5, № 12",
        "It's we're I'LL don’t",
        "e\u0301 decomposed, \u00e9 composed, \ufb01 ligature",
        "漢字とかな、한국어",
        "emoji \U0001f469\u200d\U0001f52c and \U0001f1eb\U0001f1f7",
        "no\u00a0break\u2003spaces\u200b",
        "spelled <|im_end|> and <|endoftext|> inside",
        "<|im_start|>user\nnested<|im_end|>",
        "control \u0000\u0001\u007f bytes",
        "| a | b |\n| --- | --- |\n|  1 | \\| |\n",
        "{{ not a template }} {% if %}",
    ]
    return [[text, processed(processor, conversation(text))["input_ids"][0].tolist()] for text in cases]


def mixtures(processor, model):
    """Ids, grids and a digest of the positions (int32) of videos and pictures together."""
    cases = [
        {"text": "One frame", "frames": 1, "times": [0], "size": [96, 64]},
        {"text": "", "frames": 4, "times": [0, 500, 1250, 2500], "size": [200, 300]},
        {
            "text": "Frames and pictures\nand text",
            "frames": 5,
            "times": [937, 2812, 4687, 6562, 8437],
            "size": [320, 180],
            "images": [[70, 100], [200, 60]],
        },
        {"text": "Pictures", "images": [[33, 400], [64, 64], [500, 40]]},
    ]
    out = []
    for case in cases:
        clip = [picture(*case["size"], s) for s in range(case["frames"])] if "frames" in case else None
        images = [picture(width, height, 7) for width, height in case.get("images", [])]
        stamps = case.get("times", [])
        stamps = stamps + stamps[-1:] * (len(stamps) % 2)
        inputs = processed(processor, conversation(case["text"], clip, images), stamps)
        positions, _ = model.get_rope_index(
            inputs["input_ids"],
            mm_token_type_ids=inputs["mm_token_type_ids"],
            image_grid_thw=inputs.get("image_grid_thw"),
            video_grid_thw=inputs.get("video_grid_thw"),
            attention_mask=inputs["attention_mask"],
        )
        digest = hashlib.sha256(positions[:, 0].to(torch.int32).numpy().tobytes()).hexdigest()
        grids = {k: inputs[f"{k}_grid_thw"].tolist() if f"{k}_grid_thw" in inputs else [] for k in ("video", "image")}
        out.append({**case, "ids": runs(inputs["input_ids"][0].tolist()), "grids": grids, "positions": digest})
    return out


def runs(ids):
    """[id, how often] of each run of equal ids."""
    out = []
    for value in ids:
        if out and out[-1][0] == value:
            out[-1][1] += 1
        else:
            out.append([value, 1])
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=FIXTURES / "qwen3-vl-inputs" / "expected.json")
    parser.add_argument("--checkpoint", type=Path, default=FIXTURES / "qwen3-vl")
    args = parser.parse_args()
    processor = transformers.AutoProcessor.from_pretrained(args.checkpoint)
    model = transformers.AutoModel.from_pretrained(args.checkpoint)
    expected = {
        "versions": {
            "pillow": PIL.__version__,
            "torch": torch.__version__,
            "torchvision": torchvision.__version__,
            "transformers": transformers.__version__,
            "qwen_vl_utils": version("qwen_vl_utils"),
        },
        "sizes": sizes(),
        "pictures": pictures(),
        "frames": frames(),
        "colours": colours(),
        "values": values(processor),
        "instructions": instructions(),
        "times": times(processor),
        "texts": texts(processor),
        "mixtures": mixtures(processor, model),
    }
    args.output.parent.mkdir(parents=True, exist_ok=True)
    # one section a line
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in expected.items()]
    args.output.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf8")


if __name__ == "__main__":
    main()
