"""The reference side of `bench/parity.mjs`: what transformers, PEFT and sentence-transformers compute.

    python bench/peers/reference.py embed     --request in.json --output out.safetensors
    python bench/peers/reference.py gradients --request in.json --output out.safetensors

embed      {"model", "adapter"?, "texts", "max_length"}  ->  "embeddings" [n, dim], and out.json with the token ids
gradients  {"model", "adapter", "texts", "queries", "pairs": [[query, preferred, other, weight]], "loss", "tau", "margin",
            "max_length"}  ->  one tensor per LoRA matrix, named as in the adapter file, and "loss" [1]

Texts longer than `max_length` tokens are cut as sentence-transformers cuts them. A pair's loss is softplus(-d / tau) or
max(0, margin - d) on d = cos(query, preferred) - cos(query, other); the batch loss is the weighted sum.
"""

import argparse
import json
from pathlib import Path

import torch
from peft import PeftModel
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer


def load(request):
    model = SentenceTransformer(request["model"], device="cpu")
    if request.get("max_length"):
        model.max_seq_length = request["max_length"]
    if request.get("adapter"):
        transformer = model[0]
        transformer.auto_model = PeftModel.from_pretrained(transformer.auto_model, request["adapter"], is_trainable=True)
    model.eval()
    return model


def forward(model, texts):
    features = model.preprocess(texts) if hasattr(model, "preprocess") else model.tokenize(texts)
    return model(features)["sentence_embedding"]


def embed(request, output):
    model = load(request)
    with torch.no_grad():
        rows = [forward(model, [text])[0] for text in request["texts"]]
    save_file({"embeddings": torch.stack(rows).contiguous()}, output)
    ids = [model.tokenizer(t, truncation=True, max_length=model.max_seq_length)["input_ids"] for t in request["texts"]]
    Path(output).with_suffix(".json").write_text(json.dumps({"ids": ids}))


def gradients(request, output):
    torch.set_num_threads(2)
    frozen = load({**request, "adapter": None})
    with torch.no_grad():
        queries = forward(frozen, request["queries"])
    model = load(request)
    nodes = forward(model, request["texts"])
    query, preferred, other = (torch.tensor([p[i] for p in request["pairs"]]) for i in range(3))
    weight = torch.tensor([p[3] for p in request["pairs"]])
    d = (queries[query] * (nodes[preferred] - nodes[other])).sum(-1)
    if request["loss"] == "logistic":
        per_pair = torch.nn.functional.softplus(-d / request["tau"])
    else:
        per_pair = torch.clamp(request["margin"] - d, min=0)
    loss = (weight * per_pair).sum()
    loss.backward()
    tensors = {
        name.replace(".default", ""): p.grad.contiguous()
        for name, p in model[0].auto_model.named_parameters()
        if p.grad is not None
    }
    tensors["loss"] = loss.detach().reshape(1)
    save_file(tensors, output)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["embed", "gradients"])
    parser.add_argument("--request", required=True)
    parser.add_argument("--output", required=True)
    args = parser.parse_args()
    {"embed": embed, "gradients": gradients}[args.what](json.loads(Path(args.request).read_text()), args.output)
