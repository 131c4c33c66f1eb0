"""Embeds token sequences through PEFT over the class that AutoModel builds: with an adapter that it reads, or that it makes.

    python bench/peers/peft_adapter.py request.json

request: {"checkpoint", "adapter", "make", "sequences", "output"}. With "make" a pattern, LoRA of rank 4 with random A and B goes over
the modules that it names and is saved in "adapter"; otherwise that folder is read. Embeddings (last token, length 1) go to "output" as
JSON. For bench/peft-adapters.mjs.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model


def made(model, folder, pattern):
    tuned = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=pattern, lora_dropout=0.0))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    tuned.save_pretrained(folder)
    return tuned


def main():
    request = json.loads(Path(sys.argv[1]).read_text())
    model = transformers.AutoModel.from_pretrained(request["checkpoint"], dtype=torch.float32)
    make, folder = request.get("make"), request["adapter"]
    tuned = made(model, folder, make) if make else PeftModel.from_pretrained(model, folder)
    tuned.eval()
    adapted = sum("lora_A" in name for name, _ in tuned.named_parameters())
    embeddings = []
    with torch.no_grad():
        for ids in request["sequences"]:
            hidden = tuned(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]
            embeddings.append(torch.nn.functional.normalize(hidden, dim=0).tolist())
    Path(request["output"]).write_text(json.dumps({"adapted": adapted, "embeddings": embeddings}))


if __name__ == "__main__":
    main()
