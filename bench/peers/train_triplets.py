"""Training peer: the sentence-transformers trainer with PEFT LoRA, on triplets (query, preferred, other).

    python bench/peers/train_triplets.py request.json          (see training.py)

The pairs of all steps are its data set: columns preferred and other, and as label the pair's number, by which the loss finds the query's
embedding, computed beforehand, and the pair's weight. "order" is "random", the trainer's own, or "length": batches of like length
in random order. "merge": one forward pass for both columns, padded to the longer one, as the library's own triplet loss does it;
else one for each. As many batches make an optimizer step as hold about the pairs of one of the other contestants' steps.
"""

import numpy as np
import torch
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.losses.merged_forward import embed_columns
from sentence_transformers.base.sampler import DefaultBatchSampler
from training import Recorder, load_encoder, load_queries, pair_losses, read_request
from transformers import TrainerCallback

from datasets import Dataset, disable_progress_bars


class PairLoss(torch.nn.Module):
    """Weighted mean of the pairs' losses; the weights sum to the number of pairs over the whole data set."""

    def __init__(self, model, queries, questions, weights, tau, merge):
        super().__init__()
        self.model = model
        self.queries, self.questions, self.weights = queries, questions, weights
        self.tau, self.merge = tau, merge
        self.clear()

    def clear(self):
        self.counts = {"pairs": 0, "tokens": 0, "padded": 0, "loss": 0.0}

    def forward(self, sentence_features, labels):
        features = list(sentence_features)
        embed = embed_columns(self.model, features, separate_first=False) if self.merge else None
        preferred, other = embed or [self.model(column)["sentence_embedding"] for column in features]
        losses = pair_losses(self.queries[self.questions[labels]], preferred, other, self.tau) * self.weights[labels]
        widths = [column["input_ids"].shape[1] for column in features]
        self.counts["pairs"] += len(labels)
        self.counts["tokens"] += sum(int(column["attention_mask"].sum()) for column in features)
        self.counts["padded"] += len(labels) * (2 * max(widths) if self.merge else sum(widths))
        self.counts["loss"] += losses.sum().item()
        return losses.mean()


class LengthBatchSampler(DefaultBatchSampler):
    """Batches of neighbours in order of length, in random order."""

    lengths = None

    def __iter__(self):
        order = np.argsort(self.lengths, kind="stable")
        batches = [order[i : i + self.batch_size].tolist() for i in range(0, len(order), self.batch_size)]
        for i in torch.randperm(len(batches), generator=torch.Generator().manual_seed(self.seed + self.epoch)):
            yield batches[i]

    def __len__(self):
        return -(-len(self.lengths) // self.batch_size)


class Clock(TrainerCallback):
    def __init__(self, recorder, loss):
        self.recorder, self.loss = recorder, loss

    def on_train_begin(self, *args, **kwargs):
        self.recorder.start()

    def on_step_end(self, args, state, control, **kwargs):
        counts = self.loss.counts
        counts["loss"] /= counts["pairs"]
        control.should_training_stop |= self.recorder.step(**counts)
        self.loss.clear()


def main():
    request = read_request()
    disable_progress_bars()
    encoder, lora = load_encoder(request)
    pairs = [(step["texts"], pair) for step in request["steps"] for pair in step["pairs"]]
    preferred = [texts[pair[0]] for texts, pair in pairs]
    other = [texts[pair[1]] for texts, pair in pairs]
    weights = torch.tensor([pair[3] for _, pair in pairs])
    loss = PairLoss(
        encoder,
        load_queries(request),
        torch.tensor([pair[2] for _, pair in pairs]),
        weights / weights.mean(),
        request["tau"],
        request["merge"],
    )
    if request["order"] == "length":
        limit = encoder.max_seq_length
        count = lambda texts: [
            len(ids) for ids in encoder.tokenizer(texts, truncation=True, max_length=limit)["input_ids"]
        ]
        LengthBatchSampler.lengths = np.maximum(count(preferred), count(other))
    recorder = Recorder(request, lora)
    args = SentenceTransformerTrainingArguments(
        output_dir=request["output"],
        use_cpu=True,
        max_steps=len(request["steps"]),
        per_device_train_batch_size=request["tripletBatch"],
        gradient_accumulation_steps=request["accumulate"],
        batch_sampler=LengthBatchSampler if request["order"] == "length" else "batch_sampler",
        learning_rate=request["learningRate"],
        weight_decay=request["weightDecay"],
        adam_beta1=request["betas"][0],
        adam_beta2=request["betas"][1],
        adam_epsilon=request["epsilon"],
        max_grad_norm=request["clipNorm"],
        lr_scheduler_type="constant",
        optim="adamw_torch_fused",
        dataloader_pin_memory=False,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=request["seed"],
    )
    data = Dataset.from_dict({"preferred": preferred, "other": other, "label": list(range(len(pairs)))})
    trainer = SentenceTransformerTrainer(
        model=encoder, args=args, train_dataset=data, loss=loss, callbacks=[Clock(recorder, loss)]
    )
    trainer.train()
    recorder.finish()


if __name__ == "__main__":
    main()
