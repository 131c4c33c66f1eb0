"""Writes test/fixtures/tiny-bert: small random BERT encoders with what Python computes for them.

Run with the versions of requirements.txt:  python bench/peers/make_fixtures.py
The tests compare this project's graphs, tokenizer, adapters and gradients with these values. Embeddings come from
sentence-transformers, adapters from PEFT, gradients from PyTorch's autograd in double precision.
"""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from tokenizers import BertWordPieceTokenizer
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertModel

ROOT = Path(__file__).resolve().parents[2] / "test" / "fixtures" / "tiny-bert"
MAX_LENGTH = 24

TEXTS = [
    "The lighthouse keeper counted the ships.",
    "Lighthouses\nThe lamp turns once in nine seconds. Its light reaches twenty miles out to sea.",
    "Who built the old bridge over the river?",
    "The bridge was built of oak in 1792, and rebuilt in stone after the flood.",
    "Bees dance to tell each other where the flowers are; the angle of the dance points to the sun, and its length "
    "says how far away they are, so that a hive finds the best field within the hour.",
    "a",
    "Café, naïve, Ångström: accents and CAPITALS.",
    "Ο ΟΔΥΣΣΕΥΣ και 東京 and an emoji \U0001f389.",
    "The lighthouse keeper counted the ships.",
    "No. 5 is at 33.33 % (e.g. in the U.S.), isn't it?",
    "Salt keeps meat from spoiling because it draws the water out of it.",
]

# (query, preferred, other, coefficient): text 4 is longer than the limit and is cut
PAIRS = [(2, 3, 1, 0.25), (2, 3, 0, 0.125), (0, 1, 4, 0.25), (5, 4, 9, 0.125), (5, 10, 6, 0.25)]
TAU = 0.05
MARGIN = 0.1


def tokenizer_files(folder: Path) -> int:
    trainer = BertWordPieceTokenizer(lowercase=True)
    trainer.train_from_iterator(TEXTS * 3, vocab_size=300, min_frequency=1, wordpieces_prefix="##")
    trainer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, trainer.token_to_id(token)) for token in ["[CLS]", "[SEP]"]],
    )
    # settings inside tokenizer.json that sentence-transformers overrides, and so does this project
    trainer.enable_truncation(max_length=16)
    trainer.enable_padding(length=16)
    trainer.save(str(folder / "tokenizer.json"), pretty=False)
    special = dict(unk_token="[UNK]", sep_token="[SEP]", pad_token="[PAD]", cls_token="[CLS]", mask_token="[MASK]")
    write_json(
        folder / "tokenizer_config.json",
        dict(tokenizer_class="BertTokenizer", do_lower_case=True, model_max_length=512, **special),
    )
    return trainer.get_vocab_size()


def write_json(path: Path, value) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf8")


def sentence_files(folder: Path, pooling: str, normalize: bool, prompts: dict) -> None:
    kinds = ["Transformer", "Pooling"] + (["Normalize"] if normalize else [])
    paths = ["", "1_Pooling", "2_Normalize"]
    write_json(
        folder / "modules.json",
        [
            dict(idx=i, name=str(i), path=paths[i], type=f"sentence_transformers.models.{kind}")
            for i, kind in enumerate(kinds)
        ],
    )
    flags = {f"pooling_mode_{m}": m.startswith(pooling) for m in ["cls_token", "mean_tokens", "max_tokens"]}
    write_json(folder / "1_Pooling" / "config.json", dict(word_embedding_dimension=32, **flags))
    write_json(folder / "sentence_bert_config.json", dict(max_seq_length=MAX_LENGTH, do_lower_case=False))
    write_json(folder / "config_sentence_transformers.json", dict(prompts=prompts, default_prompt_name=None))


def random_bert(vocab: int, activation: str, seed: int) -> BertModel:
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=vocab,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        hidden_act=activation,
        initializer_range=0.3,
    )
    model = BertModel(config, add_pooling_layer=False).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "LayerNorm.weight" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
            elif name.endswith("bias"):
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def rows(array) -> list:
    return [[float(f"{x:.9g}") for x in row] for row in np.asarray(array, dtype=np.float64)]


def expected(folder: Path) -> dict:
    model = SentenceTransformer(str(folder), device="cpu").double()
    encoded = [model.tokenizer(t, truncation=True, max_length=model.max_seq_length)["input_ids"] for t in TEXTS]
    full = [len(model.tokenizer(t, truncation=False)["input_ids"]) for t in TEXTS]
    embed = lambda prompt: rows(model.encode(TEXTS, prompt=prompt, batch_size=3))
    return dict(
        texts=TEXTS,
        ids=encoded,
        truncated=[n > MAX_LENGTH for n in full],
        maxLength=model.max_seq_length,
        prompts=model.prompts,
        embeddings=embed(""),
        query=embed(model.prompts["query"]),
        node=embed(model.prompts.get("passage") or model.prompts["document"]),
    )


def embed_with_grad(model, encoded: list[list[int]]) -> torch.Tensor:
    """Mean pooling and L2 normalisation over padded batches, as the sentence-transformers modules do."""
    longest = max(map(len, encoded))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in encoded])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in encoded])
    hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return torch.nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1), dim=1)


def adapter_files(folder: Path, ids: list[list[int]]) -> None:
    torch.manual_seed(11)
    base = BertModel.from_pretrained(folder, add_pooling_layer=False)
    modules = ["query", "key", "value", "attention.output.dense", "intermediate.dense", "output.dense"]
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=6, target_modules=modules, lora_dropout=0.0))
    torch.manual_seed(12)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if "lora_" in name:
                parameter.copy_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder / "adapter")
    (folder / "adapter" / "README.md").unlink(missing_ok=True)
    config_file = folder / "adapter" / "adapter_config.json"
    config = json.loads(config_file.read_text())
    config["base_model_name_or_path"] = "tiny-bert"
    config["target_modules"] = sorted(config["target_modules"])
    write_json(config_file, config)

    model = PeftModel.from_pretrained(
        BertModel.from_pretrained(folder, add_pooling_layer=False), folder / "adapter", is_trainable=True
    )
    model = model.double().eval()
    with torch.no_grad(), model.disable_adapter():
        queries = embed_with_grad(model, ids)
    gradients, losses = {}, {}
    for kind in ["logistic", "hinge"]:
        model.zero_grad()
        nodes = embed_with_grad(model, ids)
        loss = 0.0
        for query, preferred, other, coefficient in PAIRS:
            d = queries[query] @ nodes[preferred] - queries[query] @ nodes[other]
            pair = torch.nn.functional.softplus(-d / TAU) if kind == "logistic" else torch.relu(MARGIN - d)
            loss = loss + coefficient * pair
        loss.backward()
        losses[kind] = loss.item()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                plain = name.removeprefix("base_model.model.").replace(".default.", ".")
                gradients[f"{kind}/{plain}"] = parameter.grad.float().contiguous()
    save_file(gradients, folder / "gradients.safetensors")
    write_json(
        folder / "adapter.json",
        dict(
            rank=4,
            alpha=6,
            embeddings=rows(nodes.detach()),
            queries=rows(queries),
            pairs=PAIRS,
            tau=TAU,
            margin=MARGIN,
            losses=losses,
        ),
    )


def main() -> None:
    shutil.rmtree(ROOT, ignore_errors=True)

    # mean pooling, normalised, erf GELU, float32, names without prefix
    folder = ROOT / "mean"
    folder.mkdir(parents=True)
    model = random_bert(tokenizer_files(folder), "gelu", seed=7)
    model.save_pretrained(folder)
    sentence_files(folder, "mean", True, {"query": "find: ", "document": ""})
    values = expected(folder)
    write_json(folder / "expected.json", values)
    adapter_files(folder, values["ids"])

    # cls pooling, not normalised, tanh GELU, float16, names with "bert.", passage prompt
    folder = ROOT / "cls"
    folder.mkdir()
    model = random_bert(tokenizer_files(folder), "gelu_new", seed=8)
    model.save_pretrained(folder)
    sentence_files(folder, "cls", False, {"query": "query: ", "passage": "passage: "})
    state = {f"bert.{k}": v.half().contiguous() for k, v in load_file(folder / "model.safetensors").items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["BertForMaskedLM"]
    config["dtype"] = "float16"
    write_json(folder / "config.json", config)
    write_json(folder / "expected.json", expected(folder))
    for file in ROOT.rglob("*.safetensors"):
        file.chmod(0o644)


if __name__ == "__main__":
    assert math.isclose(sum(p[3] for p in PAIRS), 1)
    main()
