"""The quantised forms in which some models are published: FP8 with a scale per block, and MXFP4.

Reading is written from the formats' definitions (docs/families.md) and shares nothing with writing, so
that what the fixtures expect does not depend on how their checkpoints were made.
"""

import contextlib
import json
import os
import re
import tempfile

import numpy as np
import safetensors.torch
import torch

BLOCK = 128
FP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
FP8_MATRICES = (
    r"model\.layers\.\d+\."
    r"(self_attn\.(q|q_a|q_b|kv_a|kv_b|o)_proj(_with_mqa)?|mlp\.(\w+\.)*(gate|up|down)_proj)\.weight"
)
MXFP4_MATRICES = r"model\.layers\.\d+\.mlp\.experts\.(gate_up|down)_proj"

# ------------------------------------------------------------------------------------------------------- writing


def to_fp8(name, weight, seed):
    """Blocks of 128 × 128 with a scale each, of sizes so different that no reader can mistake them."""
    rows, columns = weight.shape
    rng = np.random.default_rng([seed, rows, columns])
    scales = torch.empty(-(-rows // BLOCK), -(-columns // BLOCK))
    stored = torch.empty(rows, columns, dtype=torch.float8_e4m3fn)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            part = np.s_[i * BLOCK : (i + 1) * BLOCK, j * BLOCK : (j + 1) * BLOCK]
            room = float(rng.uniform(1, 6))  # leaves the largest codes unused in some blocks
            scales[i, j] = weight[part].abs().max() / 448 * room
            stored[part] = (weight[part] / scales[i, j]).to(torch.float8_e4m3fn)
    return {name: stored, name + "_scale_inv": scales}


def to_mxfp4(name, weight):
    """weight (experts, in, out), as transformers has it, becomes rows of outputs in blocks of 32 inputs."""
    blocks = weight.transpose(1, 2).unflatten(-1, (-1, 32))
    exponent = blocks.abs().amax(dim=-1).log2().floor() - 2
    values = torch.tensor(FP4 + [-v for v in FP4])
    scaled = blocks * (-exponent).exp2()[..., None]
    codes = (scaled[..., None] - values).abs().argmin(dim=-1).to(torch.uint8)
    return {
        name + "_blocks": codes[..., 0::2] | codes[..., 1::2] << 4,
        name + "_scales": (exponent + 127).to(torch.uint8),
    }


def in_stored_form(weights, form, seed):
    """Name → tensor, quantised where such checkpoints are."""
    stored = {}
    for name, weight in weights.items():
        if form == "fp8" and re.fullmatch(FP8_MATRICES, name):
            stored.update(to_fp8(name, weight.float(), seed))
        elif form == "mxfp4" and re.fullmatch(MXFP4_MATRICES, name):
            stored.update(to_mxfp4(name, weight.float()))
        else:
            stored[name] = weight
    return stored


# ------------------------------------------------------------------------------------------------------- reading


def e4m3(codes):
    """Bytes → float32, from the definition of the format."""
    sign = 1.0 - 2.0 * (codes >> 7)
    exponent = (codes >> 3 & 15).astype(np.int32)
    mantissa = (codes & 7).astype(np.float32)
    normal = np.ldexp(1 + mantissa / 8, exponent - 7)
    return (sign * np.where(exponent == 0, np.ldexp(mantissa, -9), normal)).astype(np.float32)


def from_fp8(weight, scales):
    values = e4m3(weight.view(torch.uint8).numpy())
    rows, columns = (np.arange(n) // BLOCK for n in values.shape)
    return torch.from_numpy(values * scales.numpy()[rows[:, None], columns[None, :]])


def from_mxfp4(blocks, scales):
    """(experts, out, in / 32, 16) and (experts, out, in / 32) → (experts, in, out) float32."""
    blocks, scales = blocks.numpy(), scales.numpy()
    values = np.empty((*blocks.shape[:-1], 32), np.float32)
    table = np.array(FP4 + [-v for v in FP4], np.float32)
    values[..., 0::2] = table[blocks & 15]
    values[..., 1::2] = table[blocks >> 4]
    values = np.ldexp(values, scales.astype(np.int32)[..., None] - 127)
    flat = values.reshape(*scales.shape[:-1], -1)
    return torch.from_numpy(np.ascontiguousarray(flat.transpose(0, 2, 1)))


def read_dequantised(directory):
    """Name → tensor under the names that transformers knows, quantised ones in float32."""
    stored = {}
    for file in sorted(os.listdir(directory)):
        if file.endswith(".safetensors"):
            stored.update(safetensors.torch.load_file(os.path.join(directory, file)))
    weights = {}
    for name, tensor in stored.items():
        if name + "_scale_inv" in stored:
            weights[name] = from_fp8(tensor, stored[name + "_scale_inv"])
        elif name.endswith("_blocks"):
            base = name.removesuffix("_blocks")
            weights[base] = from_mxfp4(tensor, stored[base + "_scales"])
        elif not name.endswith(("_scale_inv", "_scales")):
            weights[name] = tensor
    return weights


@contextlib.contextmanager
def readable(directory):
    """`directory`, or if it holds a quantised checkpoint one that holds the same weights in float32."""
    with open(os.path.join(directory, "config.json")) as file:
        config = json.load(file)
    if config.pop("quantization_config", None) is None:
        yield directory
        return
    with tempfile.TemporaryDirectory() as plain:
        with open(os.path.join(plain, "config.json"), "w") as file:
            json.dump(config, file)
        safetensors.torch.save_file(
            read_dequantised(directory), os.path.join(plain, "model.safetensors"), {"format": "pt"}
        )
        yield plain
