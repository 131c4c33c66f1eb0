"""Exports an encoder checkpoint to ONNX the ways users do, as folders that transformers.js can open.

    python bench/peers/export_onnx.py --model all-MiniLM-L6-v2 --output exported [--forms plain,fused,int8] [--opset 17]

Each form becomes <output>/<name of the form>: the checkpoint's configuration and tokenizer files and onnx/model.onnx with the inputs
input_ids, attention_mask (and token_type_ids) `[batch, sequence]` and the output last_hidden_state `[batch, sequence, width]`.

plain       torch.onnx, the TorchScript exporter, as optimum uses it
opset11     the same with opset 11
dynamo      torch.onnx, the torch.export one, opset 18: other node names, other shape arithmetic
fused       onnxruntime's optimiser: EmbedLayerNormalization, Attention, SkipLayerNormalization, BiasGelu or FastGelu
fused-mha   the same with MultiHeadAttention in place of Attention
fp16        plain with float16 weights and activations, float32 outside
fused-fp16  fused in float16
int8        dynamic quantisation: DynamicQuantizeLinear, MatMulInteger; a scale per channel
fused-int8  the same after onnxruntime's optimiser: QAttention too; one scale for a matrix
qdq         static quantisation: QuantizeLinear and DequantizeLinear on weights and activations, calibrated on a few of our own words
q4          MatMulNBits, blocks of 32
given       the file of --graph, made elsewhere from the same checkpoint

Every form is run against the checkpoint; the largest difference of a hidden state and the least cosine of mean-pooled texts
are printed.
"""

import argparse
import json
import logging
import shutil
import tempfile
import warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.quantization.shape_inference import quant_pre_process
from onnxruntime.transformers import optimizer
from onnxruntime.transformers.fusion_options import FusionOptions
from transformers import AutoModel, AutoTokenizer

import onnx

FORMS = ["plain", "opset11", "dynamo", "fused", "fused-mha", "fp16", "fused-fp16", "int8", "fused-int8", "qdq", "q4"]

SAMPLE = [
    "The lighthouse keeper counted the ships.",
    "Bees dance to tell each other where the flowers are.",
    "a",
    "The old bridge was built of oak, and rebuilt in stone after the flood; nobody knows who paid for it.",
]


@contextmanager
def hidden_forward(model, names):
    """The model with tensors in, last_hidden_state out, which is what the exporters want; its modules keep their names."""
    whole = model.forward
    extra = {"use_cache": False} if hasattr(model.config, "use_cache") else {}
    model.forward = lambda *inputs: whole(**dict(zip(names, inputs)), **extra).last_hidden_state
    try:
        yield model
    finally:
        del model.forward


def load(folder):
    # eager attention: the exporters turn it into MatMul, Add and Softmax at every opset
    model = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    return model, AutoTokenizer.from_pretrained(folder)


def feeds(tokenizer, texts, names, limit=64):
    """A padded batch `[texts, longest]` of each input."""
    batch = dict(tokenizer(texts, padding=True, truncation=True, max_length=limit, return_tensors="np"))
    batch.setdefault("token_type_ids", 0 * batch["input_ids"])
    batch["position_ids"] = np.broadcast_to(np.arange(batch["input_ids"].shape[1]), batch["input_ids"].shape)
    return {name: np.array(batch[name], dtype=np.int64) for name in names}


def hidden_states(model, batch):
    """What the checkpoint computes `[texts, longest, width]`."""
    names = list(batch)
    with torch.no_grad(), hidden_forward(model, names):
        return model(*(torch.tensor(batch[name]) for name in names)).numpy()


def input_names(model):
    return ["input_ids", "attention_mask"] + (["token_type_ids"] if hasattr(model.config, "type_vocab_size") else [])


def export_graph(model, tokenizer, path, names, opset, **how):
    example = feeds(tokenizer, SAMPLE, names)
    inputs = tuple(torch.tensor(example[name]) for name in names)
    with warnings.catch_warnings(), torch.no_grad(), hidden_forward(model, names):
        warnings.simplefilter("ignore")
        outputs = ["last_hidden_state"]
        torch.onnx.export(model, inputs, str(path), input_names=names, output_names=outputs, opset_version=opset, **how)


def export_torchscript(model, tokenizer, path, opset, names=None):
    names = names or input_names(model)
    axes = {0: "batch_size", 1: "sequence_length"}
    dynamic = {name: axes for name in [*names, "last_hidden_state"]}
    export_graph(model, tokenizer, path, names, opset, dynamic_axes=dynamic, do_constant_folding=True, dynamo=False)


def export_dynamo(model, tokenizer, path, opset=18):
    names = input_names(model)
    axes = {0: torch.export.Dim("batch_size", min=1), 1: torch.export.Dim("sequence_length", min=2, max=512)}
    dynamic = (tuple(axes for _ in names),)
    export_graph(model, tokenizer, path, names, opset, dynamic_shapes=dynamic, dynamo=True, external_data=False, verbose=False)
    # where in whose Python each node came from: half the file, and full of this machine's paths
    graph = onnx.load(path)
    for node in graph.graph.node:
        kept = [entry for entry in node.metadata_props if entry.key in ("namespace", "pkg.torch.onnx.name_scopes")]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    onnx.save(graph, path)


def fuse(source, path, model, multi_head=False, half=False):
    """onnxruntime's own graph optimiser. MultiHeadAttention is made for the layouts of CUDA kernels; the operator is the same."""
    options = FusionOptions("bert")
    options.use_multi_head_attention = multi_head
    fused = optimizer.optimize_model(
        str(source),
        model_type="bert",
        num_heads=model.config.num_attention_heads,
        hidden_size=model.config.hidden_size,
        optimization_options=options,
        opt_level=0,
    )
    if half:
        fused.convert_float_to_float16(keep_io_types=True)
    fused.save_model_to_file(str(path))


def to_half(source, path):
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(source), keep_io_types=True), path)


def quantise_dynamic(source, path):
    with tempfile.TemporaryDirectory() as work:
        prepared = Path(work) / "prepared.onnx"
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        # per channel and 7 bits, as the models of transformers.js are: 8 bits saturate on processors without VNNI
        quantize_dynamic(str(prepared), str(path), weight_type=QuantType.QInt8, per_channel=True, reduce_range=True)


def quantise_fused(source, path, model):
    with tempfile.TemporaryDirectory() as work:
        fused = Path(work) / "fused.onnx"
        fuse(source, fused, model)
        # shapes behind fused operators are not inferred: all of them are float
        extra = {"DefaultTensorType": onnx.TensorProto.FLOAT, "MatMulConstBOnly": True}
        quantize_dynamic(
            str(fused),
            str(path),
            weight_type=QuantType.QInt8,
            op_types_to_quantize=["Attention", "MatMul"],
            reduce_range=True,
            extra_options=extra,
        )


class Calibration(CalibrationDataReader):
    def __init__(self, rows):
        self.rows = iter(rows)

    def get_next(self):
        return next(self.rows, None)


def quantise_static(source, path, rows):
    with tempfile.TemporaryDirectory() as work:
        prepared = Path(work) / "prepared.onnx"
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        quantize_static(
            str(prepared),
            str(path),
            Calibration(rows),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=["MatMul", "Gather"],
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
            reduce_range=True,
        )


def quantise_4bit(source, path, block):
    quantiser = MatMulNBitsQuantizer(onnx.load(source), block_size=block, is_symmetric=False)
    quantiser.process()
    quantiser.model.save_model_to_file(str(path))


def copy_files(source, target):
    """Everything of a checkpoint's folder but its weights."""
    target.mkdir(parents=True, exist_ok=True)
    for file in sorted(Path(source).rglob("*")):
        name = file.relative_to(source)
        if not file.is_file() or name.parts[0] in ("adapter", "onnx") or file.suffix not in (".json", ".txt", ".jinja"):
            continue
        if name.name in ("expected.json", "adapter.json", "data_config.json"):
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target / name)


def differences(path, model, tokenizer):
    """Largest difference of a real token's hidden state from the checkpoint's, least cosine of a mean-pooled text."""
    batch = feeds(tokenizer, SAMPLE, input_names(model))
    expected = hidden_states(model, batch)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    actual = session.run(["last_hidden_state"], {i.name: batch[i.name] for i in session.get_inputs()})[0].astype(
        np.float32
    )
    mask = batch["attention_mask"][..., None]
    a, b = ((h * mask).sum(1) / mask.sum(1) for h in (actual, expected))
    cosines = (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
    return {"difference": float(np.abs((actual - expected) * mask).max()), "cosine": float(cosines.min())}


def export(source, form, target, plain, block=32, given=None):
    """Writes one form into `target`; `plain` is the plain export of the same checkpoint, which most forms start from."""
    model, tokenizer = load(source)
    copy_files(source, target)
    path = target / "onnx" / "model.onnx"
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    match form:
        case "plain":
            shutil.copyfile(plain, path)
        case "opset11":
            export_torchscript(model, tokenizer, path, 11)
        case "dynamo":
            export_dynamo(model, tokenizer, path)
        case "fused":
            fuse(plain, path, model)
        case "fused-mha":
            fuse(plain, path, model, multi_head=True)
        case "fused-fp16":
            fuse(plain, path, model, half=True)
        case "fp16":
            to_half(plain, path)
        case "int8":
            quantise_dynamic(plain, path)
        case "fused-int8":
            quantise_fused(plain, path, model)
        case "qdq":
            names = input_names(model)
            quantise_static(plain, path, [feeds(tokenizer, [text], names) for text in SAMPLE])
        case "q4":
            quantise_4bit(plain, path, block)
        case "given":
            shutil.copyfile(given, path)
    return differences(path, model, tokenizer)


def operators(path):
    counts = {}
    for node in onnx.load(path, load_external_data=False).graph.node:
        counts[node.op_type] = counts.get(node.op_type, 0) + 1
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--prefix", default="", help="of the folders' names")
    parser.add_argument("--forms", default=",".join(FORMS))
    parser.add_argument("--opset", type=int, default=17)
    parser.add_argument("--graph", type=Path, help="file of the form given")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        plain = Path(work) / "plain.onnx"
        export_torchscript(*load(args.model), plain, args.opset)
        for form in args.forms.split(","):
            target = args.output / f"{args.prefix}{form}"
            found = export(args.model, form, target, plain, given=args.graph)
            line = {"folder": str(target), **found, "operators": operators(target / "onnx" / "model.onnx")}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    logging.disable(logging.INFO)  # the quantisers and the fuser tell every node
    main()
