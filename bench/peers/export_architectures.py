"""Exports tiny encoders and decoders of ten architectures, with random weights, by both exporters of torch.onnx.

    python bench/peers/export_architectures.py --output exported

Writes <output>/<architecture>.onnx (the TorchScript exporter, opset 17) and <output>/<architecture>-dynamo.onnx (torch.export, its own opset):
inputs input_ids and attention_mask `[batch, sequence]`, output last_hidden_state `[batch, sequence, width]`. For bench/architectures.mjs.
"""

import argparse
import contextlib
import io
import logging
import warnings
from pathlib import Path

import torch
import transformers

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

BERT = dict(vocab_size=50, hidden_size=16, num_attention_heads=2, num_hidden_layers=2, intermediate_size=32, max_position_embeddings=34)
GROUPED = dict(BERT, num_key_value_heads=1)

ARCHITECTURES = {
    "albert": transformers.AlbertConfig(**BERT, embedding_size=8),
    "debertav2": transformers.DebertaV2Config(
        **BERT,
        relative_attention=True,
        position_buckets=8,
        pos_att_type=["p2c", "c2p"],
        share_att_key=True,
        norm_rel_ebd="layer_norm",
        conv_kernel_size=3,
    ),
    "distilbert": transformers.DistilBertConfig(vocab_size=50, dim=16, n_heads=2, n_layers=2, hidden_dim=32, max_position_embeddings=34),
    "gemma3": transformers.Gemma3TextConfig(**GROUPED, head_dim=8, sliding_window=8),
    "gpt2": transformers.GPT2Config(vocab_size=50, n_embd=16, n_head=2, n_layer=2, n_positions=34),
    "llama": transformers.LlamaConfig(**GROUPED),
    "modernbert": transformers.ModernBertConfig(
        **BERT, global_attn_every_n_layers=2, local_attention=8, pad_token_id=0, cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2
    ),
    "mpnet": transformers.MPNetConfig(**BERT),
    "t5": transformers.T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, feed_forward_proj="gated-gelu"),
    "xlm-roberta": transformers.XLMRobertaConfig(**BERT),
}


class HiddenStates(torch.nn.Module):
    """Token ids and mask in, last_hidden_state out."""

    def __init__(self, config):
        super().__init__()
        encoder = transformers.T5EncoderModel if config.model_type == "t5" else transformers.AutoModel.from_config
        self.model = encoder(config)
        self.options = {"use_cache": False} if config.model_type in ("gemma3_text", "gpt2", "llama") else {}

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=attention_mask, **self.options).last_hidden_state


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    names = dict(input_names=["input_ids", "attention_mask"], output_names=["last_hidden_state"])
    sizes = {0: "batch", 1: "sequence"}
    for name, config in ARCHITECTURES.items():
        torch.manual_seed(0)
        model = HiddenStates(config).eval()
        ids = torch.randint(3, 50, (2, 7))
        mask = torch.ones(2, 7, dtype=torch.long)
        mask[1, 5:] = 0
        scripted = dict(dynamo=False, opset_version=17, dynamic_axes={v: sizes for v in sum(names.values(), [])})
        symbols = {axis: torch.export.Dim(symbol) for axis, symbol in sizes.items()}
        exported = dict(dynamo=True, dynamic_shapes=(symbols, symbols), external_data=False)
        for suffix, options in (("", scripted), ("-dynamo", exported)):
            file = output / f"{name}{suffix}.onnx"
            with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                torch.onnx.export(model, (ids, mask), str(file), **names, **options)
            print(file, flush=True)


if __name__ == "__main__":
    main()
