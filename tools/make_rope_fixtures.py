#!/usr/bin/env python3
"""Makes tests/golden/rope.json: inverse frequencies of rotary embeddings as transformers computes them.

    pip install -r tools/requirements.txt
    python tools/make_rope_fixtures.py > tests/golden/rope.json

Each case has the fields of a configuration, the length of the sequence, the frequencies (float32) and the factor of the
attention. Of the dynamic kind only cases where the exponent's precision decides about the base, beyond the trained length.
"""

import json
import random

import numpy
import torch
from transformers import MixtralConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.mixtral.modeling_mixtral import MixtralRotaryEmbedding


def frequencies(rope, head_dim, max_positions, length):
    config = MixtralConfig(head_dim=head_dim, max_position_embeddings=max_positions, rope_parameters=dict(rope))
    if rope["rope_type"] == "default":
        values, factor = MixtralRotaryEmbedding.compute_default_rope_parameters(config)
    else:
        # As dynamic_rope_update does: the length is a tensor.
        values, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu", seq_len=torch.tensor(length))
    return values.to(torch.float32), float(factor)


def rounding_decides(rope, head_dim, max_positions, length):
    stretch = float(rope["factor"] * torch.tensor(length) / max_positions - (rope["factor"] - 1))
    exponent = head_dim / (head_dim - 2)
    double, single = (numpy.float32(stretch**e) for e in (exponent, float(numpy.float32(exponent))))
    return double != single


def random_rope(rng, kind):
    rope = {"rope_type": kind, "rope_theta": rng.choice([1e4, 5e5, 1e6, 150000.0, 12345.5])}
    if kind != "default":
        rope["factor"] = rng.choice([1.0, 1.5, 2.0, 3.7, 4.0, 8.0, 40.0])
    if kind == "llama3":
        low = rng.choice([1.0, 0.5, 2.0])
        rope |= {"low_freq_factor": low, "high_freq_factor": low * rng.choice([2.0, 4.0]),
                 "original_max_position_embeddings": rng.choice([128, 4096, 8192])}  # fmt: skip
    if kind == "yarn":
        optional = {"beta_fast": 16, "beta_slow": 2, "truncate": False, "attention_factor": 1.25, "mscale": 0.707,
                    "mscale_all_dim": 1.3}  # fmt: skip
        rope |= {name: value for name, value in optional.items() if rng.random() < 0.3}
        rope["original_max_position_embeddings"] = rng.choice([64, 1024, 4096])
    return rope


def main():
    rng = random.Random(5)
    cases = []
    for kind, count in [("default", 4), ("linear", 6), ("dynamic", 24), ("llama3", 12), ("yarn", 20)]:
        while count > 0:
            rope, head_dim = random_rope(rng, kind), rng.choice([16, 32, 64, 80, 96, 128])
            max_positions = rng.choice([64, 512, 2048, 4096])
            length = rng.randint(1, max(2, int(max_positions * rope.get("factor", 2))))
            if kind == "dynamic" and not (length > max_positions and rounding_decides(rope, head_dim, max_positions, length)):
                continue
            values, factor = frequencies(rope, head_dim, max_positions, length)
            cases.append({"rope": rope, "head_dim": head_dim, "max_positions": max_positions, "length": length,
                          "attention_factor": factor, "frequencies": [float(str(v)) for v in values.numpy()]})  # fmt: skip
            count -= 1
    print("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]")


if __name__ == "__main__":
    main()
