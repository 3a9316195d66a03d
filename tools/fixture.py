"""What a golden model fixture is; the fixtures themselves are in fixtures_*.py, a file per kind of family."""

import dataclasses

import torch
import transformers


@dataclasses.dataclass(frozen=True)
class Fixture:
    name: str
    family: str
    awkward: str  # in words, copied to fixture.json
    config: dict
    without: tuple = ()  # fields of the family's base that this config.json lacks
    dtype: str = "bfloat16"  # of every stored tensor
    stored: str = ""  # "fp8" or "mxfp4": how matrices are stored that are quantised in such checkpoints
    extra: dict = dataclasses.field(default_factory=dict)  # name → shape of tensors that mean nothing
    copies: dict = dataclasses.field(default_factory=dict)  # name → name of the tensor stored once more
    drops: bool = False  # of encoder-decoders: expert_capacity is respected
    shards: int = 1
    gains: dict = dataclasses.field(default_factory=dict)  # overrides of random_checkpoint.GAINS
    # What a reader could get wrong: name → fields of config.json so changed. Each must change the logits visibly.
    bites: dict = dataclasses.field(default_factory=dict)
    seed: int = 0  # the first one tried


# Spellings of transformers 5, which writes dtype for torch_dtype and rope_parameters for rope_theta and rope_scaling.
NEW_SPELLING = ("torch_dtype", "rope_scaling")

LLAMA3 = dict(
    factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
)


def header(fixture, seed):
    """What fixture.json says of a fixture before any figure."""
    return {
        "name": fixture.name,
        "family": fixture.family,
        "awkward": fixture.awkward,
        "seed": seed,
        "stored_dtype": fixture.dtype,
        **({"quantised": fixture.stored} if fixture.stored else {}),
        "shards": fixture.shards,
        "transformers": transformers.__version__,
        "torch": torch.__version__.split("+")[0],
    }
