"""Writes test/fixtures/qwen3-variants: language models with what Qwen3's configuration allows and its released models do not use.

    python bench/peers/make_qwen3_variants.py [--output folder]

biased/   Qwen3 with a head: biases in attention's maps, one key head for all query heads, a head width of its own, an untied table,
          a large epsilon in its norms
shallow/  Qwen3-VL with as many layers as DeepStack levels, biases, a key head for each query head

Each is a checkpoint with random weights as Hugging Face saves it, without a tokenizer, and expected.safetensors, in float32: `ids`
[tokens], `positions` [3, tokens] and `hidden` [tokens, hidden], the states after the final norm as transformers computes them; for
Qwen3-VL `features` [1 + DeepStack levels, rows, hidden], random ones, and `at`, the token where they begin.
"""

import argparse
import shutil
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

FIXTURES = Path(__file__).resolve().parents[2] / "test" / "fixtures"
GRID = (2, 3)
TOKENS = 17
SIZES = {"vocab_size": 40, "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, "attention_bias": True}


def biased():
    rope = {"rope_type": "default", "rope_theta": 1e6}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 1, "head_dim": 10}
    config = transformers.Qwen3Config(**SIZES, **heads, rope_parameters=rope, rms_norm_eps=0.05)
    return transformers.Qwen3ForCausalLM(config)


def shallow():
    rope = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [3, 2, 1], "mrope_interleaved": True}
    heads = {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 12}
    vision = {"depth": 2, "hidden_size": 8, "intermediate_size": 8, "num_heads": 1, "patch_size": 2}
    config = transformers.Qwen3VLConfig(
        text_config={**SIZES, **heads, "rope_parameters": rope},
        vision_config={
            **{**vision, "num_position_embeddings": 4, "out_hidden_size": SIZES["hidden_size"]},
            "deepstack_visual_indexes": [0, 1],
        },
    )
    return transformers.Qwen3VLForConditionalGeneration(config)


def randomise(model, generator):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_(1 + 0.3 * noise)
            else:
                parameter.copy_(0.3 * noise if parameter.dim() == 1 else noise * parameter.shape[-1] ** -0.5)


def write(folder, model, seed):
    generator = torch.Generator().manual_seed(seed)
    randomise(model, generator)
    model.to(torch.bfloat16).save_pretrained(folder)
    # what generation would begin with is no part of an encoder
    (folder / "generation_config.json").unlink()
    loaded = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    language = getattr(loaded, "language_model", loaded)
    ids = torch.randint(0, SIZES["vocab_size"], (TOKENS,), generator=generator)
    positions = torch.arange(TOKENS).repeat(3, 1)
    embeds = language.embed_tokens(ids[None])
    numbers, pictures = {}, {}
    if language is not loaded:
        at, (height, width) = 4, GRID
        rows = height * width
        grid = torch.stack(torch.meshgrid(torch.arange(1), torch.arange(height), torch.arange(width), indexing="ij"))
        positions[:, at : at + rows] = at + grid.reshape(3, -1)
        positions[:, at + rows :] += max(height, width) - rows
        features = torch.randn(3, rows, SIZES["hidden_size"], generator=generator)
        is_visual = torch.zeros(1, TOKENS, dtype=torch.bool)
        is_visual[0, at : at + rows] = True
        embeds = embeds.detach().clone()
        embeds[is_visual] = features[0]
        pictures = {"visual_pos_masks": is_visual, "deepstack_visual_embeds": list(features[1:])}
        numbers = {"features": features, "at": torch.tensor([at], dtype=torch.int32)}
    with torch.no_grad():
        places = positions[0][None] if language is loaded else positions[:, None]
        hidden = language(inputs_embeds=embeds, position_ids=places, **pictures).last_hidden_state[0]
    numbers |= {"ids": ids.int(), "positions": positions.int(), "hidden": hidden.contiguous()}
    save_file(numbers, folder / "expected.safetensors")
    for file in folder.glob("*.safetensors"):
        file.chmod(0o644)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=FIXTURES / "qwen3-variants")
    args = parser.parse_args()
    for seed, make in enumerate((biased, shallow)):
        shutil.rmtree(args.output / make.__name__, ignore_errors=True)
        write(args.output / make.__name__, make(), seed)


if __name__ == "__main__":
    main()
