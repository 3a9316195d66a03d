"""Fixtures of gpt_oss: attention sinks, alternating windows, clamped experts with biases, MXFP4."""

from fixture import NEW_SPELLING, Fixture

BASES = {
    "gpt_oss": {
        "architectures": ["GptOssForCausalLM"],
        "attention_bias": True,
        "attention_dropout": 0.0,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": 4096,
        "model_type": "gpt_oss",
        "output_router_logits": False,
        "pad_token_id": 1,
        "rms_norm_eps": 1e-05,
        "router_aux_loss_coef": 0.9,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.55.0.dev0",
        "use_cache": True,
    },
}

YARN = dict(
    rope_type="yarn",
    factor=4.0,
    original_max_position_embeddings=100,
    beta_fast=32.0,
    beta_slow=1.0,
    truncate=False,
)

FIXTURES = [
    Fixture(
        name="gpt_oss_plain",
        family="gpt_oss",
        awkward="In BF16, where experts are stored transposed; window 24 in layers 0 and 2 by default, YaRN "
        "and base 150,000 by default, head_dim 20 unequal to hidden/heads, top-3 of 7 experts of "
        "width 27, clamping at 7 by default.",
        config=dict(
            hidden_size=52,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=20,
            intermediate_size=27,
            num_local_experts=7,
            num_experts_per_tok=3,
            sliding_window=24,
            vocab_size=107,
            dtype="bfloat16",
            transformers_version="5.23.0",
        ),
        without=NEW_SPELLING + ("swiglu_limit", "attention_bias"),
        gains=dict(q=1.0, k=1.0, o=0.7, up=2.5, down=0.25, successor=18.0),
        bites={
            "no clamping": dict(swiglu_limit=1000.0),
            "window off by one": dict(sliding_window=25),
            "other layers": dict(
                layer_types=["full_attention", "sliding_attention", "full_attention"]
            ),
            "not scaled": dict(rope_parameters=dict(rope_type="default", rope_theta=150000.0)),
            "other base": dict(rope_theta=10000.0),
        },
        seed=2,
    ),
    Fixture(
        name="gpt_oss_mxfp4",
        family="gpt_oss",
        awkward="Experts in MXFP4, hidden 96 and width 160, top-2 of 6; clamping at 1.5, layer_types "
        "given, YaRN in the old spelling with `truncate` false, one key/value head, three shards.",
        config=dict(
            hidden_size=96,
            num_hidden_layers=2,
            num_attention_heads=3,
            num_key_value_heads=1,
            head_dim=28,
            intermediate_size=160,
            num_local_experts=6,
            num_experts_per_tok=2,
            experts_per_token=2,
            sliding_window=40,
            layer_types=["full_attention", "sliding_attention"],
            swiglu_limit=1.5,
            rope_theta=150000,
            rope_scaling=YARN,
            max_position_embeddings=400,
            initial_context_length=100,
            quantization_config=dict(
                modules_to_not_convert=[
                    "model.layers.*.self_attn",
                    "model.layers.*.mlp.router",
                    "model.embed_tokens",
                    "lm_head",
                ],
                quant_method="mxfp4",
            ),
            vocab_size=101,
        ),
        stored="mxfp4",
        gains=dict(q=1.0, k=1.0, down=1.0, successor=18.0),
        shards=3,
        bites={
            "no clamping": dict(swiglu_limit=1000.0),
            "truncated": dict(rope_scaling=YARN | dict(truncate=True)),
            "no window": dict(layer_types=["full_attention", "full_attention"]),
        },
    ),
]
