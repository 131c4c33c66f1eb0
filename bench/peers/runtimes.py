"""Exported folders in Python: sentence-transformers with backend="onnx", or onnxruntime by hand.

    python bench/peers/runtimes.py request.json

Request and answer are those of bench/runtimes/measure.mjs; `library` is sentence-transformers or onnxruntime.
"""

import argparse
import json
import resource
import sys
import time
from pathlib import Path

BATCH = 16
WARM = 8


def resident():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return 1024 * int(line.split()[1])
    return 0


def sentence_transformers_runtime(asked):
    import onnxruntime
    import sentence_transformers
    import transformers
    from sentence_transformers import SentenceTransformer

    def open_model(folder, file):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = asked["threads"]
        options.inter_op_num_threads = 1
        return SentenceTransformer(
            folder,
            backend="onnx",
            device="cpu",
            local_files_only=True,
            model_kwargs={
                "file_name": f"onnx/{file}",
                "provider": "CPUExecutionProvider",
                "session_options": options,
            },
        )

    def encode(model, prompt, texts):
        return model.encode(texts, prompt=prompt or None, batch_size=BATCH, show_progress_bar=False)

    versions = {m.__name__: m.__version__ for m in (sentence_transformers, transformers, onnxruntime)}
    return open_model, encode, versions


def onnxruntime_runtime(asked):
    import numpy
    import onnxruntime
    import transformers
    from transformers import AutoTokenizer

    def open_model(folder, file):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = asked["threads"]
        options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(
            str(Path(folder) / "onnx" / file), options, providers=["CPUExecutionProvider"]
        )
        return AutoTokenizer.from_pretrained(folder, local_files_only=True), session

    def encode(model, prompt, texts):
        tokenizer, session = model
        names = {given.name for given in session.get_inputs()}
        rows = numpy.zeros((len(texts), asked["dimension"]), dtype=numpy.float32)
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        for start in range(0, len(order), BATCH):
            members = order[start : start + BATCH]
            batch = tokenizer([prompt + texts[i] for i in members], padding=True, truncation=True, return_tensors="np")
            feeds = {name: value.astype(numpy.int64) for name, value in batch.items() if name in names}
            (hidden,) = session.run(["last_hidden_state"], feeds)
            if asked["pooling"] == "cls":
                pooled = hidden[:, 0]
            else:
                mask = batch["attention_mask"][..., None].astype(numpy.float32)
                pooled = (hidden * mask).sum(1) / mask.sum(1)
            pooled = pooled[:, : asked["dimension"]]
            if asked["normalize"]:
                pooled = pooled / numpy.linalg.norm(pooled, axis=1, keepdims=True)
            rows[members] = pooled
        return rows

    versions = {m.__name__: m.__version__ for m in (onnxruntime, transformers)}
    return open_model, encode, versions


RUNTIMES = {"sentence-transformers": sentence_transformers_runtime, "onnxruntime": onnxruntime_runtime}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("request", type=Path)
    asked = json.loads(parser.parse_args().request.read_text())
    before = resident()
    began = time.perf_counter()
    open_model, encode, versions = RUNTIMES[asked["library"]](asked)
    import_ms = 1000 * (time.perf_counter() - began)

    began = time.perf_counter()
    nodes_model = open_model(asked["model"], asked["file"])
    f0_model = open_model(asked["f0"], "model.onnx")
    load_ms = 1000 * (time.perf_counter() - began)
    loaded = resident() - before

    prompts = asked["prompts"]
    milliseconds = []
    for turn, query in enumerate([asked["queries"][0], *asked["queries"]]):
        began = time.perf_counter()
        encode(f0_model, prompts["query"], [query["question"]])
        encode(nodes_model, prompts["node"], query["texts"])
        if turn > 0:
            milliseconds.append(1000 * (time.perf_counter() - began))
        print(f"query {turn} of {len(asked['queries'])}", file=sys.stderr)

    encode(nodes_model, prompts["node"], asked["texts"][:WARM])
    began = time.perf_counter()
    nodes = encode(nodes_model, prompts["node"], asked["texts"])
    seconds = time.perf_counter() - began

    import numpy
    from safetensors.numpy import save_file

    if asked["long"]:
        nodes = numpy.concatenate([nodes, encode(nodes_model, prompts["node"], asked["long"])])
    questions = encode(f0_model, prompts["query"], asked["questions"])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    output = Path(asked["output"])
    rows = {"nodes": nodes, "questions": questions}
    save_file({name: numpy.ascontiguousarray(r, dtype=numpy.float32) for name, r in rows.items()},
              str(output / "embeddings.safetensors"))
    answer = {
        "loadMs": load_ms,
        "importMs": import_ms,
        "seconds": seconds,
        "milliseconds": milliseconds,
        "versions": versions,
        "memory": {"loaded": loaded, "peak": peak},
    }
    (output / "result.json").write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
