"""Embeds picture and video files with a Qwen3-VL checkpoint as the released code and transformers do; for bench/qwen3-files.mjs.

    python bench/peers/qwen3_vl_files.py request.json

The request names the checkpoint and the inputs: {"encoder", "output", "inputs": [{"text", "images"? | "video"?, "frames"?, "start"?}]},
times in milliseconds. Pictures are decoded by Pillow, frames by PyAV (of every time the one whose showing has begun last). Written to
"output": for every input the tokens' number, the grids, the embedding.
"""

import json
import sys
from pathlib import Path

import av
import torch
import transformers
from PIL import Image
from qwen3_vl_inputs import conversation, processed


def frames_at(path, times):
    """The frames that are shown at the given times, in milliseconds."""
    found = [None] * len(times)
    with av.open(path) as container:
        stream = container.streams.video[0]
        origin = float(container.start_time or 0) / av.time_base
        for frame in container.decode(stream):
            shown = 1000 * (frame.time - origin)
            wanted = [i for i, time in enumerate(times) if shown <= time + 1e-3]
            if wanted:
                image = frame.to_image()
                for i in wanted:
                    found[i] = image
            if shown > max(times):
                break
    return found


def main():
    request = json.loads(Path(sys.argv[1]).read_text())
    folder = request["encoder"]
    processor = transformers.AutoProcessor.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    out = []
    for entry in request["inputs"]:
        images = [Image.open(path) for path in entry.get("images", [])]
        clip = frames_at(entry["video"], entry["frames"]) if "video" in entry else None
        stamps = [time - entry["start"] for time in entry.get("frames", [])]
        stamps += stamps[-1:] * (len(stamps) % 2)
        inputs = processed(processor, conversation(entry["text"], clip, images), stamps)
        with torch.no_grad():
            hidden = model(**inputs).last_hidden_state[0, -1]
        grids = [inputs[f"{kind}_grid_thw"].tolist() for kind in ("video", "image") if f"{kind}_grid_thw" in inputs]
        embedding = torch.nn.functional.normalize(hidden, dim=0).tolist()
        out.append({"tokens": inputs["input_ids"].shape[1], "grids": grids, "embedding": embedding})
    Path(request["output"]).write_text(json.dumps(out))


if __name__ == "__main__":
    main()
