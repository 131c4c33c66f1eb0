"""Random Qwen3 and Qwen3-VL language models for bench/qwen3-parity.mjs: what transformers and PEFT compute of them, and how fast.

    python bench/peers/qwen3_reference.py <request.json>

A request has a `task` and an `output` folder, where result.json goes:

make   writes `<output>/encoder`, a checkpoint with random bfloat16 weights of `shape` (sizes by their names in config.json, and
       `mrope_section` for Qwen3-VL), and `<output>/expected.safetensors`, in float32: for sequences of the `lengths`, the last
       three of which hold a picture where the model reads them, `ids.<n>`, `positions.<n>` [3, tokens], `features.<n>`
       [1 + DeepStack levels, rows, hidden] (random), `at.<n>` (the picture's first token), `hidden.<n>` and `embedding.<n>`; and with a random LoRA adapter
       (`<encoder>/../adapter`, rank 16, alpha 32, q, k, v, gate, up, down) `adapted.<n>` and `gradient.<PEFT name>` of the sum of embedding ∘ `direction.<n>`
time   shortest time and shortest processor time, in seconds, of a forward pass, and of forward and backward through the adapter, over
       `batch` sequences of `length` tokens, `repeat` times each, in float32 on `threads` threads
"""

import json
import shutil
import sys
import time
from pathlib import Path

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file

TOKENIZER = Path(__file__).parents[2] / "test" / "fixtures" / "qwen3"
LORA = ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj"]
GRID = (6, 9)


def make_model(shape):
    sizes = {key: value for key, value in shape.items() if key != "mrope_section"}
    rope = {"rope_type": "default", "rope_theta": 5e6 if "mrope_section" in shape else 1e6}
    if "mrope_section" not in shape:
        config = transformers.Qwen3Config(**sizes, rope_parameters=rope, tie_word_embeddings=True)
    else:
        rope |= {"mrope_section": shape["mrope_section"], "mrope_interleaved": True}
        config = transformers.Qwen3VLConfig(
            text_config={**sizes, "rope_parameters": rope},
            vision_config={
                "depth": 3,
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_heads": 2,
                "out_hidden_size": sizes["hidden_size"],
                "num_position_embeddings": 64,
                "deepstack_visual_indexes": [0, 1, 2],
            },
            tie_word_embeddings=True,
        )
    torch.manual_seed(1)
    model = transformers.AutoModel.from_config(config, dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_(1 + 0.2 * noise)
            elif parameter.dim() > 1:
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)
    return model


def language_model(model):
    return getattr(model, "language_model", model)


def sequences(lengths, config, has_pictures):
    """Token ids, three positions, and where a picture of GRID features stands, if it does."""
    generator = torch.Generator().manual_seed(3)
    for n, length in enumerate(lengths):
        ids = torch.randint(0, config.vocab_size, (length,), generator=generator)
        positions = torch.arange(length).repeat(3, 1)
        at = None
        if has_pictures and n >= len(lengths) - 3:
            at, (height, width) = 5 + n, GRID
            rows = height * width
            grid = torch.stack(torch.meshgrid(torch.arange(1), torch.arange(height), torch.arange(width), indexing="ij"))
            positions[:, at : at + rows] = at + grid.reshape(3, -1)
            positions[:, at + rows :] += max(height, width) - rows
        yield ids, positions, at


def states(model, ids, positions, at, features):
    """Hidden states [tokens, hidden] after the final norm."""
    language = language_model(model)
    embeds = language.embed_tokens(ids[None])
    if positions is None or "mrope_section" not in language.config.rope_parameters:
        return language(inputs_embeds=embeds).last_hidden_state[0]
    pictures = {}
    if at is not None:
        is_visual = torch.zeros(1, len(ids), dtype=torch.bool)
        is_visual[0, at : at + features.shape[1]] = True
        embeds = embeds.clone()
        embeds[is_visual] = features[0]
        pictures = {"visual_pos_masks": is_visual, "deepstack_visual_embeds": list(features[1:])}
    return language(inputs_embeds=embeds, position_ids=positions[:, None], **pictures).last_hidden_state[0]


def embedding_of(hidden):
    return torch.nn.functional.normalize(hidden[-1], dim=0)


def make(request):
    output = Path(request["output"])
    encoder = output / "encoder"
    made = make_model(request["shape"])
    made.save_pretrained(encoder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOKENIZER / name, encoder / name)
    model = load(encoder)
    config = language_model(model).config
    has_pictures = "mrope_section" in config.rope_parameters
    tuned = get_peft_model(
        model,
        LoraConfig(r=16, lora_alpha=32, target_modules=rf".*layers\.\d+\..*\.({'|'.join(LORA)})", lora_dropout=0.0),
    )
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if "lora_" in name:
                scale = parameter.shape[-1] ** -0.5 * (1 if "lora_A" in name else 0.2)
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    tuned.save_pretrained(output / "adapter")
    numbers = {}
    loss = 0
    for n, (ids, positions, at) in enumerate(sequences(request["lengths"], config, has_pictures)):
        numbers |= {f"ids.{n}": ids.int(), f"positions.{n}": positions.int()}
        features = None
        if at is not None:
            features = torch.randn(4, GRID[0] * GRID[1], config.hidden_size, generator=generator)
            numbers |= {f"features.{n}": features, f"at.{n}": torch.tensor([at], dtype=torch.int32)}
        with torch.no_grad(), tuned.disable_adapter():
            hidden = states(model, ids, positions, at, features)
            numbers |= {f"hidden.{n}": hidden, f"embedding.{n}": embedding_of(hidden)}
        embedding = embedding_of(states(model, ids, positions, at, features))
        direction = torch.randn(embedding.shape, generator=generator)
        numbers |= {f"adapted.{n}": embedding.detach().clone(), f"direction.{n}": direction}
        loss = loss + (embedding * direction).sum()
    loss.backward()
    for name, parameter in tuned.named_parameters():
        if "lora_" in name:
            numbers[f"gradient.{name.replace('.default', '').removeprefix('base_model.model.')}"] = parameter.grad
    save_file({name: tensor.contiguous() for name, tensor in numbers.items()}, output / "expected.safetensors")
    versions = {name: module.__version__ for name, module in (("transformers", transformers), ("torch", torch))}
    return {"versions": versions}


def load(encoder):
    return transformers.AutoModel.from_pretrained(encoder, dtype=torch.float32, attn_implementation="sdpa").eval()


def timed(run, repeat):
    run()
    wall, processor = [], []
    for _ in range(repeat):
        began, before = time.perf_counter(), time.process_time()
        run()
        wall.append(time.perf_counter() - began)
        processor.append(time.process_time() - before)
    return {"wall": min(wall), "processor": min(processor)}


def measure(request):
    torch.set_num_threads(request["threads"])
    encoder = Path(request["encoder"])
    model = load(encoder)
    language = language_model(model)
    shape = (request["batch"], request["length"])
    ids = torch.randint(0, language.config.vocab_size, shape, generator=torch.Generator().manual_seed(5))

    def embeddings():
        hidden = language(input_ids=ids, use_cache=False).last_hidden_state[:, -1]
        return torch.nn.functional.normalize(hidden, dim=-1)

    def forward():
        with torch.no_grad():
            embeddings()

    result = {"forward": timed(forward, request["repeat"])}
    tuned = PeftModel.from_pretrained(model, encoder.parent / "adapter", is_trainable=True)

    def step():
        tuned.zero_grad()
        embeddings().sum().backward()

    return {**result, "step": timed(step, request["repeat"])}


def main():
    request = json.loads(Path(sys.argv[1]).read_text())
    result = {"make": make, "time": measure}[request["task"]](request)
    (Path(request["output"]) / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
