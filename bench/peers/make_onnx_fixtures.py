"""Writes test/fixtures/onnx: small encoders with random weights as ONNX graphs made elsewhere, with what onnxruntime makes of them.

    python bench/peers/make_onnx_fixtures.py [--output folder [--hidden 64 --vocabulary 500]]

tiny-bert-*   the checkpoint of test/fixtures/tiny-bert/mean in the forms of export_onnx.py, so that graphs built from the checkpoint
              and imported ones can be compared
tiny-qwen3-*  one randomly initialised Qwen3: grouped-query attention, RMS norm of queries and keys, rotary positions, SwiGLU, the
              last token's state as embedding. `plain` and `dynamo` come from torch's exporters, `positions` has the input
              position_ids; `gqa` is laid out as onnxruntime-genai does (fused operators, inputs for a cache), `rotary` has
              RotaryEmbedding nodes and no cache, `q4` is `gqa` with MatMulNBits. tiny-qwen3/ holds the checkpoint itself.

Each folder's expected.json: {"texts", "ids", "embeddings"}, the embeddings pooled and normalised from the hidden states that onnxruntime
computes of the file (float32, graph optimisation off), and "difference", the largest one of those hidden states from the checkpoint's.
With --output only the decoders are written, in the size asked for.
"""

import argparse
import json
import logging
import shutil
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from decoder_graph import decoder, quantise_linear
from export_onnx import (
    FORMS,
    copy_files,
    export,
    export_dynamo,
    export_torchscript,
    feeds,
    hidden_states,
    input_names,
    load,
)
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import Qwen3Config, Qwen3Model

import onnx

FIXTURES = Path(__file__).resolve().parents[2] / "test" / "fixtures"
BLOCK = 16
TEXTS = [
    "The lighthouse keeper counted the ships.",
    "Lighthouses\nThe lamp turns once in nine seconds. Its light reaches far out.",
    "a",
    "Bees dance to tell each other where the flowers are.",
    "Salt keeps meat from spoiling because it draws the water out of it.",
    "Café, naïve: accents and CAPITALS, No. 5 at 33.33 %.",
]


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False) + "\n", encoding="utf8")


def tokenizer_files(folder, vocabulary):
    """A byte-level BPE of our own words that ends every text with <|endoftext|>, as Qwen3-Embedding's does."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|endoftext|>",
        pair="$A $B <|endoftext|>",
        special_tokens=[("<|endoftext|>", tokenizer.token_to_id("<|endoftext|>"))],
    )
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    write_json(
        folder / "tokenizer_config.json",
        dict(
            tokenizer_class="PreTrainedTokenizerFast",
            model_max_length=512,
            padding_side="right",
            pad_token="<|endoftext|>",
            eos_token="<|endoftext|>",
        ),
    )
    return tokenizer.get_vocab_size()


def qwen3_checkpoint(folder, hidden, vocabulary, head_dim=16, intermediate=None, positions=512):
    folder.mkdir(parents=True, exist_ok=True)
    config = Qwen3Config(
        vocab_size=tokenizer_files(folder, vocabulary),
        hidden_size=hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head_dim,
        intermediate_size=intermediate or 2 * hidden,
        max_position_embeddings=positions,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        initializer_range=0.25,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    torch.manual_seed(21)
    model = Qwen3Model(config).eval()
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if "norm" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [
        dict(idx=i, name=str(i), path=path, type=f"sentence_transformers.models.{kind}")
        for i, (path, kind) in enumerate(kinds)
    ]
    write_json(folder / "modules.json", modules)
    modes = ["cls_token", "mean_tokens", "max_tokens", "lasttoken"]
    flags = {f"pooling_mode_{mode}": mode == "lasttoken" for mode in modes}
    write_json(folder / "1_Pooling" / "config.json", dict(word_embedding_dimension=hidden, **flags))
    write_json(folder / "sentence_bert_config.json", dict(max_seq_length=positions // 2, do_lower_case=False))
    prompts = {"query": "find: ", "document": ""}
    write_json(folder / "config_sentence_transformers.json", dict(prompts=prompts, default_prompt_name=None))


def run(path, batch):
    """Hidden states of a padded batch; cache inputs are given an empty past."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    empty = lambda value: np.zeros([len(batch["input_ids"]), value.shape[1], 0, value.shape[3]], dtype=np.float32)
    inputs = {i.name: batch[i.name] if i.name in batch else empty(i) for i in session.get_inputs()}
    return session.run(["last_hidden_state"], inputs)[0].astype(np.float32)


def expected(folder, checkpoint, pooling):
    model, tokenizer = load(checkpoint)
    limit = json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"]
    names = input_names(model)
    batch = feeds(tokenizer, TEXTS, [*names, "position_ids"], limit)
    hidden = run(folder / "onnx" / "model.onnx", batch)
    reference = hidden_states(model, {name: batch[name] for name in names})
    mask = batch["attention_mask"]
    if pooling == "mean":
        rows = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    else:
        rows = hidden[np.arange(len(hidden)), mask.sum(1) - 1]
    rows /= np.linalg.norm(rows, axis=-1, keepdims=True)
    difference = float(np.abs((hidden - reference) * mask[..., None]).max())
    write_json(
        folder / "expected.json",
        dict(
            texts=TEXTS,
            ids=[row[: n.sum()].tolist() for row, n in zip(batch["input_ids"], mask)],
            embeddings=[[float(f"{x:.8g}") for x in row] for row in rows],
            difference=difference,
        ),
    )
    return difference


def make_bert(output):
    source = FIXTURES / "tiny-bert" / "mean"
    with tempfile.TemporaryDirectory() as work:
        plain = Path(work) / "plain.onnx"
        export_torchscript(*load(source), plain, 17)
        for form in FORMS:
            folder = output / f"tiny-bert-{form}"
            shutil.rmtree(folder, ignore_errors=True)
            export(source, form, folder, plain, block=BLOCK)
            report(folder, expected(folder, source, "mean"))


def make_qwen3(output, block, **size):
    source = output / "tiny-qwen3"
    shutil.rmtree(source, ignore_errors=True)
    qwen3_checkpoint(source, **size)
    model, tokenizer = load(source)
    fused = decoder(model)
    writers = {
        "plain": lambda path: export_torchscript(model, tokenizer, path, 17),
        "dynamo": lambda path: export_dynamo(model, tokenizer, path),
        "positions": lambda path: export_torchscript(model, tokenizer, path, 14, [*input_names(model), "position_ids"]),
        "gqa": lambda path: onnx.save(fused, path),
        "rotary": lambda path: onnx.save(decoder(model, rotary="operator", cache=False), path),
        "q4": lambda path: onnx.save(quantise_linear(fused, block), path),
    }
    for form, write in writers.items():
        folder = output / f"tiny-qwen3-{form}"
        shutil.rmtree(folder, ignore_errors=True)
        copy_files(source, folder)
        (folder / "onnx").mkdir()
        write(folder / "onnx" / "model.onnx")
        report(folder, expected(folder, source, "last"))


def report(folder, difference):
    size = (folder / "onnx" / "model.onnx").stat().st_size
    print(f"{folder.name}: {size / 1000:.0f} kB, largest difference {difference:.2g}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--vocabulary", type=int, default=500)
    args = parser.parse_args()
    if args.output:
        make_qwen3(args.output, 32, hidden=args.hidden, vocabulary=args.vocabulary)
    else:
        make_bert(FIXTURES / "onnx")
        make_qwen3(FIXTURES / "onnx", BLOCK, hidden=32, vocabulary=300, intermediate=48, positions=96)


if __name__ == "__main__":
    logging.disable(logging.INFO)
    main()
