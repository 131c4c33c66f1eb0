"""What the training peers of `bench/training.mjs` share: their request, the encoder with LoRA, the loss, the clock.

A request is a JSON file:

    model, adapter          folders of the checkpoint and of the LoRA matrices that every contestant starts from
    queries                 safetensors with "queries" [questions, dimension]: unit embeddings of the frozen query encoder
    steps                   per optimizer step {"texts": distinct nodes, "pairs": [[preferred, other, question, weight]]};
                            the weights of a step sum to 1
    tau, learningRate, weightDecay, betas, epsilon, clipNorm
    threads, warm, limitSeconds, checkpointEvery (0: never), output
    subBatchTokens, autocast (train_nodes); tripletBatch, accumulate, order, merge, seed (train_triplets)

The answer is <output>/result.json: one entry per step {"step", "pairs", "tokens", "padded", "loss", "seconds"}, the seconds on the clock since the
first step began, "memory", the largest resident set in bytes, and "versions". Adapters are written in PEFT's format to
<output>/step-<n>, and to <output>/adapter after the last step.
"""

import argparse
import json
import resource
import time
from pathlib import Path

import peft
import sentence_transformers
import torch
import transformers
from peft import PeftModel
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer


def read_request():
    parser = argparse.ArgumentParser()
    parser.add_argument("request", type=Path)
    request = json.loads(parser.parse_args().request.read_text())
    torch.set_num_threads(request["threads"])
    torch.manual_seed(request["seed"])
    return request


def load_encoder(request):
    """The encoder without dropout, as the other contestants have none, and PEFT's hold on it: LoRA matrices, trainable, put in place."""
    encoder = SentenceTransformer(
        request["model"],
        device="cpu",
        model_kwargs={"attn_implementation": "sdpa", "dtype": torch.float32},
        config_kwargs={"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    )
    return encoder, PeftModel.from_pretrained(encoder[0].model, request["adapter"], is_trainable=True)


def load_queries(request):
    return load_file(request["queries"])["queries"]


def pair_losses(queries, preferred, other, tau):
    """softplus(-d / tau) on d = cos(query, preferred) - cos(query, other), all of unit length."""
    d = (queries * (preferred - other)).sum(-1)
    return torch.nn.functional.softplus(-d / tau)


class Recorder:
    """The clock of a run. It stands still while adapters are written."""

    def __init__(self, request, lora):
        self.request = request
        self.lora = lora
        self.steps = []
        self.seconds = 0.0
        self.since = None

    def start(self):
        self.since = time.perf_counter()

    def step(self, **counts):
        """Ends a step; True when there is to be no other."""
        now = time.perf_counter()
        self.seconds += now - self.since
        number = len(self.steps) + 1
        self.steps.append({"step": number, **counts, "seconds": self.seconds})
        every = self.request["checkpointEvery"]
        if every and number % every == 0:
            self.save(f"step-{number}")
        self.since = time.perf_counter()
        return number > self.request["warm"] and self.seconds > self.request["limitSeconds"]

    def save(self, name):
        folder = Path(self.request["output"]) / name
        self.lora.save_pretrained(folder)
        (folder / "README.md").unlink(missing_ok=True)

    def finish(self):
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self.save("adapter")
        versions = {m.__name__: m.__version__ for m in (torch, transformers, peft, sentence_transformers)}
        answer = {"steps": self.steps, "memory": memory, "versions": versions}
        (Path(self.request["output"]) / "result.json").write_text(json.dumps(answer))
