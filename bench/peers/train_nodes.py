"""Training peer: plain torch with PEFT. Each distinct node of a step is encoded once, in padded sub-batches of like length.

    python bench/peers/train_nodes.py request.json          (see training.py)

The step's graph is kept whole, so there is one forward and one backward pass. Texts are tokenised before the clock starts.
"""

import torch
from training import Recorder, load_encoder, load_queries, pair_losses, read_request


def sub_batches(lengths, budget):
    """Indices, longest first, in groups whose padded size is within `budget` tokens."""
    groups, width = [], 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if not groups or (len(groups[-1]) + 1) * width > budget:
            groups.append([])
            width = lengths[i]
        groups[-1].append(i)
    return groups


def padded(sequences, pad):
    width = max(map(len, sequences))
    ids = torch.tensor([row + [pad] * (width - len(row)) for row in sequences])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in sequences])
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}


def main():
    request = read_request()
    encoder, lora = load_encoder(request)
    encoder.train()
    queries = load_queries(request)
    tokenizer = encoder.tokenizer
    steps = [
        (tokenizer(step["texts"], truncation=True, max_length=encoder.max_seq_length)["input_ids"], step["pairs"])
        for step in request["steps"]
    ]
    trainable = [p for p in encoder.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        trainable,
        lr=request["learningRate"],
        weight_decay=request["weightDecay"],
        betas=tuple(request["betas"]),
        eps=request["epsilon"],
        fused=True,
    )
    recorder = Recorder(request, lora)
    recorder.start()
    for sequences, pairs in steps:
        groups = sub_batches([len(s) for s in sequences], request["subBatchTokens"])
        rows, computed = [], 0
        for group in groups:
            features = padded([sequences[i] for i in group], tokenizer.pad_token_id)
            computed += features["input_ids"].numel()
            with torch.autocast("cpu", torch.bfloat16, enabled=request["autocast"]):
                rows.append(encoder(features)["sentence_embedding"].float())
        place = torch.empty(len(sequences), dtype=torch.long)
        place[torch.tensor([i for group in groups for i in group])] = torch.arange(len(sequences))
        nodes = torch.cat(rows)[place]
        preferred, other, question = (torch.tensor([pair[k] for pair in pairs]) for k in range(3))
        weights = torch.tensor([pair[3] for pair in pairs])
        loss = (weights * pair_losses(queries[question], nodes[preferred], nodes[other], request["tau"])).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trainable, request["clipNorm"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if recorder.step(pairs=len(pairs), tokens=sum(map(len, sequences)), padded=computed, loss=loss.item()):
            break
    recorder.finish()


if __name__ == "__main__":
    main()
