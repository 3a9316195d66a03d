"""Fixtures of granitemoe: multipliers of embeddings, residuals, scores and logits; fused experts."""

from fixture import NEW_SPELLING, Fixture

BASES = {
    "granitemoe": {
        "architectures": ["GraniteMoeForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": 4096,
        "model_type": "granitemoe",
        "output_router_logits": False,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "router_aux_loss_coef": 0.001,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.46.0.dev0",
        "use_cache": True,
    },
}

FIXTURES = [
    Fixture(
        name="granitemoe_plain",
        family="granitemoe",
        awkward="As published: four multipliers, tied embeddings, grouped queries; head_dim 18, top-3 of 9 "
        "fused experts of width 23.",
        config=dict(
            hidden_size=54,
            num_hidden_layers=2,
            num_attention_heads=3,
            num_key_value_heads=1,
            intermediate_size=23,
            num_local_experts=9,
            num_experts_per_tok=3,
            embedding_multiplier=3.0,
            attention_multiplier=0.3,
            residual_multiplier=0.6,
            logits_scaling=1.6,
            vocab_size=103,
        ),
        bites={
            "embeddings not multiplied": dict(embedding_multiplier=1.0),
            "scores not multiplied": dict(attention_multiplier=1.0),
            "scores as usual": dict(attention_multiplier=18**-0.5),
            "residuals not multiplied": dict(residual_multiplier=1.0),
            "logits not divided": dict(logits_scaling=1.0),
        },
    ),
    Fixture(
        name="granitemoe_ones",
        family="granitemoe",
        awkward="No multipliers given, so that scores are not scaled at all; a head of its own, biases on q, "
        "k, v and o, multi-head with num_key_value_heads null, top-5 of 20 of width 9, linear RoPE "
        "in the new spelling, two shards.",
        config=dict(
            hidden_size=40,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=None,
            intermediate_size=9,
            num_local_experts=20,
            num_experts_per_tok=5,
            attention_bias=True,
            tie_word_embeddings=False,
            vocab_size=121,
            dtype="bfloat16",
            transformers_version="5.23.0",
            rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=30000.0),
        ),
        without=NEW_SPELLING + ("rope_theta",),
        shards=2,
        gains=dict(q=0.8, k=0.8, successor=18.0),
        bites={
            "scores as usual": dict(attention_multiplier=10**-0.5),
            "not scaled": dict(rope_parameters=dict(rope_type="default", rope_theta=30000.0)),
        },
    ),
]
