"""The golden model fixtures as data: small random checkpoints that together are awkward in every way.

What is done with them is in make_fixtures.py. A fixture's config.json is its family's base below,
updated with `config` and relieved of the fields in `without`. Spellings (rope_theta / rope_scaling /
rope_parameters, torch_dtype / dtype, num_experts / num_local_experts) are written as given, because
reading them is part of what is tested.
"""

import dataclasses

FAMILY_BASE = {
    "mixtral": {
        "architectures": ["MixtralForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": 4096,
        "model_type": "mixtral",
        "output_router_logits": False,
        "rms_norm_eps": 1e-05,
        "router_aux_loss_coef": 0.02,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.36.0.dev0",
        "use_cache": True,
    },
    "qwen2_moe": {
        "architectures": ["Qwen2MoeForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "decoder_sparse_step": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": 8192,
        "max_window_layers": 28,
        "model_type": "qwen2_moe",
        "norm_topk_prob": False,
        "output_router_logits": False,
        "rms_norm_eps": 1e-06,
        "router_aux_loss_coef": 0.001,
        "sliding_window": 8192,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.40.1",
        "use_cache": True,
        "use_sliding_window": False,
    },
    "qwen3_moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "decoder_sparse_step": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": 4096,
        "max_window_layers": 48,
        "mlp_only_layers": [],
        "model_type": "qwen3_moe",
        "norm_topk_prob": True,
        "output_router_logits": False,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "router_aux_loss_coef": 0.001,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.51.0",
        "use_cache": True,
        "use_sliding_window": False,
    },
    "olmoe": {
        "architectures": ["OlmoeForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "clip_qkv": None,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": 4096,
        "model_type": "olmoe",
        "norm_topk_prob": False,
        "output_router_logits": False,
        "pad_token_id": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "router_aux_loss_coef": 0.01,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.47.1",
        "use_cache": False,
    },
    "dbrx": {
        "architectures": ["DbrxForCausalLM"],
        "emb_pdrop": 0.0,
        "initializer_range": 0.02,
        "max_seq_len": 4096,
        "model_type": "dbrx",
        "output_router_logits": False,
        "resid_pdrop": 0.0,
        "router_aux_loss_coef": 0.05,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.38.2",
        "use_cache": True,
    },
}


@dataclasses.dataclass(frozen=True)
class Fixture:
    name: str
    family: str
    awkward: str  # in words, copied to fixture.json
    config: dict
    without: tuple = ()  # fields of the family's base that this config.json lacks
    dtype: str = "bfloat16"  # of every stored tensor
    shards: int = 1
    gains: dict = dataclasses.field(default_factory=dict)  # overrides of make_fixtures.GAINS
    # What a reader could get wrong: name → fields of config.json so changed. Each must change the logits visibly.
    bites: dict = dataclasses.field(default_factory=dict)
    seed: int = 0  # the first one tried


# Spellings of transformers 5, which writes dtype for torch_dtype and rope_parameters for rope_theta and rope_scaling.
NEW_SPELLING = ("torch_dtype", "rope_scaling")

LLAMA3 = dict(
    factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
)

FIXTURES = [
    Fixture(
        name="olmoe_plain",
        family="olmoe",
        awkward="The plain case: multi-head attention, unnormalised top-2 of 8, old RoPE spelling, "
        "one file.",
        config=dict(
            hidden_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            intermediate_size=32,
            num_experts=8,
            num_experts_per_tok=2,
            vocab_size=128,
            rope_theta=10000.0,
        ),
        bites={
            "weights normalised": dict(norm_topk_prob=True),
            "other base": dict(rope_theta=5000.0),
        },
        seed=5,
    ),
    Fixture(
        name="olmoe_clip",
        family="olmoe",
        awkward="clip_qkv that clips, norms over grouped-query projections, biases on q, k, v and o, "
        "normalised top-3 of 5, expert width 37, tied embeddings, vocabulary 101, linear RoPE "
        "in the new spelling.",
        config=dict(
            hidden_size=60,
            num_hidden_layers=2,
            num_attention_heads=6,
            num_key_value_heads=2,
            intermediate_size=37,
            num_experts=5,
            num_experts_per_tok=3,
            norm_topk_prob=True,
            vocab_size=101,
            attention_bias=True,
            clip_qkv=0.9,
            tie_word_embeddings=True,
            dtype="bfloat16",
            rope_parameters=dict(rope_type="linear", factor=2.5, rope_theta=10000.0),
            transformers_version="5.23.0",
        ),
        without=NEW_SPELLING,
        gains=dict(bias=0.15),
        bites={
            "not clipped": dict(clip_qkv=None),
            "not normalised": dict(norm_topk_prob=False),
            "not scaled": dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
        },
    ),
    Fixture(
        name="olmoe_yarn",
        family="olmoe",
        awkward="YaRN with mscale, mscale_all_dim, beta_fast and beta_slow in the new spelling, top-8 "
        "of 16, expert width 14, head_dim 20, stored in F16.",
        config=dict(
            hidden_size=40,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            intermediate_size=14,
            num_experts=16,
            num_experts_per_tok=8,
            vocab_size=113,
            max_position_embeddings=400,
            dtype="float16",
            transformers_version="5.23.0",
            rope_parameters=dict(
                rope_type="yarn",
                factor=4.0,
                original_max_position_embeddings=100,
                rope_theta=10000.0,
                beta_fast=8.0,
                beta_slow=0.25,
                mscale=0.9,
                mscale_all_dim=0.4,
            ),
        ),
        without=NEW_SPELLING,
        dtype="float16",
        bites={
            "not scaled": dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
            "default betas": dict(
                rope_parameters=dict(
                    rope_type="yarn",
                    factor=4.0,
                    original_max_position_embeddings=100,
                    rope_theta=10000.0,
                    mscale=0.9,
                    mscale_all_dim=0.4,
                )
            ),
            "mscale ignored": dict(
                rope_parameters=dict(
                    rope_type="yarn",
                    factor=4.0,
                    original_max_position_embeddings=100,
                    rope_theta=10000.0,
                    beta_fast=8.0,
                    beta_slow=0.25,
                )
            ),
        },
        seed=2,
    ),
    Fixture(
        name="mixtral_plain",
        family="mixtral",
        awkward="head_dim 24 unequal to hidden/heads, grouped queries, hidden 52, expert width 29, "
        "vocabulary 131, three shards.",
        config=dict(
            hidden_size=52,
            head_dim=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=29,
            num_local_experts=8,
            num_experts_per_tok=2,
            vocab_size=131,
            rope_theta=1000000.0,
        ),
        shards=3,
        bites={"other base": dict(rope_theta=10000.0)},
    ),
    Fixture(
        name="mixtral_window",
        family="mixtral",
        awkward="Sliding window 24, shorter than the prompt; one key/value head, top-1 of 5, tied "
        "embeddings, head_dim null, llama3 RoPE in the old spelling.",
        config=dict(
            hidden_size=48,
            head_dim=None,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=1,
            intermediate_size=45,
            num_local_experts=5,
            num_experts_per_tok=1,
            vocab_size=97,
            sliding_window=24,
            tie_word_embeddings=True,
            rope_theta=10000.0,
            rope_scaling=dict(rope_type="llama3", **LLAMA3),
        ),
        bites={
            "no window": dict(sliding_window=None),
            "window off by one": dict(sliding_window=25),
            "not scaled": dict(rope_scaling=None),
        },
        gains=dict(o=0.7, down=1.0),
    ),
    Fixture(
        name="mixtral_dynamic",
        family="mixtral",
        awkward="Dynamic NTK RoPE in the new spelling with a prompt past max_position_embeddings, "
        "head_dim 40, multi-head, top-3 of 5.",
        config=dict(
            hidden_size=44,
            head_dim=40,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            intermediate_size=33,
            num_local_experts=5,
            num_experts_per_tok=3,
            vocab_size=107,
            max_position_embeddings=128,
            dtype="bfloat16",
            transformers_version="5.23.0",
            rope_parameters=dict(rope_type="dynamic", factor=4.0, rope_theta=10000.0),
        ),
        without=NEW_SPELLING,
        bites={
            "not scaled": dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
            "scaled as for the maximum": dict(max_position_embeddings=75),
        },
        seed=5,
    ),
    Fixture(
        name="mixtral_many",
        family="mixtral",
        awkward="60 experts of width 7, top-3, hidden 36, linear RoPE in the old spelling with "
        "`type`, rope_theta left to its default of 1,000,000.",
        config=dict(
            hidden_size=36,
            num_hidden_layers=2,
            num_attention_heads=3,
            num_key_value_heads=1,
            intermediate_size=7,
            num_local_experts=60,
            num_experts_per_tok=3,
            vocab_size=90,
            rope_scaling=dict(type="linear", factor=3.0),
        ),
        bites={"not scaled": dict(rope_scaling=None), "base 10,000": dict(rope_theta=10000.0)},
        seed=4,
    ),
    Fixture(
        name="qwen2_many",
        family="qwen2_moe",
        awkward="60 experts of width 10, unnormalised top-8, shared expert, dense layer 0 by "
        "mlp_only_layers, biases by default, two shards.",
        config=dict(
            hidden_size=36,
            num_hidden_layers=2,
            num_attention_heads=3,
            num_key_value_heads=1,
            intermediate_size=50,
            moe_intermediate_size=10,
            shared_expert_intermediate_size=22,
            num_experts=60,
            num_experts_per_tok=8,
            mlp_only_layers=[0],
            vocab_size=150,
            rope_theta=1000000.0,
        ),
        shards=2,
        bites={"normalised": dict(norm_topk_prob=True)},
        gains=dict(down=1.0, successor=18.0),
    ),
    Fixture(
        name="qwen2_window",
        family="qwen2_moe",
        awkward="Window 16 in layers 0 and 2 of 4 (use_sliding_window, max_window_layers), dense "
        "layers 0 and 2 by decoder_sparse_step, normalised top-1 of 5, no biases, tied "
        "embeddings, head_dim 8, YaRN with truncate false and attention_factor in the new "
        "spelling.",
        config=dict(
            hidden_size=40,
            num_hidden_layers=4,
            num_attention_heads=5,
            num_key_value_heads=1,
            intermediate_size=34,
            moe_intermediate_size=26,
            shared_expert_intermediate_size=19,
            num_experts=5,
            num_experts_per_tok=1,
            norm_topk_prob=True,
            decoder_sparse_step=2,
            qkv_bias=False,
            use_sliding_window=True,
            sliding_window=16,
            max_window_layers=3,
            tie_word_embeddings=True,
            vocab_size=103,
            max_position_embeddings=400,
            dtype="bfloat16",
            transformers_version="5.23.0",
            rope_parameters=dict(
                rope_type="yarn",
                factor=4.0,
                original_max_position_embeddings=100,
                rope_theta=10000.0,
                attention_factor=1.3,
                truncate=False,
                beta_fast=4.0,
            ),
        ),
        without=NEW_SPELLING,
        bites={
            "no window": dict(use_sliding_window=False),
            "window off by one": dict(sliding_window=17),
            "window in layer 0 only": dict(max_window_layers=2),
            "not normalised": dict(norm_topk_prob=False),
            "range truncated": dict(
                rope_parameters=dict(
                    rope_type="yarn",
                    factor=4.0,
                    original_max_position_embeddings=100,
                    rope_theta=10000.0,
                    attention_factor=1.3,
                    beta_fast=4.0,
                )
            ),
            "default attention factor": dict(
                rope_parameters=dict(
                    rope_type="yarn",
                    factor=4.0,
                    original_max_position_embeddings=100,
                    rope_theta=10000.0,
                    truncate=False,
                    beta_fast=4.0,
                )
            ),
        },
        gains=dict(o=0.6, down=0.8),
    ),
    Fixture(
        name="qwen2_dynamic",
        family="qwen2_moe",
        awkward="Dynamic NTK RoPE in the old spelling with `type` and a prompt past "
        "max_position_embeddings, window 50 by an explicit layer_types, multi-head, head_dim "
        "10, top-3 of 7, biases, shared expert wider than the experts.",
        config=dict(
            hidden_size=50,
            num_hidden_layers=2,
            num_attention_heads=5,
            num_key_value_heads=5,
            intermediate_size=64,
            moe_intermediate_size=21,
            shared_expert_intermediate_size=40,
            num_experts=7,
            num_experts_per_tok=3,
            qkv_bias=True,
            vocab_size=109,
            max_position_embeddings=100,
            use_sliding_window=True,
            sliding_window=50,
            layer_types=["full_attention", "sliding_attention"],
            rope_theta=10000.0,
            rope_scaling=dict(type="dynamic", factor=3.5),
        ),
        bites={
            "not scaled": dict(rope_scaling=None),
            "layer_types ignored": dict(layer_types=["sliding_attention", "full_attention"]),
        },
    ),
    Fixture(
        name="qwen3_plain",
        family="qwen3_moe",
        awkward="Stored in F32: head_dim 24 unequal to hidden/heads, unnormalised top-2 of 8, tied "
        "embeddings, dense layer by decoder_sparse_step 2.",
        config=dict(
            hidden_size=36,
            head_dim=24,
            num_hidden_layers=3,
            num_attention_heads=3,
            num_key_value_heads=1,
            intermediate_size=30,
            moe_intermediate_size=20,
            num_experts=8,
            num_experts_per_tok=2,
            norm_topk_prob=False,
            decoder_sparse_step=2,
            tie_word_embeddings=True,
            vocab_size=100,
            rope_theta=1000000.0,
            torch_dtype="float32",
        ),
        dtype="float32",
        bites={"normalised": dict(norm_topk_prob=True)},
        seed=1,
    ),
    Fixture(
        name="qwen3_yarn",
        family="qwen3_moe",
        awkward="head_dim 80, biases on q, k, v and o, normalised top-8 of 16, expert width 13, YaRN "
        "in the old spelling with `type`, two shards.",
        config=dict(
            hidden_size=44,
            head_dim=80,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            intermediate_size=44,
            moe_intermediate_size=13,
            num_experts=16,
            num_experts_per_tok=8,
            attention_bias=True,
            vocab_size=110,
            max_position_embeddings=400,
            rope_theta=1000000.0,
            rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=100),
        ),
        shards=2,
        bites={"not scaled": dict(rope_scaling=None), "not normalised": dict(norm_topk_prob=False)},
    ),
    Fixture(
        name="qwen3_window",
        family="qwen3_moe",
        awkward="Window 20 in every layer, dense layer 1 of 3 by mlp_only_layers, head_dim absent "
        "(14), multi-head, top-3 of 12, norm_topk_prob absent, llama3 RoPE and "
        "num_local_experts in the new spelling.",
        config=dict(
            hidden_size=42,
            num_hidden_layers=3,
            num_attention_heads=3,
            num_key_value_heads=3,
            intermediate_size=50,
            moe_intermediate_size=17,
            num_local_experts=12,
            num_experts_per_tok=3,
            mlp_only_layers=[1],
            use_sliding_window=True,
            sliding_window=20,
            vocab_size=120,
            dtype="bfloat16",
            transformers_version="5.23.0",
            rope_parameters=dict(rope_type="llama3", rope_theta=10000.0, **LLAMA3),
        ),
        without=NEW_SPELLING + ("norm_topk_prob",),
        bites={
            "no window": dict(use_sliding_window=False),
            "window off by one": dict(sliding_window=21),
            "not scaled": dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
            "normalised": dict(norm_topk_prob=True),
        },
        gains=dict(down=1.0),
    ),
    Fixture(
        name="dbrx_plain",
        family="dbrx",
        awkward="As published: base of RoPE in attn_config only, clip_qkv 8 (clips nothing), top-4 of "
        "16 with default gate normalisation, grouped queries, expert width 15.",
        config=dict(
            d_model=48,
            n_heads=4,
            n_layers=2,
            vocab_size=127,
            attn_config=dict(clip_qkv=8, kv_n_heads=2, model_type="", rope_theta=500000),
            ffn_config=dict(
                ffn_hidden_size=15,
                model_type="",
                moe_jitter_eps=0,
                moe_loss_weight=0.05,
                moe_num_experts=16,
                moe_top_k=4,
            ),
        ),
        bites={"base 10,000": dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0))},
        gains=dict(down=1.0),
    ),
    Fixture(
        name="dbrx_clip",
        family="dbrx",
        awkward="clip_qkv that clips, gate normalised by the 2-norm, top-3 of 5, multi-head, expert "
        "width 31, linear RoPE in the new spelling, which overrides attn_config.rope_theta.",
        config=dict(
            d_model=60,
            n_heads=3,
            n_layers=2,
            vocab_size=102,
            dtype="bfloat16",
            transformers_version="5.23.0",
            attn_config=dict(clip_qkv=1.0, kv_n_heads=3, rope_theta=500000),
            ffn_config=dict(
                ffn_act_fn=dict(name="silu"),
                ffn_hidden_size=31,
                hidden_size=60,
                moe_jitter_eps=None,
                moe_loss_weight=0.01,
                moe_normalize_expert_weights=2.0,
                moe_num_experts=5,
                moe_top_k=3,
            ),
            rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=20000.0),
        ),
        without=NEW_SPELLING,
        bites={
            "not clipped": dict(attn_config=dict(clip_qkv=1e6, kv_n_heads=3, rope_theta=500000)),
            "base of attn_config": dict(
                rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=500000.0)
            ),
            "1-norm": dict(
                ffn_config=dict(
                    ffn_act_fn=dict(name="silu"),
                    ffn_hidden_size=31,
                    hidden_size=60,
                    moe_num_experts=5,
                    moe_top_k=3,
                )
            ),
        },
        gains=dict(down=1.0),
    ),
    Fixture(
        name="dbrx_top1",
        family="dbrx",
        awkward="Top-1 of 8 without gate normalisation (null), one head of dimension 40, clip_qkv "
        "2.5, YaRN in the old spelling at the top level, two shards.",
        config=dict(
            d_model=40,
            n_heads=1,
            n_layers=2,
            vocab_size=99,
            max_seq_len=400,
            rope_theta=20000.0,
            rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=100),
            attn_config=dict(clip_qkv=2.5, kv_n_heads=1),
            ffn_config=dict(
                ffn_hidden_size=22,
                moe_normalize_expert_weights=None,
                moe_num_experts=8,
                moe_top_k=1,
            ),
        ),
        shards=2,
        bites={
            "normalised": dict(ffn_config=dict(ffn_hidden_size=22, moe_num_experts=8, moe_top_k=1)),
            "not scaled": dict(rope_scaling=None),
        },
    ),
]
