"""Small random checkpoints, written as published ones are (names, spellings, shards).

What is computed from them is elsewhere. A weight depends only on the seed and on its tensor's name
and shape, but for the hints in random_weights. Names and shapes are those transformers saves, which
are checked to be the published ones.
"""

import copy
import json
import os
import re
import shutil
import tempfile
import zlib

import numpy as np
import safetensors
import safetensors.torch
import torch
import transformers

from block_formats import in_stored_form, readable
from fixture_definitions import FAMILY_BASE

# Standard deviation of (what comes out of) a tensor, given inputs of standard deviation one.
GAINS = {
    "embed": 1.0,
    "tied_embed": 2.8,  # as a head; as an embedding it gives less than one
    "norm": 0.25,  # around one
    "bias": 0.3,
    "q": 1.4,
    "k": 1.4,
    "v": 1.0,
    "o": 1.0,
    "kv_b": 1.2,
    "sinks": 1.0,
    "correction": 0.15,
    "router": 2.0,
    "shared_gate": 1.0,
    "up": 1.0,
    "down": 1.5,
    "head": 1.0,
    "successor": 14.0,
    "partner": 0.9,
}

# Names as in published checkpoints. What save_pretrained writes must match; matching also tells the tensor's kind.
TENSOR_KINDS = [
    ("embed", r"model\.embed_tokens\.weight|transformer\.wte\.weight"),
    ("head", r"lm_head\.weight"),
    ("final_norm", r"model\.norm\.weight|transformer\.norm_f\.weight"),
    ("norm", r"model\.layers\.\d+\.(input_layernorm|post_attention_layernorm)\.weight"),
    ("norm", r"model\.layers\.\d+\.self_attn\.[qk]_norm\.weight"),
    ("norm", r"model\.layers\.\d+\.self_attn\.(q|kv)_a_layernorm\.weight"),
    ("norm", r"transformer\.blocks\.\d+\.norm_attn_norm\.norm_[12]\.weight"),
    ("bias", r"model\.layers\.\d+\.self_attn\.[qkvo]_proj\.bias"),
    ("bias", r"model\.layers\.\d+\.self_attn\.(q_a_proj|kv_a_proj_with_mqa)\.bias"),
    ("bias", r"model\.layers\.\d+\.mlp\.(router\.bias|experts\.(gate_up|down)_proj_bias)"),
    ("sinks", r"model\.layers\.\d+\.self_attn\.sinks"),
    ("correction", r"model\.layers\.\d+\.mlp\.gate\.e_score_correction_bias"),
    ("q", r"model\.layers\.\d+\.self_attn\.q(_a|_b)?_proj\.weight"),
    ("k", r"model\.layers\.\d+\.self_attn\.kv_a_proj_with_mqa\.weight"),
    ("kv_b", r"model\.layers\.\d+\.self_attn\.kv_b_proj\.weight"),
    ("k", r"model\.layers\.\d+\.self_attn\.k_proj\.weight"),
    ("v", r"model\.layers\.\d+\.self_attn\.v_proj\.weight"),
    ("o", r"model\.layers\.\d+\.self_attn\.o_proj\.weight"),
    ("q", r"transformer\.blocks\.\d+\.norm_attn_norm\.attn\.Wqkv\.weight"),
    ("o", r"transformer\.blocks\.\d+\.norm_attn_norm\.attn\.out_proj\.weight"),
    ("router", r"model\.layers\.\d+\.(block_sparse_moe|mlp)\.gate\.weight"),
    ("router", r"model\.layers\.\d+\.(block_sparse_moe\.router\.layer|mlp\.router)\.weight"),
    ("router", r"transformer\.blocks\.\d+\.ffn\.router\.layer\.weight"),
    ("up", r"model\.layers\.\d+\.block_sparse_moe\.experts\.\d+\.w[13]\.weight"),
    ("down", r"model\.layers\.\d+\.block_sparse_moe\.experts\.\d+\.w2\.weight"),
    ("shared_gate", r"model\.layers\.\d+\.mlp\.shared_expert_gate\.weight"),
    ("up", r"model\.layers\.\d+\.mlp\.(experts\.\d+\.|shared_expert\.|)(gate|up)_proj\.weight"),
    ("up", r"model\.layers\.\d+\.mlp\.shared_experts\.(gate|up)_proj\.weight"),
    ("down", r"model\.layers\.\d+\.mlp\.shared_experts\.down_proj\.weight"),
    ("fused_up", r"model\.layers\.\d+\.block_sparse_moe\.input_linear\.weight"),
    ("fused_down", r"model\.layers\.\d+\.block_sparse_moe\.output_linear\.weight"),
    ("up", r"model\.layers\.\d+\.mlp\.experts\.gate_up_proj"),  # transposed: (experts, in, out)
    ("down", r"model\.layers\.\d+\.mlp\.experts\.down_proj"),
    ("down", r"model\.layers\.\d+\.mlp\.(experts\.\d+\.|shared_expert\.|)down_proj\.weight"),
    ("up", r"transformer\.blocks\.\d+\.ffn\.experts\.mlp\.[wv]1"),
    ("embed", r"shared\.weight"),
    ("final_norm", r"decoder\.final_layer_norm\.weight"),
    ("norm", r"encoder\.final_layer_norm\.weight"),
    ("norm", r"(en|de)coder\.block\.\d+\.layer\.\d\.layer_norm\.weight"),
    ("bias", r"(en|de)coder\.block\.0\.layer\.0\.SelfAttention\.relative_attention_bias\.weight"),
    ("bias", r"(en|de)coder\.block\.\d+\.layer\.\d\.mlp\.router\.classifier\.bias"),
    ("q", r"(en|de)coder\.block\.\d+\.layer\.\d\.(Self|EncDec)Attention\.q\.weight"),
    ("k", r"(en|de)coder\.block\.\d+\.layer\.\d\.(Self|EncDec)Attention\.k\.weight"),
    ("v", r"(en|de)coder\.block\.\d+\.layer\.\d\.(Self|EncDec)Attention\.v\.weight"),
    ("o", r"(en|de)coder\.block\.\d+\.layer\.\d\.(Self|EncDec)Attention\.o\.weight"),
    ("router", r"(en|de)coder\.block\.\d+\.layer\.\d\.mlp\.router\.classifier\.weight"),
    ("up", r"(en|de)coder\.block\.\d+\.layer\.\d\.mlp\.(experts\.expert_\d+\.)?wi\.weight"),
    ("down", r"(en|de)coder\.block\.\d+\.layer\.\d\.mlp\.(experts\.expert_\d+\.)?wo\.weight"),
    ("dbrx_down", r"transformer\.blocks\.\d+\.ffn\.experts\.mlp\.w2"),
]


def config_json(fixture):
    config = {k: v for k, v in FAMILY_BASE[fixture.family].items() if k not in fixture.without}
    config.update(copy.deepcopy(fixture.config))
    return dict(sorted(config.items()))


def load_config(directory):
    """The config as transformers reads it from config.json, except dbrx's RoPE base and quantisation.

    Published dbrx checkpoints give it in attn_config.rope_theta only, which transformers 5 ignores
    (and fails without). Quantised checkpoints are dequantised here (block_formats.py).
    """
    config = transformers.AutoConfig.from_pretrained(directory)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    if config.model_type == "dbrx":
        with open(os.path.join(directory, "config.json")) as file:
            stored = json.load(file)
        nested = stored.get("attn_config", {}).get("rope_theta")
        config.attn_config.rope_theta = nested
        given = {
            **stored,
            **(stored.get("rope_parameters") or {}),
            **(stored.get("rope_scaling") or {}),
        }
        if nested is not None and "rope_theta" not in given:
            config.rope_parameters["rope_theta"] = float(nested)
    return config


def model_class(config):
    if config.is_encoder_decoder:
        return transformers.AutoModelForSeq2SeqLM
    return transformers.AutoModelForCausalLM


def load_model(directory, dtype):
    config = load_config(directory)
    with readable(directory) as plain:
        model = model_class(config).from_pretrained(
            plain,
            config=config,
            dtype=dtype,
            attn_implementation="eager",
            experts_implementation="eager",
        )
    return model.eval()


def tensor_shapes(config):
    """Name → shape as transformers saves this architecture, but for copies of the embedding."""
    with tempfile.TemporaryDirectory() as directory:
        model_class(config).from_config(config).save_pretrained(directory)
        with safetensors.safe_open(os.path.join(directory, "model.safetensors"), "pt") as file:
            names = [name for name in sorted(file.keys()) if "coder.embed_tokens" not in name]
            return {name: tuple(file.get_slice(name).get_shape()) for name in names}


def tensor_kind(name):
    for kind, pattern in TENSOR_KINDS:
        if re.fullmatch(pattern, name):
            return kind
    raise ValueError(
        f"{name} is not a tensor name of a published checkpoint; convert it before saving"
    )


def random_weights(shapes, seed, gains, config):
    """Name → float32 tensor."""

    def normal(name, shape):
        return np.random.default_rng([seed, zlib.crc32(name.encode())]).standard_normal(
            shape, np.float32
        )

    weights = {}
    for name, shape in shapes.items():
        kind = tensor_kind(name)
        value = normal(name, shape)
        if kind in ("norm", "final_norm"):
            weights[name] = 1.0 + gains["norm"] * value
        elif kind == "embed" and config.tie_word_embeddings:
            weights[name] = gains["tied_embed"] / np.sqrt(shape[1]) * value
        elif kind in ("embed", "bias", "sinks", "correction"):
            weights[name] = gains[kind] * value
        elif kind == "router":  # rows of equal length, so that every expert is used
            weights[name] = gains[kind] / np.linalg.norm(value, axis=1, keepdims=True) * value
        elif kind == "dbrx_down":  # stored transposed: (experts * width, hidden)
            weights[name] = gains["down"] / np.sqrt(config.ffn_config.ffn_hidden_size) * value
        elif kind in ("fused_up", "fused_down"):  # (experts, out, in)
            weights[name] = gains[kind.removeprefix("fused_")] / np.sqrt(shape[2]) * value
        else:
            weights[name] = gains[kind] / np.sqrt(shape[1]) * value

    # A trained model is usually sure of the next token, a random one never; and one with tied
    # embeddings would repeat the token it sees. Hints make a certain token likely, so that greedy
    # continuation is the same in low precision.
    (embed,) = (weights[name] for name in shapes if tensor_kind(name) == "embed")
    if config.tie_word_embeddings:  # tokens 2i and 2i + 1 hint at each other
        (norm,) = (name for name in shapes if tensor_kind(name) == "final_norm")
        signs = np.sign(normal("signs", embed.shape[1]))
        weights[norm] *= signs
        pairs = len(embed) // 2
        own = np.sqrt(1 - gains["partner"] ** 2)
        embed[1 : 2 * pairs : 2] = (
            own * embed[1 : 2 * pairs : 2] + gains["partner"] * signs * embed[0 : 2 * pairs : 2]
        )
    else:  # token i hints at i + 1
        weights["lm_head.weight"] += gains["successor"] / embed.shape[1] * np.roll(embed, 1, axis=0)
    return {name: torch.from_numpy(weight) for name, weight in weights.items()}


def write_checkpoint(directory, weights, shards):
    names = sorted(weights)
    if shards == 1:
        safetensors.torch.save_file(
            weights, os.path.join(directory, "model.safetensors"), {"format": "pt"}
        )
        return
    total = sum(weights[name].nbytes for name in names)
    weight_map, written = {}, 0
    for name in names:
        shard = min(written * shards // total, shards - 1) + 1
        weight_map[name] = f"model-{shard:05}-of-{shards:05}.safetensors"
        written += weights[name].nbytes
    for file in sorted(set(weight_map.values())):
        part = {name: weights[name] for name in names if weight_map[name] == file}
        safetensors.torch.save_file(part, os.path.join(directory, file), {"format": "pt"})
    with open(os.path.join(directory, "model.safetensors.index.json"), "w") as file:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, file, indent=1)


def write_json(path, value):
    with open(path, "w") as file:
        json.dump(value, file, indent=2)
        file.write("\n")


def build(directory, fixture, seed):
    """Writes config.json and the weights; returns the model in float32 and in bfloat16."""
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(directory)
    write_json(os.path.join(directory, "config.json"), config_json(fixture))
    config = load_config(directory)
    weights = random_weights(tensor_shapes(config), seed, {**GAINS, **fixture.gains}, config)
    dtype = getattr(torch, fixture.dtype)
    stored = {
        name: weight if tensor_kind(name) == "correction" else weight.to(dtype)
        for name, weight in weights.items()
    }
    for name, shape in fixture.extra.items():
        stored[name] = torch.full(shape, 2.0, dtype=dtype)
    for name, source in fixture.copies.items():
        stored[name] = stored[source].clone()
    if fixture.stored:
        stored = in_stored_form(stored, fixture.stored, seed)
    write_checkpoint(directory, stored, fixture.shards)
    return load_model(directory, torch.float32), load_model(directory, torch.bfloat16)
