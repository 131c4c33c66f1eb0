"""The graph of a Qwen3 decoder as onnxruntime-genai's model builder lays it out, assembled node by node from a checkpoint.

There is no exporter to GroupQueryAttention without a cache among the peers' packages, so the tests' graph is built here and compared
with the model in `make_onnx_fixtures.py`. Names of nodes and initializers follow the model builder's.
"""

import numpy as np
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

from onnx import TensorProto, helper, numpy_helper

MICROSOFT = "com.microsoft"


class GraphWriter:
    """Collects nodes and initializers; every method returns the name of its first output."""

    def __init__(self):
        self.nodes = []
        self.initializers = []

    def constant(self, name, array):
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def add(self, op, inputs, name, outputs=1, domain="", **attributes):
        names = [f"{name}/output_{i}" for i in range(outputs)] if isinstance(outputs, int) else outputs
        self.nodes.append(helper.make_node(op, inputs, names, name=name, domain=domain, **attributes))
        return names[0]


def decoder(model, rotary="attention", cache=True):
    """A Qwen3Model as GroupQueryAttention, SimplifiedLayerNormalization and SkipSimplifiedLayerNormalization.

    rotary     "attention": GroupQueryAttention turns queries and keys itself (do_rotary); "operator": RotaryEmbedding nodes do,
               at the input position_ids
    cache      whether the graph has the inputs past_key_values.* `[batch, kv heads, past, head size]` and the outputs present.*
    """
    config = model.config
    weights = {name: tensor.detach().float().numpy() for name, tensor in model.state_dict().items()}
    heads, kv_heads, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    epsilon = config.rms_norm_eps
    g = GraphWriter()

    def linear(x, module):
        return g.add(
            "MatMul",
            [x, g.constant(f"model.{module}.MatMul.weight", weights[f"{module}.weight"].T)],
            path(module) + "/MatMul",
        )

    def path(module):
        return "/model/" + module.replace(".", "/").replace("layers/", "layers.")

    def norm(x, module):
        weight = g.constant(f"model.{module}.layernorm.weight", weights[f"{module}.weight"])
        return g.add(
            "SimplifiedLayerNormalization",
            [x, weight],
            path(module) + "/LayerNorm",
            axis=-1,
            epsilon=epsilon,
            stash_type=1,
        )

    def skip_norm(x, residual, module, output=None):
        """(normalised sum, sum)"""
        weight = g.constant(f"model.{module}.layernorm.weight", weights[f"{module}.weight"])
        name = path(module) + "/SkipLayerNorm"
        outputs = [output] if output else [f"{name}/output_0", "", "", f"{name}/output_3"]
        g.add(
            "SkipSimplifiedLayerNormalization", [residual, x, weight], name, outputs, domain=MICROSOFT, epsilon=epsilon
        )
        return outputs[0], outputs[-1]

    def head_norm(x, module, count):
        """RMS norm of each head: [batch, seq, heads·size] as [batch, seq·heads, size] and back."""
        base = path(module)
        split = g.add(
            "Reshape", [x, g.constant(f"{base}/split", np.array([0, -1, size], dtype=np.int64))], f"{base}/Reshape_1"
        )
        weight = g.constant(f"model.{module}.layernorm.weight", weights[f"{module}.weight"])
        y = g.add(
            "SimplifiedLayerNormalization",
            [split, weight],
            f"{base}/SimplifiedLayerNormalization",
            axis=-1,
            epsilon=epsilon,
            stash_type=1,
        )
        joined = g.constant(f"{base}/join", np.array([0, -1, count * size], dtype=np.int64))
        return g.add("Reshape", [y, joined], f"{base}/Reshape_2")

    # cos and sin of position · base^(-2i/size): [positions, size/2]
    base = config.rope_parameters["rope_theta"]
    angles = np.outer(np.arange(config.max_position_embeddings), base ** -(np.arange(0, size, 2) / size))
    cos = g.constant("cos_cache", np.cos(angles).astype(np.float32))
    sin = g.constant("sin_cache", np.sin(angles).astype(np.float32))

    # seqlens_k: keys of each row, less one; total_sequence_length: of the longest
    mask = "/model/attn_mask_reformat"
    one = g.constant(f"{mask}/one", np.array([1], dtype=np.int64))
    total = g.add("ReduceSum", ["attention_mask", one], f"{mask}/ReduceSum", keepdims=0)
    less = g.add("Sub", [total, one], f"{mask}/Sub")
    lengths = g.add("Cast", [less], f"{mask}/Sub/Cast", to=TensorProto.INT32)
    shape = g.add("Shape", ["attention_mask"], f"{mask}/Shape")
    longest = g.add(
        "Gather", [shape, g.constant(f"{mask}/axis", np.array(1, dtype=np.int64))], f"{mask}/Gather", axis=0
    )
    longest = g.add("Cast", [longest], f"{mask}/Gather/Cast", to=TensorProto.INT32)

    table = g.constant("model.embed_tokens.weight", weights["embed_tokens.weight"])
    residual = g.add("Gather", [table, "input_ids"], "/model/embed_tokens/Gather", axis=0)
    x = norm(residual, "layers.0.input_layernorm")
    for i in range(config.num_hidden_layers):
        attention = f"layers.{i}.self_attn"
        query = head_norm(linear(x, f"{attention}.q_proj"), f"{attention}.q_norm", heads)
        key = head_norm(linear(x, f"{attention}.k_proj"), f"{attention}.k_norm", kv_heads)
        value = linear(x, f"{attention}.v_proj")
        if rotary == "operator":
            turn = lambda y, name, count: g.add(
                "RotaryEmbedding",
                [y, "position_ids", cos, sin],
                f"{path(attention)}/{name}/RotaryEmbedding",
                domain=MICROSOFT,
                num_heads=count,
                rotary_embedding_dim=0,
                interleaved=0,
            )
            query, key = turn(query, "q_rotary", heads), turn(key, "k_rotary", kv_heads)
        past = [f"past_key_values.{i}.key", f"past_key_values.{i}.value"] if cache else ["", ""]
        name = f"{path(attention)}/GroupQueryAttention"
        outputs = [f"{name}/output_0"] + ([f"present.{i}.key", f"present.{i}.value"] if cache else [])
        mixed = g.add(
            "GroupQueryAttention",
            [query, key, value, *past, lengths, longest] + ([cos, sin] if rotary == "attention" else []),
            name,
            outputs if cache else [*outputs, f"{name}/output_1", f"{name}/output_2"],
            domain=MICROSOFT,
            num_heads=heads,
            kv_num_heads=kv_heads,
            scale=float(size**-0.5),
            do_rotary=int(rotary == "attention"),
            rotary_interleaved=0,
        )
        x, residual = skip_norm(linear(mixed, f"{attention}.o_proj"), residual, f"layers.{i}.post_attention_layernorm")
        gate = linear(x, f"layers.{i}.mlp.gate_proj")
        up = linear(x, f"layers.{i}.mlp.up_proj")
        act = f"/model/layers.{i}/mlp/act_fn"
        silu = g.add("Mul", [gate, g.add("Sigmoid", [gate], f"{act}/Sigmoid")], f"{act}/Mul")
        mlp = linear(g.add("Mul", [silu, up], f"/model/layers.{i}/mlp/Mul"), f"layers.{i}.mlp.down_proj")
        if i + 1 < config.num_hidden_layers:
            x, residual = skip_norm(mlp, residual, f"layers.{i + 1}.input_layernorm")
        else:
            skip_norm(mlp, residual, "norm", output="last_hidden_state")

    tokens = ["batch_size", "sequence_length"]
    cached = lambda length: ["batch_size", kv_heads, length, size]
    layers = range(config.num_hidden_layers) if cache else []
    integer = lambda name, dims: helper.make_tensor_value_info(name, TensorProto.INT64, dims)
    real = lambda name, dims: helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
    kinds = ["key", "value"]
    graph = helper.make_graph(
        g.nodes,
        "main_graph",
        [
            integer("input_ids", tokens),
            integer("attention_mask", ["batch_size", "total_sequence_length" if cache else tokens[1]]),
        ]
        + ([integer("position_ids", tokens)] if rotary == "operator" else [])
        + [real(f"past_key_values.{i}.{kind}", cached("past_sequence_length")) for i in layers for kind in kinds],
        [real("last_hidden_state", [*tokens, config.hidden_size])]
        + [real(f"present.{i}.{kind}", cached("total_sequence_length")) for i in layers for kind in kinds],
        g.initializers,
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)], ir_version=10
    )


def quantise_linear(model, block):
    """Every MatMul with a weight as MatMulNBits."""
    quantiser = MatMulNBitsQuantizer(model, block_size=block, is_symmetric=True)
    quantiser.process()
    return quantiser.model.model
