"""Encoding peer: sentence-transformers' encode, which sorts by length itself, at the best of a few batch sizes.

    python bench/peers/encode.py request.json

The request: model, texts, threads, warm (texts that are encoded first, once per batch size, to choose one), output. The answer is
<output>/result.json {"seconds", "memory", "note", "versions"} and <output>/embeddings.safetensors.
"""

import argparse
import json
import resource
import time
from pathlib import Path

import sentence_transformers
import torch
import transformers
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer

BATCH_SIZES = [8, 16, 32, 64]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("request", type=Path)
    request = json.loads(parser.parse_args().request.read_text())
    torch.set_num_threads(request["threads"])
    model = SentenceTransformer(request["model"], device="cpu", model_kwargs={"attn_implementation": "sdpa"})

    def seconds(texts, batch_size):
        began = time.perf_counter()
        rows = model.encode(texts, batch_size=batch_size, show_progress_bar=False, convert_to_tensor=True)
        return time.perf_counter() - began, rows

    seconds(request["warm"], BATCH_SIZES[-1])
    best = min(BATCH_SIZES, key=lambda size: seconds(request["warm"], size)[0])
    took, rows = seconds(request["texts"], best)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    output = Path(request["output"])
    save_file({"embeddings": rows.float().contiguous()}, output / "embeddings.safetensors")
    versions = {m.__name__: m.__version__ for m in (torch, transformers, sentence_transformers)}
    answer = {"seconds": took, "memory": memory, "note": f"batches of {best}", "versions": versions}
    (output / "result.json").write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
