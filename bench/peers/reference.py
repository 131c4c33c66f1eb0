"""The reference side of `bench/parity.mjs`: what transformers, PEFT, sentence-transformers and onnxruntime compute.

    python bench/peers/reference.py embed     --request in.json --output out.safetensors
    python bench/peers/reference.py gradients --request in.json --output out.safetensors
    python bench/peers/reference.py onnx      --request in.json --output out.safetensors

embed      {"model", "adapter"?, "texts"}  ->  "embeddings" [n, dim], and out.json with the token ids
gradients  {"model", "adapter", "sequences": [[token id]], "queries": [[token id]],
            "pairs": [[query, preferred, other, weight]], "loss", "tau", "margin"}
           ->  one tensor per LoRA matrix, named as in the adapter file, and "loss" [1]
onnx       {"model": exported folder, "texts"}  ->  "embeddings": the files as onnxruntime runs them, with the folder's tokenizer

Texts are cut as sentence-transformers cuts them. A pair's loss is softplus(-d / tau) or max(0, margin - d) on
d = cos(query, preferred) - cos(query, other); the batch's loss is the weighted sum.
"""

import argparse
import json
from pathlib import Path

import torch
from peft import PeftModel
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer


def load(model, adapter=None):
    encoder = SentenceTransformer(model, device="cpu")
    if adapter:
        encoder[0].auto_model = PeftModel.from_pretrained(encoder[0].auto_model, adapter, is_trainable=True)
    encoder.eval()
    return encoder


def forward(encoder, sequences):
    """Embeddings of token sequences, padded to the longest, through all modules of the encoder."""
    longest = max(map(len, sequences))
    pad = encoder.tokenizer.pad_token_id
    ids = torch.tensor([s + [pad] * (longest - len(s)) for s in sequences])
    mask = torch.tensor([[1] * len(s) + [0] * (longest - len(s)) for s in sequences])
    return encoder({"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)})[
        "sentence_embedding"
    ]


def token_ids(encoder, texts):
    return [encoder.tokenizer(t, truncation=True, max_length=encoder.max_seq_length)["input_ids"] for t in texts]


def embed(request, output):
    encoder = load(request["model"], request.get("adapter"))
    with torch.no_grad():
        embeddings = encoder.encode(request["texts"], batch_size=16, convert_to_tensor=True)
    save_file({"embeddings": embeddings.contiguous()}, output)
    Path(output).with_suffix(".json").write_text(json.dumps({"ids": token_ids(encoder, request["texts"])}))


def gradients(request, output):
    with torch.no_grad():
        queries = forward(load(request["model"]), request["queries"])
    encoder = load(request["model"], request["adapter"])
    nodes = forward(encoder, request["sequences"])
    query, preferred, other = (torch.tensor([p[i] for p in request["pairs"]]) for i in range(3))
    weight = torch.tensor([p[3] for p in request["pairs"]])
    d = (queries[query] * (nodes[preferred] - nodes[other])).sum(-1)
    if request["loss"] == "logistic":
        per_pair = torch.nn.functional.softplus(-d / request["tau"])
    else:
        per_pair = torch.clamp(request["margin"] - d, min=0)
    loss = (weight * per_pair).sum()
    loss.backward()
    # PEFT puts its matrices into the model in place; its file format prefixes their names
    tensors = {
        f"base_model.model.{name.removeprefix('base_model.model.').replace('.default', '')}": p.grad.contiguous()
        for name, p in encoder[0].auto_model.named_parameters()
        if p.grad is not None
    }
    tensors["loss"] = loss.detach().reshape(1)
    save_file(tensors, output)


def onnx(request, output):
    import onnxruntime
    from transformers import AutoTokenizer

    folder = Path(request["model"])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    session = onnxruntime.InferenceSession(folder / "onnx" / "model.onnx", providers=["CPUExecutionProvider"])
    rows = []
    for text in request["texts"]:
        batch = tokenizer([text], truncation=True, return_tensors="np")
        feeds = {i.name: batch[i.name] if i.name in batch else 0 * batch["input_ids"] for i in session.get_inputs()}
        hidden = torch.tensor(session.run(["last_hidden_state"], feeds)[0][0])
        rows.append(torch.nn.functional.normalize(hidden.mean(0), dim=0))
    save_file({"embeddings": torch.stack(rows).contiguous()}, output)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["embed", "gradients", "onnx"])
    parser.add_argument("--request", required=True)
    parser.add_argument("--output", required=True)
    args = parser.parse_args()
    run = {"embed": embed, "gradients": gradients, "onnx": onnx}[args.what]
    run(json.loads(Path(args.request).read_text()), args.output)
