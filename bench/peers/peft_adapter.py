"""Makes LoRA adapters with PEFT, and reads adapters with it: token sequences embedded through both, for bench/peft-adapters.mjs.

    python bench/peers/peft_adapter.py request.json

request: {"requests": [{"checkpoint", "sequences", "pooling": "mean" | "last", "cases": [case]}], "output"}. A case has a "name" and

* to make an adapter: "adapter" (folder to write), "class" (of transformers, "SentenceTransformer" for an adapter that is added to
  its model, or "PeftModel over SentenceTransformer"), "config" (settings of LoraConfig), optionally "stored" ("float16" | "bfloat16"), "name of"
  (the adapter's) and "pickle". A and B are random.
* to read one: "adapter", "read" ("PeftModel" over AutoModel | "SentenceTransformer", its load_adapter).

Answers go to "output" as JSON, of each request by case: {"modules": {path: [rank, scaling]}, "embeddings", "missing": keys that PEFT did not find},
or {"error"}. Paths are those inside the model of text, heads included.
"""

import json
import shutil
import sys
import warnings
from pathlib import Path

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def of_text(model):
    """The model of text inside of whatever it was wrapped in."""
    if isinstance(model, PeftModel):
        model = model.get_base_model()
    if isinstance(model, SentenceTransformer):
        return model.transformers_model
    inner = model.base_model
    # Qwen3-VL's class without a head holds a vision tower, too
    return getattr(inner, "language_model", inner)


def randomise(model, stored):
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if "lora_" in name:
                values = 0.1 * torch.randn(parameter.shape, generator=generator)
                parameter.copy_(values if stored is None else values.to(stored).float())


def build(checkpoint, name):
    if name in ("SentenceTransformer", "PeftModel over SentenceTransformer"):
        return SentenceTransformer(checkpoint, device="cpu", model_kwargs={"dtype": torch.float32})
    more = {"num_labels": 1} if name.endswith("SequenceClassification") else {}
    return getattr(transformers, name).from_pretrained(checkpoint, dtype=torch.float32, **more)


def made(checkpoint, case):
    torch.manual_seed(2)
    model = build(checkpoint, case["class"])
    config = LoraConfig(**{"lora_dropout": 0.0, **case["config"]})
    stored = TYPES.get(case.get("stored"))
    adapter = case.get("name of", "default")
    folder = Path(case["adapter"])
    if case["class"] == "SentenceTransformer":
        # as transformers' add_adapter and save_pretrained do, which ask for a newer PEFT
        inner = inject_adapter_in_model(config, model.transformers_model)
        randomise(inner, stored)
        folder.mkdir(parents=True, exist_ok=True)
        config.save_pretrained(folder)
        state = get_peft_model_state_dict(inner, adapter_name="default")
        tensors = {f"base_model.model.{key}": value.contiguous() for key, value in state.items()}
        save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    else:
        model = get_peft_model(model, config, adapter_name=adapter)
        randomise(model, stored)
        model.save_pretrained(folder, safe_serialization=not case.get("pickle", False))
    if adapter != "default":
        # PEFT writes named adapters into folders of their own
        for file in (folder / adapter).iterdir():
            shutil.move(file, folder / file.name)
    if stored is not None:
        file = folder / "adapter_model.safetensors"
        save_file({key: value.to(stored) for key, value in load_file(file).items()}, file, {"format": "pt"})
    return model


def read(checkpoint, case):
    if case["read"] == "PeftModel":
        model = transformers.AutoModel.from_pretrained(checkpoint, dtype=torch.float32)
        return PeftModel.from_pretrained(model, case["adapter"])
    model = SentenceTransformer(checkpoint, device="cpu", model_kwargs={"dtype": torch.float32})
    model.load_adapter(case["adapter"])
    return model


def adapted(model):
    layers = {}
    for name, module in of_text(model).named_modules():
        if isinstance(module, LoraLayer) and module.r:
            (adapter,) = module.r
            layers[name] = [module.r[adapter], module.scaling[adapter]]
    return layers


def embed(model, sequences, pooling):
    inner = of_text(model).eval()
    rows = []
    with torch.no_grad():
        for ids in sequences:
            hidden = inner(input_ids=torch.tensor([ids])).last_hidden_state[0].float()
            row = hidden[-1] if pooling == "last" else hidden.mean(0)
            rows.append(torch.nn.functional.normalize(row, dim=0).tolist())
    return rows


def answer(request, case):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = read(request["checkpoint"], case) if "read" in case else made(request["checkpoint"], case)
    missing = [str(w.message) for w in caught if "missing adapter keys" in str(w.message)]
    return {
        "modules": adapted(model),
        "embeddings": embed(model, request["sequences"], request["pooling"]),
        "missing": missing,
    }


def main():
    torch.set_num_threads(1)
    asked = json.loads(Path(sys.argv[1]).read_text())
    answers = [{} for _ in asked["requests"]]
    for request, into in zip(asked["requests"], answers, strict=True):
        for case in request["cases"]:
            try:
                into[case["name"]] = answer(request, case)
            except Exception as error:  # what PEFT makes of a case is the answer, also when it refuses
                into[case["name"]] = {"error": f"{type(error).__name__}: {error}"}
    Path(asked["output"]).write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
