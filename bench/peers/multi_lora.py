"""Serves several adapters over one exported graph, as ONNX Runtime does it, and compares each with PEFT.

    canopy export --encoder <checkpoint> --adapter <run>/adapter --keep-adapter --output <export>
    python bench/peers/multi_lora.py --encoder <checkpoint> --export <export>

The graph `onnx/model_lora.onnx` is opened once. It is run without an adapter, with the exported one and with a second one of another
rank as `.onnx_adapter` files (onnxruntime.AdapterFormat, RunOptions.add_active_adapter), and with matrices of zeros as plain feeds.
Needs: onnxruntime, peft, torch, transformers, safetensors.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.numpy import load_file
from transformers import AutoModel, AutoTokenizer

TEXTS = ["The ferry left at dawn.", "Harbours\nIt carried 33.5 tonnes of salt and one piano, it is said.", "a"]


def adapter_file(path, tensors, scalings):
    """An .onnx_adapter of PEFT's tensors, unchanged, and the factor of each module's update."""
    parameters = {name: ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(x, np.float32)) for name, x in tensors.items()}
    for module, scaling in scalings.items():
        parameters[f"{module}.scaling"] = ort.OrtValue.ortvalue_from_numpy(np.array([scaling], np.float32))
    format = ort.AdapterFormat()
    format.set_adapter_version(1)
    format.set_model_version(1)
    format.set_parameters(parameters)
    format.export_adapter(str(path))
    adapter = ort.LoraAdapter()
    adapter.Load(str(path))
    return adapter


def scalings_of(tensors, config):
    modules = {name.rsplit(".lora_", 1)[0] for name in tensors}
    return {module: config["lora_alpha"] / config["r"] for module in modules}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--export", required=True, type=Path)
    parser.add_argument("--graph", default="model_lora.onnx")
    args = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(args.encoder)
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    visible = batch["attention_mask"].numpy().astype(bool)

    def hidden(model):
        with torch.no_grad():
            return model(**batch).last_hidden_state.numpy()[visible]

    base = AutoModel.from_pretrained(args.encoder, dtype=torch.float32).eval()
    frozen = hidden(base)
    own = hidden(PeftModel.from_pretrained(base, args.export / "adapter").eval())
    base = AutoModel.from_pretrained(args.encoder, dtype=torch.float32).eval()
    targets = json.loads((args.export / "adapter/adapter_config.json").read_text())
    second = get_peft_model(base, LoraConfig(r=5, lora_alpha=12, target_modules=targets["target_modules"])).eval()
    torch.manual_seed(1)
    for name, parameter in second.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    other = hidden(second)
    other_tensors = {name: x.numpy() for name, x in get_peft_model_state_dict(second).items()}

    options = ort.SessionOptions()
    options.log_severity_level = 3  # it warns of every initializer that may be overridden
    session = ort.InferenceSession(str(args.export / "onnx" / args.graph), options)
    feeds = {i.name: batch[i.name].numpy() for i in session.get_inputs() if i.name in batch}
    overridable = {i.name for i in session.get_overridable_initializers()}
    own_tensors = load_file(args.export / "adapter/adapter_model.safetensors")
    missing = set(other_tensors) | set(own_tensors) - overridable
    print(f"{len(overridable)} overridable initializers; PEFT's keys that are none: {len(missing - overridable)}")

    def run(adapter=None, more={}):
        how = ort.RunOptions()
        if adapter is not None:
            how.add_active_adapter(adapter)
        return session.run(["last_hidden_state"], {**feeds, **more}, how)[0][visible]

    zeros = {name: np.zeros_like(x) for name, x in own_tensors.items() if "lora_B" in name}
    with tempfile.TemporaryDirectory() as folder:
        first = adapter_file(Path(folder) / "first.onnx_adapter", own_tensors, scalings_of(own_tensors, targets))
        scaling = scalings_of(other_tensors, {"lora_alpha": 12, "r": 5})
        another = adapter_file(Path(folder) / "second.onnx_adapter", other_tensors, scaling)
        cases = {
            "nothing fed, against PEFT with the exported adapter": (run(), own),
            "the exported adapter active, against the same": (run(first), own),
            "zeros fed for B, against the frozen encoder": (run(more=zeros), frozen),
            "a second adapter active (rank 5), against PEFT with it": (run(another), other),
            "nothing fed again": (run(), own),
        }
    for name, (found, wanted) in cases.items():
        print(f"{name}: largest difference {np.abs(found - wanted).max():.1e} (numbers up to {np.abs(wanted).max():.1f})")
    print(f"for scale: exported to frozen {np.abs(own - frozen).max():.2f}, second to exported {np.abs(other - own).max():.2f}")


if __name__ == "__main__":
    main()
