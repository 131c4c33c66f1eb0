"""Training peer of bench/qwen3-training.mjs: Qwen3-VL with PEFT, a few AdamW steps on nodes of text and pictures.

    python bench/peers/qwen3_training.py request.json

The request: checkpoint, adapter (the first matrices), instruction and text of the question, nodes (inputs as in the fixture's expected.json),
pairs [[preferred, other, weight]], steps, tau, learningRate, weightDecay, betas, epsilon, clipNorm, output. Writes <output>/result.json
(losses, versions) and <output>/adapter.
"""

import json
import sys
from pathlib import Path

import peft
import torch
import transformers
from make_qwen3_fixtures import processed
from training import pair_losses


def embedding(model, inputs):
    hidden = model(**inputs).last_hidden_state[0, -1]
    return torch.nn.functional.normalize(hidden, dim=0)


def main():
    request = json.loads(Path(sys.argv[1]).read_text())
    checkpoint = Path(request["checkpoint"])
    processor = transformers.AutoProcessor.from_pretrained(checkpoint)
    model = transformers.AutoModel.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager").eval()
    asked = {"text": request["question"], "instruction": request["instruction"]}
    with torch.no_grad():
        query = embedding(model, processed(processor, asked, checkpoint / "pictures"))
    nodes = [processed(processor, node, checkpoint / "pictures") for node in request["nodes"]]
    tuned = peft.PeftModel.from_pretrained(model, request["adapter"], is_trainable=True)
    trainable = [p for p in tuned.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        trainable,
        lr=request["learningRate"],
        weight_decay=request["weightDecay"],
        betas=tuple(request["betas"]),
        eps=request["epsilon"],
    )
    preferred, other = (torch.tensor([pair[k] for pair in request["pairs"]]) for k in range(2))
    weights = torch.tensor([pair[2] for pair in request["pairs"]])
    losses = []
    for _ in range(request["steps"]):
        rows = torch.stack([embedding(tuned, inputs) for inputs in nodes])
        loss = (weights * pair_losses(query, rows[preferred], rows[other], request["tau"])).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trainable, request["clipNorm"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    output = Path(request["output"])
    tuned.save_pretrained(output / "adapter")
    versions = {module.__name__: module.__version__ for module in (torch, transformers, peft)}
    (output / "result.json").write_text(json.dumps({"losses": losses, "versions": versions}))


if __name__ == "__main__":
    main()
