"""What transformers' Qwen3-VL vision tower makes of pictures and videos of many sizes.

    python bench/peers/vision_reference.py                     # test/fixtures/qwen3-vl-vision/expected.safetensors, weights of qwen3-vl/
    python bench/peers/vision_reference.py --model <folder> --output <file.safetensors>       # for bench/vision.mjs

Pixels are not stored: value i of an input is ((7919 i) mod 255) / 127.5 - 1. An input is one or several pictures or videos, rows
[pairs of frames, height, width] of `<name>.grids`; `<name>.features` are float32 [1 + levels, rows, width]. For videos the tower also
gets every pair of frames by itself, and the largest difference is printed: pairs do not see each other.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

FIXTURES = Path(__file__).resolve().parents[2] / "test" / "fixtures"
TINY = {
    "smallest": [[1, 2, 2]],
    "wide": [[1, 4, 14]],
    "beyond": [[1, 18, 12]],
    "video": [[3, 4, 6]],
    "mixed": [[1, 4, 6], [2, 2, 8], [1, 6, 2]],
}
LARGE = {
    "square": [[1, 16, 16]],
    "wide": [[1, 10, 30]],
    "beyond": [[1, 56, 14]],
    "page": [[1, 64, 50]],
    "mixed": [[2, 8, 12], [1, 6, 52]],
}


def pixels_of(grids):
    patches = sum(t * h * w for t, h, w in grids)
    i = np.arange(patches * 3 * 2 * 16 * 16, dtype=np.int64)
    return torch.from_numpy((((i * 7919) % 255) / 127.5 - 1).astype(np.float32)).reshape(patches, -1)


def features_of(model, pixels, grids):
    with torch.no_grad():
        out = model(pixels, grid_thw=torch.tensor(grids))
    return torch.stack([out.pooler_output, *out.deepstack_features])


def pair_by_pair(model, pixels, grids):
    at, parts = 0, []
    for t, h, w in grids:
        for _ in range(t):
            parts.append(features_of(model, pixels[at : at + h * w], [[1, h, w]]))
            at += h * w
    return torch.cat(parts, dim=1)


def write(model, inputs, file):
    numbers = {}
    for name, grids in inputs.items():
        pixels = pixels_of(grids)
        features = features_of(model, pixels, grids)
        alone = (pair_by_pair(model, pixels, grids) - features).abs().max() / features.abs().max()
        print(f"{name}: {grids}, features {list(features.shape)}, alone {alone:.1e}")
        numbers[f"{name}.grids"] = torch.tensor(grids)
        numbers[f"{name}.features"] = features.contiguous()
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(numbers, file)


def tower_of(folder):
    """The vision tower of a checkpoint, in float32."""
    config = Qwen3VLVisionConfig(**json.loads((folder / "config.json").read_text())["vision_config"])
    config._attn_implementation = "eager"
    model = Qwen3VLVisionModel(config).eval()
    prefix = "model.visual."
    weights = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as stored:
            names = [name for name in stored.keys() if name.startswith(prefix)]
            weights.update({name[len(prefix) :]: stored.get_tensor(name).float() for name in names})
    model.load_state_dict(weights)
    return model.float()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    if args.model is None:
        write(tower_of(FIXTURES / "qwen3-vl"), TINY, FIXTURES / "qwen3-vl-vision" / "expected.safetensors")
    else:
        write(tower_of(args.model), LARGE, args.output)
