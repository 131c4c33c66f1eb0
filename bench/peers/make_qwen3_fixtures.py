"""Writes test/fixtures/qwen3-vl and test/fixtures/qwen3: small encoders with random weights, and what transformers and PEFT compute of them.

    python bench/peers/make_qwen3_fixtures.py [--output folder]

qwen3-vl/  a Qwen3-VL checkpoint as Hugging Face saves it, with a byte-level BPE of our own words, Qwen's special tokens and a chat
           template of our own that writes what Qwen's writes for a system and a user turn; pictures/ (synthetic)
qwen3/     a Qwen3 checkpoint with the same tokenizer, every text ending in <|endoftext|>

expected.json holds the inputs, token ids, positions, grids; expected.safetensors the numbers, by the inputs' names: `<name>.pixels`
(uint8 before normalisation, in patch order, every `pixelStride`-th patch), `<name>.features.<level>` (level 0 merged, then DeepStack), `<name>.hidden`, `<name>.embedding`, and with the adapter in adapter/
`<name>.adapted`; `gradient.<PEFT name>` is the gradient of the sum over inputs of embedding · `direction.<name>`.

Inputs are made as the released Qwen3-VL-Embedding code makes them (QwenLM/Qwen3-VL-Embedding, qwen3_vl_embedding.py): system turn with
the instruction, user turn with video, pictures, text; pixels resized by qwen_vl_utils; but a video's frames carry their times.
"""

import argparse
import json
import shutil
from pathlib import Path

import numpy as np
import torch
import transformers
from peft import LoraConfig, get_peft_model
from PIL import Image
from qwen_vl_utils import process_vision_info
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

FIXTURES = Path(__file__).resolve().parents[2] / "test" / "fixtures"
SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
WORDS = [
    "The lighthouse keeper counted the ships that passed in the night.",
    "Lighthouses\nThe lamp turns once in nine seconds. Its light reaches far out.",
    "Bees dance to tell each other where the flowers are.",
    "Salt keeps meat from spoiling because it draws the water out of it.",
    "Café, naïve: accents and CAPITALS, No. 5 at 33.33 %.",
    "Represent the user's input. system user assistant NULL seconds",
    "| Town | Bridge | Built |\n| --- | --- | --- |\n| Orrin | Long Bridge | 1871 |\n| Velm | Stone Arch | 1790 |\n",
]
TEMPLATE = """{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' -}}
{%- if message.content is string -%}{{- message.content -}}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
{%- elif part.type == 'video' -%}{{- '<|vision_start|><|video_pad|><|vision_end|>' -}}
{%- else -%}{{- part.text -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""

FACTOR = 32
MIN_PIXELS = 4 * FACTOR * FACTOR
MAX_PIXELS = 1800 * FACTOR * FACTOR
TOTAL_PIXELS = 10 * 768 * FACTOR * FACTOR
VIDEO_STRIDE = 8
INSTRUCTION = "Represent the user's input."

TEXT = dict(
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    rms_norm_eps=1e-6,
    max_position_embeddings=4096,
    initializer_range=0.08,
    pad_token_id=0,
)
LORA = ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj"]


def write_json(path, value, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False, **options) + "\n", encoding="utf8")


def write_tokenizer(folder, ends_texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=480, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    # as Qwen2Tokenizer sets them up
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(WORDS * 3, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    if ends_texts:
        end = tokenizer.token_to_id("<|endoftext|>")
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$A <|endoftext|>", pair="$A $B <|endoftext|>", special_tokens=[("<|endoftext|>", end)]
        )
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "Qwen2Tokenizer",
            "model_max_length": 4096,
            "padding_side": "right",
            "pad_token": "<|endoftext|>",
            "eos_token": "<|im_end|>" if not ends_texts else "<|endoftext|>",
            "additional_special_tokens": SPECIAL[1:],
            "clean_up_tokenization_spaces": False,
        },
    )
    return {token: tokenizer.token_to_id(token) for token in SPECIAL}, tokenizer.get_vocab_size()


def picture(width, height, seed):
    """A synthetic picture: two waves and some noise."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    channels = [
        127 + 90 * np.sin(x / (5 + 2 * c + seed)) + 30 * np.cos(y / (7 + c)) + random.normal(0, 6, (height, width))
        for c in range(3)
    ]
    return Image.fromarray(np.clip(np.stack(channels, 2), 0, 255).astype(np.uint8))


def randomise(model, seed):
    """Weights large enough that every part shows in the output; norms away from 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name and name.endswith("weight"):
                parameter.copy_(1 + 0.2 * torch.randn(parameter.shape, generator=generator))
            elif parameter.dim() == 1:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
            else:
                parameter.copy_(parameter.shape[-1] ** -0.5 * 1.3 * torch.randn(parameter.shape, generator=generator))
            # half of the digits are enough, and make small files smaller
            parameter.copy_(parameter.to(torch.bfloat16).to(torch.float32))


def adapter(model, folder, pattern):
    """PEFT's LoRA over the language model with both matrices away from zero, saved."""
    config = LoraConfig(r=4, lora_alpha=8, target_modules=pattern, lora_dropout=0.0, bias="none")
    tuned = get_peft_model(model, config)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    # the fixture does not say where it was made
    tuned.peft_config["default"].base_model_name_or_path = folder.parent.name
    tuned.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    return tuned


def conversation(entry, folder):
    content = []
    if "frames" in entry:
        frames = [Image.open(folder / f) for f in entry["frames"]]
        content.append({"type": "video", "video": frames, "total_pixels": TOTAL_PIXELS})
    for name in entry.get("images", []):
        content.append(
            {"type": "image", "image": Image.open(folder / name), "min_pixels": MIN_PIXELS, "max_pixels": MAX_PIXELS}
        )
    if entry["text"]:
        content.append({"type": "text", "text": entry["text"]})
    if not content:
        content.append({"type": "text", "text": "NULL"})
    instruction = entry.get("instruction", INSTRUCTION)
    return [
        {"role": "system", "content": [{"type": "text", "text": instruction}]},
        {"role": "user", "content": content},
    ]


def processed(processor, entry, folder):
    chat = conversation(entry, folder)
    text = processor.apply_chat_template([chat], add_generation_prompt=True, tokenize=False)
    images, videos, options = process_vision_info(
        [chat], image_patch_size=16, return_video_metadata=True, return_video_kwargs=True
    )
    metadata = None
    if videos is not None:
        videos, metadata = map(list, zip(*videos))
        times = [t - entry["start"] for t in entry["times"]]
        times += [times[-1]] * (len(times) % 2)
        metadata[0] = {**metadata[0], "fps": 1000.0, "frames_indices": times, "total_num_frames": max(times) + 1}
    return processor(
        text=text,
        images=images,
        videos=videos,
        video_metadata=metadata,
        do_resize=False,
        padding=True,
        return_tensors="pt",
        **options,
    )


def vision_language(folder):
    folder.mkdir(parents=True)
    ids, vocabulary = write_tokenizer(folder, ends_texts=False)
    write_json(
        folder / "preprocessor_config.json",
        {
            "size": {"shortest_edge": 65536, "longest_edge": 16777216},
            "patch_size": 16,
            "temporal_patch_size": 2,
            "merge_size": 2,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "processor_class": "Qwen3VLProcessor",
            "image_processor_type": "Qwen2VLImageProcessorFast",
        },
    )
    write_json(
        folder / "video_preprocessor_config.json",
        {
            "size": {"shortest_edge": 4096, "longest_edge": 25165824},
            "patch_size": 16,
            "temporal_patch_size": 2,
            "merge_size": 2,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "processor_class": "Qwen3VLProcessor",
            "video_processor_type": "Qwen3VLVideoProcessor",
        },
    )
    write_json(folder / "chat_template.json", {"chat_template": TEMPLATE})
    config = transformers.Qwen3VLConfig(
        text_config={
            **TEXT,
            "vocab_size": vocabulary,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True},
        },
        vision_config=dict(
            depth=4,
            hidden_size=32,
            intermediate_size=48,
            num_heads=2,
            out_hidden_size=64,
            num_position_embeddings=64,
            deepstack_visual_indexes=[0, 1, 2],
            initializer_range=0.08,
        ),
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    whole = transformers.Qwen3VLForConditionalGeneration(config).eval()
    randomise(whole, 3)
    whole.to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)

    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    processor = transformers.AutoProcessor.from_pretrained(folder)

    pictures = {
        "wide.png": picture(100, 70, 1),
        "tall.png": picture(50, 90, 2),
        **{f"frame{i}.png": picture(96, 64, 10 + i) for i in range(3)},
    }
    (folder / "pictures").mkdir()
    for name, image in pictures.items():
        image.save(folder / "pictures" / name, optimize=True)
    entries = {
        "text": {"text": WORDS[1]},
        "question": {"text": "Who counted the ships?", "instruction": "Find the passage that answers the question."},
        "empty": {"text": ""},
        "image": {"text": "", "images": ["wide.png"]},
        "titled": {"text": "The long bridge at Orrin", "images": ["tall.png"]},
        "images": {"text": "Two pictures.", "images": ["wide.png", "tall.png"]},
        "video": {
            "text": "Ships in the night",
            "frames": [f"frame{i}.png" for i in range(3)],
            "times": [30000, 40000, 50000],
            "start": 30000,
        },
    }
    expected, numbers, batch = {}, {}, {}
    for name, entry in entries.items():
        inputs = processed(processor, entry, folder / "pictures")
        batch[name] = inputs
        ids_ = inputs["input_ids"][0]
        expected[name] = {**entry, "ids": ids_.tolist()}
        positions, _ = model.get_rope_index(
            inputs["input_ids"],
            mm_token_type_ids=inputs["mm_token_type_ids"],
            image_grid_thw=inputs.get("image_grid_thw"),
            video_grid_thw=inputs.get("video_grid_thw"),
            attention_mask=inputs["attention_mask"],
        )
        expected[name]["positions"] = positions[:, 0].tolist()
        for kind, pixels in (("image", "pixel_values"), ("video", "pixel_values_videos")):
            if pixels not in inputs:
                continue
            expected[name]["grids"] = inputs[f"{kind}_grid_thw"].tolist()
            stride = VIDEO_STRIDE if kind == "video" else 1
            expected[name]["pixelStride"] = stride
            numbers[f"{name}.pixels"] = torch.round((inputs[pixels][::stride] + 1) * 127.5).to(torch.uint8)
            with torch.no_grad():
                found = model.visual(inputs[pixels], grid_thw=inputs[f"{kind}_grid_thw"])
            for level, features in enumerate([found.pooler_output, *found.deepstack_features]):
                numbers[f"{name}.features.{level}"] = features.contiguous()
        with torch.no_grad():
            hidden = model(**inputs).last_hidden_state[0]
        numbers[f"{name}.hidden"] = hidden.contiguous()
        numbers[f"{name}.embedding"] = torch.nn.functional.normalize(hidden[-1], dim=0)
    pattern = rf".*language_model.*\.({'|'.join(LORA)})"
    with_adapter(model, folder, pattern, {name: dict(inputs) for name, inputs in batch.items()}, numbers)
    finish(folder, expected, numbers)


def text_only(folder):
    folder.mkdir(parents=True)
    ids, vocabulary = write_tokenizer(folder, ends_texts=True)
    config = transformers.Qwen3Config(
        **{**TEXT, "pad_token_id": ids["<|endoftext|>"]},
        vocab_size=vocabulary,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        eos_token_id=ids["<|endoftext|>"],
    )
    torch.manual_seed(0)
    model = transformers.Qwen3Model(config).eval()
    randomise(model, 4)
    model.to(torch.bfloat16).save_pretrained(folder)
    st = "sentence_transformers.models"
    write_json(
        folder / "modules.json",
        [
            {"idx": 0, "name": "0", "path": "", "type": f"{st}.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{st}.Pooling"},
            {"idx": 2, "name": "2", "path": "2_Normalize", "type": f"{st}.Normalize"},
        ],
    )
    write_json(
        folder / "1_Pooling" / "config.json",
        {"word_embedding_dimension": TEXT["hidden_size"], "pooling_mode_lasttoken": True, "include_prompt": True},
    )
    prompt = "Instruct: Find the passage that answers the question.\nQuery:"
    write_json(
        folder / "config_sentence_transformers.json",
        {"prompts": {"query": prompt, "document": ""}, "default_prompt_name": None, "similarity_fn_name": "cosine"},
    )
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    entries = {
        "text": {"text": WORDS[1], "side": "node"},
        "short": {"text": "a", "side": "node"},
        "accents": {"text": WORDS[4], "side": "node"},
        "table": {"text": WORDS[6], "side": "node"},
        "question": {"text": "Who counted the ships?", "side": "query"},
    }
    expected, numbers, batch = {}, {}, {}
    for name, entry in entries.items():
        text = (prompt if entry["side"] == "query" else "") + entry["text"]
        inputs = {"input_ids": torch.tensor([tokenizer(text)["input_ids"]])}
        batch[name] = inputs
        expected[name] = {**entry, "ids": inputs["input_ids"][0].tolist()}
        with torch.no_grad():
            hidden = model(**inputs).last_hidden_state[0]
        numbers[f"{name}.hidden"] = hidden.contiguous()
        numbers[f"{name}.embedding"] = torch.nn.functional.normalize(hidden[-1], dim=0)
    with_adapter(model, folder, LORA, batch, numbers)
    finish(folder, expected, numbers)


def with_adapter(model, folder, pattern, batch, numbers):
    """Embeddings under a LoRA adapter, and the gradients of its matrices."""
    tuned = adapter(model, folder / "adapter", pattern)
    generator = torch.Generator().manual_seed(11)
    loss = 0
    for name, inputs in batch.items():
        hidden = tuned(**inputs).last_hidden_state[0]
        embedding = torch.nn.functional.normalize(hidden[-1], dim=0)
        numbers[f"{name}.adapted"] = embedding.detach().clone()
        direction = torch.randn(embedding.shape, generator=generator)
        numbers[f"direction.{name}"] = direction
        loss = loss + (embedding * direction).sum()
    loss.backward()
    for name, parameter in tuned.named_parameters():
        if "lora_" in name:
            numbers[f"gradient.{name.replace('.default', '')}"] = parameter.grad.clone()


def finish(folder, expected, numbers):
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    write_json(folder / "expected.json", {"versions": versions, "inputs": expected})
    save_file(numbers, folder / "expected.safetensors")
    for file in folder.rglob("*.safetensors"):
        file.chmod(0o644)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=FIXTURES)
    args = parser.parse_args()
    for name, make in (("qwen3-vl", vision_language), ("qwen3", text_only)):
        shutil.rmtree(args.output / name, ignore_errors=True)
        make(args.output / name)


if __name__ == "__main__":
    main()
