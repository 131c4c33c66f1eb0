"""Exports tiny encoders and decoders of the architectures of export_architectures.py, with the gradients that PyTorch finds for LoRA.

    python bench/peers/lora_gradients.py --output exported

Writes folders <output>/<architecture>[-dynamo]/: config.json, a tokenizer, onnx/model.onnx (random weights, both exporters of torch.onnx) and
lora.safetensors: matrices A and B of every torch.nn.Linear `<module>` (`<module>.lora_A.weight`, rank 2, scale alpha / rank = 2), for
token sequences `ids.<n>` their mean-pooled embeddings of length 1, `embeddings` [sequences, width], and d(sum cos(i) embeddings_i) /
d(matrix) under `grad.<matrix>`, in float32. For bench/imported-gradients.mjs.
"""

import argparse
import contextlib
import io
import json
import shutil
from pathlib import Path

import torch
import transformers
from export_architectures import ARCHITECTURES, BERT, GROUPED, HiddenStates
from safetensors.torch import save_file

TOKENIZER = Path(__file__).parents[2] / "test/fixtures/onnx/tiny-bert-plain"
RANK, SCALE = 2, 2.0
LENGTHS = [7, 12, 3, 2]
MORE = {
    "qwen2": transformers.Qwen2Config(**GROUPED),
    "qwen3": transformers.Qwen3Config(**GROUPED, head_dim=8),
    "roberta": transformers.RobertaConfig(**BERT),
}


class Adapted(torch.nn.Module):
    """y + scale * x A' B', as PEFT computes it."""

    def __init__(self, linear):
        super().__init__()
        self.linear = linear
        self.a = torch.nn.Parameter(torch.randn(RANK, linear.in_features) / linear.in_features**0.5)
        self.b = torch.nn.Parameter(torch.randn(linear.out_features, RANK) / 4)

    @property
    def weight(self):
        # some models look at its type
        return self.linear.weight

    def forward(self, x):
        return self.linear(x) + SCALE * (x @ self.a.T) @ self.b.T


def gradients(hidden_states):
    """LoRA put on every linear map, embeddings and gradients; the model is changed."""
    model = hidden_states.model
    names = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    for name in names:
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, Adapted(model.get_submodule(name)))
    tensors = {}
    embeddings = []
    for n, length in enumerate(LENGTHS):
        ids = 3 + (torch.arange(length) * 7 + 11 * n) % 46
        tensors[f"ids.{n}"] = ids.to(torch.int64)
        states = hidden_states(ids[None], torch.ones(1, length, dtype=torch.long))
        embeddings.append(torch.nn.functional.normalize(states[0].mean(0), dim=0))
    embeddings = torch.stack(embeddings)
    (embeddings.flatten() * torch.cos(torch.arange(embeddings.numel(), dtype=torch.float32))).sum().backward()
    tensors["embeddings"] = embeddings.detach()
    for name in names:
        adapted = model.get_submodule(name)
        for side, matrix in (("A", adapted.a), ("B", adapted.b)):
            if matrix.grad is None:
                continue
            tensors[f"{name}.lora_{side}.weight"] = matrix.detach()
            tensors[f"grad.{name}.lora_{side}.weight"] = matrix.grad
    return tensors


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    output = parser.parse_args().output
    names = dict(input_names=["input_ids", "attention_mask"], output_names=["last_hidden_state"])
    sizes = {0: "batch", 1: "sequence"}
    # GPT-2's maps are no torch.nn.Linear
    configs = {name: config for name, config in {**ARCHITECTURES, **MORE}.items() if name != "gpt2"}
    for name, config in configs.items():
        torch.manual_seed(0)
        model = HiddenStates(config).eval()
        model.options = {"use_cache": False} if name in MORE and name.startswith("qwen") else model.options
        ids = torch.randint(3, 50, (2, 7))
        mask = torch.ones(2, 7, dtype=torch.long)
        mask[1, 5:] = 0
        scripted = dict(dynamo=False, opset_version=17, dynamic_axes={v: sizes for v in sum(names.values(), [])})
        symbols = {axis: torch.export.Dim(symbol) for axis, symbol in sizes.items()}
        exported = dict(dynamo=True, dynamic_shapes=(symbols, symbols), external_data=False)
        folders = []
        for suffix, options in (("", scripted), ("-dynamo", exported)):
            folder = output / f"{name}{suffix}"
            (folder / "onnx").mkdir(parents=True, exist_ok=True)
            with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                torch.onnx.export(model, (ids, mask), str(folder / "onnx/model.onnx"), **names, **options)
            (folder / "config.json").write_text(json.dumps(config.to_dict(), default=str))
            for file in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copy(TOKENIZER / file, folder / file)
            folders.append(folder)
        tensors = gradients(model)
        for folder in folders:
            save_file(tensors, folder / "lora.safetensors")
            print(folder, flush=True)


if __name__ == "__main__":
    main()
